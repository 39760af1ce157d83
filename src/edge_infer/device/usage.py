"""What this process holds in memory now, and giving back what it no longer needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_infer.device.cgroup import read_text

SMAPS = Path("/proc/self/smaps_rollup")


@dataclass(frozen=True)
class MemoryUse:
    """Resident bytes of one process."""

    anonymous: int
    """What no file backs: heap, stacks, the KV pool."""
    file_backed: int
    """Pages of mapped files: the weights, libraries."""


def own_memory(path: Path = SMAPS) -> MemoryUse:
    """Memory of this process; zeros where the kernel does not show it."""
    values = {"Rss": 0, "Anonymous": 0}
    for line in (read_text(path) or "").splitlines():
        name, _, rest = line.partition(":")
        if name in values:
            values[name] = int(rest.split()[0]) * 1024
    return MemoryUse(values["Anonymous"], max(0, values["Rss"] - values["Anonymous"]))


def give_back_heap() -> None:
    """Returns freed heap pages to the system, where the C library can (glibc).

    After a large structure was parsed, most of the heap is free but still resident.
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
