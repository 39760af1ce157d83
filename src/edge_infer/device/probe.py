"""Which CPUs this process may use, and how many threads that is.

The affinity mask, the cgroup quota (v1 and v2) and the core topology decide; nothing is guessed
from the number of CPUs in the machine.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from edge_infer.device.cgroup import HOST, Roots, group_levels, read_text


@dataclass(frozen=True)
class CpuBudget:
    """The CPUs that this process may use."""

    affinity: tuple[int, ...]
    """Logical CPUs of the affinity mask, ascending."""
    quota: float | None
    """CPUs' worth of time that the cgroup grants, or None where it sets no limit."""
    cores: tuple[tuple[int, ...], ...]
    """The allowed logical CPUs grouped by physical core, in order of each core's first CPU."""

    @property
    def threads(self) -> int:
        """One thread per physical core, no more than the quota rounded down, at least one."""
        limit = len(self.cores) if self.quota is None else min(len(self.cores), int(self.quota))
        return max(1, limit)

    def pin_list(self, threads: int | None = None) -> tuple[int, ...]:
        """Logical CPUs to pin ``threads`` threads to: one per core first, then their siblings."""
        deepest = max((len(core) for core in self.cores), default=0)
        order = [core[i] for i in range(deepest) for core in self.cores if i < len(core)]
        return tuple(order[: self.threads if threads is None else threads])


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """``"0-3,8"`` as (0, 1, 2, 3, 8); raises ValueError on anything else."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        cpus.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(cpus))


def _quota_of(version: int, directory: Path) -> float | None:
    if version == 2:
        fields = (read_text(directory / "cpu.max") or "").split()
    else:
        quota = read_text(directory / "cpu.cfs_quota_us")
        period = read_text(directory / "cpu.cfs_period_us")
        fields = [quota.strip(), period.strip()] if quota and period else []
    try:
        quota_us, period_us = (int(x) for x in fields)
    except ValueError:  # absent, or "max"
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def cpu_quota(roots: Roots = HOST) -> float | None:
    """The tightest CPU quota over this process's cgroup and its ancestors, in CPUs, or None."""
    quotas = [_quota_of(version, path) for version, path in group_levels("cpu", roots)]
    return min((q for q in quotas if q is not None), default=None)


def _siblings(cpu: int, roots: Roots) -> tuple[int, ...]:
    topology = roots.sys / f"devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        text = read_text(topology / name)
        if text:
            try:
                return parse_cpu_list(text)
            except ValueError:
                continue
    return (cpu,)


def probe_cpus(roots: Roots = HOST, affinity: Collection[int] | None = None) -> CpuBudget:
    """Reads the CPU budget of this process; ``affinity`` replaces its mask (for tests)."""
    allowed = sorted(os.sched_getaffinity(0) if affinity is None else affinity)
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in allowed:
        cores.setdefault(_siblings(cpu, roots), []).append(cpu)
    return CpuBudget(
        affinity=tuple(allowed),
        quota=cpu_quota(roots),
        cores=tuple(tuple(group) for group in cores.values()),
    )


@lru_cache(maxsize=1)
def cpu_budget() -> CpuBudget:
    """The budget of this process, read once: threads pinned later must not shrink it."""
    return probe_cpus()


def threads_default() -> int:
    """How many threads an engine uses unless told otherwise."""
    return cpu_budget().threads


def cpu_governor(roots: Roots = HOST) -> str | None:
    """The frequency governor of the first CPU, or None where the kernel shows none."""
    text = read_text(roots.sys / "devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return text.strip() if text else None
