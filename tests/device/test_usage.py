"""Memory of this process, by kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edge_infer.device.usage import own_memory

PROGRAM = """
from edge_infer.device.usage import own_memory
before = own_memory()
block = bytearray(b"x") * (32 << 20)
after = own_memory()
print(after.anonymous - before.anonymous, after.file_backed)
"""


def test_a_copy_is_anonymous() -> None:
    # In a process of its own: a heap that other tests have used may have room already.
    command = [sys.executable, "-c", PROGRAM]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    grown, file_backed = (int(word) for word in out.split())
    assert 30 << 20 < grown < 40 << 20
    assert file_backed > 0


def test_planted_file(tmp_path: Path) -> None:
    file = tmp_path / "smaps_rollup"
    file.write_text("0-1 ---p 0 00:00 0 [rollup]\nRss: 100 kB\nPss: 7 kB\nAnonymous: 60 kB\n")
    use = own_memory(file)
    assert (use.anonymous, use.file_backed) == (60 * 1024, 40 * 1024)
    assert own_memory(tmp_path / "absent").anonymous == 0
