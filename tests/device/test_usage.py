"""Memory of this process, by kind."""

from __future__ import annotations

from pathlib import Path

from edge_infer.device.usage import own_memory


def test_a_copy_is_anonymous() -> None:
    before = own_memory()
    block = bytearray(b"x") * (32 << 20)
    after = own_memory()
    assert 30 << 20 < after.anonymous - before.anonymous < 40 << 20
    assert after.file_backed > 0
    del block


def test_planted_file(tmp_path: Path) -> None:
    file = tmp_path / "smaps_rollup"
    file.write_text("0-1 ---p 0 00:00 0 [rollup]\nRss: 100 kB\nPss: 7 kB\nAnonymous: 60 kB\n")
    use = own_memory(file)
    assert (use.anonymous, use.file_backed) == (60 * 1024, 40 * 1024)
    assert own_memory(tmp_path / "absent").anonymous == 0
