"""The size of the buffer for streaming reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_infer.device.cgroup import Roots
from edge_infer.harness import ceilings

MIB = 1 << 20


def planted(tmp_path: Path, sizes: list[str]) -> Roots:
    for i, size in enumerate(sizes):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{i}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
    return Roots(proc=tmp_path / "proc", sys=tmp_path / "sys")


def test_buffer_is_far_larger_than_the_largest_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ceilings, "free_memory", lambda: 64 << 30)
    roots = planted(tmp_path, ["48K", "32K", "2048K", "107520K"])
    assert ceilings.last_level_cache(roots) == 105 * MIB
    assert ceilings.stream_buffer_bytes(roots) == 420 * MIB


@pytest.mark.parametrize(
    ("sizes", "free", "expected"),
    [
        ([], 64 << 30, 256 * MIB),
        (["unknown"], 64 << 30, 256 * MIB),
        (["491520K"], 64 << 30, 1920 * MIB),
        (["1048576K"], 64 << 30, 2048 * MIB),
        (["491520K"], 1 << 30, 128 * MIB),
    ],
)
def test_limits(tmp_path: Path, monkeypatch, sizes: list[str], free: int, expected: int) -> None:
    monkeypatch.setattr(ceilings, "free_memory", lambda: free)
    assert ceilings.stream_buffer_bytes(planted(tmp_path, sizes)) == expected
