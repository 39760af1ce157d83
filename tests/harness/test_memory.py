"""Memory accounting on real processes that hold a known amount of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_infer.harness.memory import PeakSampler, process_memory, process_tree, tree_memory

MB = 1 << 20

# Says "ready" once its memory is touched, and lives until its stdin closes.
HOLDER = """
import mmap, os, subprocess, sys
heap = b"x" * (int(sys.argv[1]) << 20)
if sys.argv[2] != "0":
    with open(sys.argv[3], "rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    total = sum(view[i] for i in range(0, len(view), 4096))
if sys.argv[4] == "child":
    child = subprocess.Popen([sys.executable, __file__, "40", "0", "", ""],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
if sys.argv[4] == "child":
    child.communicate()
"""


@contextmanager
def holder(tmp_path: Path, heap: int, mapped: int, child: bool = False) -> Iterator[int]:
    script, data = tmp_path / "holder.py", tmp_path / "data"
    script.write_text(HOLDER)
    data.write_bytes(b"\1" * (mapped * MB))
    process = subprocess.Popen(
        [
            *(sys.executable, str(script), str(heap), str(mapped), str(data)),
            "child" if child else "",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.communicate(timeout=30)


def test_anonymous_and_mapped_memory_are_told_apart(tmp_path: Path) -> None:
    with holder(tmp_path, heap=64, mapped=32) as pid:
        memory = process_memory(pid)
    assert memory is not None
    assert 64 * MB <= memory.anonymous < 64 * MB + 30 * MB
    assert 32 * MB <= memory.file_backed < 32 * MB + 30 * MB
    assert memory.rss == memory.anonymous + memory.file_backed + memory.shared_memory
    assert memory.pss <= memory.rss


def test_tree_counts_descendants(tmp_path: Path) -> None:
    with holder(tmp_path, heap=16, mapped=1, child=True) as pid:
        assert len(process_tree(pid)) == 2
        tree = tree_memory(pid, "loaded")
    assert len(tree.processes) == 2
    assert tree.anonymous == sum(p.anonymous for p in tree.processes)
    assert tree.anonymous >= (16 + 40) * MB


def test_sampler_sees_a_peak_that_is_gone_at_the_end() -> None:
    program = (
        "import time; x = b'x' * (80 << 20); time.sleep(0.5); del x; time.sleep(0.3); "
        "print(open('/proc/self/statm').read().split()[1])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with PeakSampler(process.pid) as sampler:
        out, _ = process.communicate(timeout=60)
    assert int(out) * os.sysconf("SC_PAGESIZE") < 80 * MB
    report = sampler.report()
    assert report.peak_anonymous >= 80 * MB
    assert report.samples > 5


def test_ended_process_has_no_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    deadline = time.monotonic() + 30
    # A zombie until it is waited for: it exists but maps nothing.
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process_memory(process.pid) is None
    process.wait()
    assert process_memory(process.pid) is None
    assert tree_memory(process.pid, "end").rss == 0


@pytest.mark.parametrize("name", ["a b", "x) (y"])
def test_process_names_with_spaces_and_parentheses(tmp_path: Path, name: str) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} 0 0\n")
    assert process_tree(10, proc=tmp_path) == [10, 11, 12]
