"""How much memory this process may still take: the machine's and the control group's word."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_infer.device.cgroup import HOST, Roots, group_levels, read_text
from edge_infer.errors import DeviceError


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes of memory: the total this process could ever have, and what is free now."""

    total: int
    """The smaller of the machine's RAM and the cgroup limit."""
    available: int
    """What can be taken now without swapping: free memory plus reclaimable page cache."""
    limit: int | None
    """The cgroup limit that binds, or None where there is none below the machine's RAM."""
    limited_by: str
    """"machine" or "cgroup": which of the two set ``available``."""


def _meminfo(roots: Roots) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    values: dict[str, int] = {}
    for line in (read_text(roots.proc / "meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            values[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return values


def _number(path: Path) -> int | None:
    text = (read_text(path) or "").strip()
    return int(text) if text.isdigit() else None


def _inactive_file(path: Path, field: str) -> int:
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == field and value.strip().isdigit():
            return int(value)
    return 0


def _group_room(version: int, directory: Path) -> tuple[int, int] | None:
    """(limit, bytes still free under it) of one cgroup level, or None where it sets no limit."""
    if version == 2:
        limits = [_number(directory / name) for name in ("memory.max", "memory.high")]
        usage, field = _number(directory / "memory.current"), "inactive_file"
    else:
        limits = [_number(directory / "memory.limit_in_bytes")]
        usage, field = _number(directory / "memory.usage_in_bytes"), "total_inactive_file"
    limit = min((x for x in limits if x is not None), default=None)
    if limit is None or usage is None:
        return None
    # Page cache on the inactive list is given back under pressure; the active list holds the
    # weights that a running engine reads at every token, so it does not count as free.
    reclaimable = _inactive_file(directory / "memory.stat", field)
    return limit, max(0, limit - max(0, usage - reclaimable))


def memory_budget(roots: Roots = HOST) -> MemoryBudget:
    """Reads the memory budget of this process.

    Raises DeviceError where /proc/meminfo has no MemTotal.
    """
    info = _meminfo(roots)
    if "MemTotal" not in info:
        raise DeviceError(
            f"{roots.proc / 'meminfo'} does not say how much memory there is.",
            remedy="Mount /proc, or pass kv_cache_memory_bytes explicitly.",
        )
    total = info["MemTotal"]
    # Kernels before 3.14 have no MemAvailable.
    available = info.get("MemAvailable", info.get("MemFree", 0) + info.get("Inactive(file)", 0))
    limit, limited_by = None, "machine"
    for version, directory in group_levels("memory", roots):
        room = _group_room(version, directory)
        if room is None or room[0] >= info["MemTotal"]:
            continue
        if limit is None or room[0] < limit:
            limit = room[0]
        if room[1] < available:
            available, limited_by = room[1], "cgroup"
    if limit is not None:
        total = min(total, limit)
    return MemoryBudget(total=total, available=available, limit=limit, limited_by=limited_by)


def free_memory() -> int:
    """Bytes that this process can take now."""
    return memory_budget().available
