"""Who uses the target CPUs: before a grid (pre-flight) and during each pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_infer.errors import DeviceError
from edge_infer.harness.grid.spec import PreflightSpec
from edge_infer.harness.memory import PROC, PeakSampler
from edge_infer.harness.provenance import now
from edge_infer.harness.schema_grid import Contention, CoreLoad, Preflight

TICK = 1 / os.sysconf("SC_CLK_TCK")
SHORTEST = 0.2
"""Seconds below which the kernel's ticks (10 ms) say nothing about a pass."""
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class CpuTime:
    """Seconds of one logical CPU since the system's start."""

    busy: float
    steal: float
    total: float


def cpu_times(cpus: Collection[int], proc: Path = PROC) -> dict[int, CpuTime]:
    """Per-CPU times from /proc/stat. Raises DeviceError for a CPU that is not there."""
    times: dict[int, CpuTime] = {}
    for line in (proc / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            # Guest time is part of user and nice, so the first eight columns are everything.
            spent = dict(zip(_FIELDS, (int(f) * TICK for f in fields[:8]), strict=False))
            steal = spent.get("steal", 0.0)
            idle = spent["idle"] + spent.get("iowait", 0.0)
            total = sum(spent.values())
            times[int(name[3:])] = CpuTime(total - idle - steal, steal, total)
    missing = sorted(set(cpus) - set(times))
    if missing:
        raise DeviceError(f"CPU {missing[0]} is not among those of this machine.")
    return times


def core_loads(cpus: Sequence[int], seconds: float) -> list[CoreLoad]:
    """Use of each CPU while the caller sleeps in here."""
    before = cpu_times(cpus)
    time.sleep(seconds)
    after = cpu_times(cpus)
    loads = []
    for cpu in cpus:
        old, new = before[cpu], after[cpu]
        total = max(new.total - old.total, TICK)
        busy, steal = (new.busy - old.busy) / total, (new.steal - old.steal) / total
        loads.append(CoreLoad(cpu=cpu, busy=round(busy, 3), steal=round(steal, 3)))
    return loads


def target_cpus(pin: Sequence[int]) -> list[int]:
    """The CPUs that arms will run on. Raises DeviceError where this process may not use one."""
    allowed = os.sched_getaffinity(0)
    forbidden = sorted(set(pin) - allowed)
    if forbidden:
        raise DeviceError(
            f"CPU {forbidden[0]} may not be used by this process, which has {sorted(allowed)}.",
            remedy="Pin to CPUs of that list.",
        )
    return sorted(set(pin)) or sorted(allowed)


def preflight(
    spec: PreflightSpec,
    cpus: Sequence[int],
    wait: float = 0.0,
    sample: Callable[[Sequence[int], float], list[CoreLoad]] = core_loads,
    say: Callable[[str], None] = lambda text: None,
) -> Preflight:
    """Samples the target CPUs twice; both samples must be quiet.

    Tries again for ``wait`` seconds. Raises DeviceError (``machine_busy``) where they stay busy.
    """
    deadline = time.monotonic() + wait
    while True:
        samples = [sample(cpus, spec.seconds) for _ in range(2)]
        loads = [load for one in samples for load in one]
        worst = max(loads, key=lambda load: max(load.busy - spec.busy, load.steal - spec.steal))
        if worst.busy <= spec.busy and worst.steal <= spec.steal:
            return Preflight(
                at=now(),
                seconds=spec.seconds,
                busy_limit=spec.busy,
                steal_limit=spec.steal,
                samples=samples,
            )
        message = (
            f"CPU {worst.cpu} is busy before the grid has begun: {worst.busy:.0%} used "
            f"(limit {spec.busy:.0%}), {worst.steal:.0%} stolen (limit {spec.steal:.0%})."
        )
        if time.monotonic() >= deadline:
            raise DeviceError(
                message,
                code="machine_busy",
                remedy="End what runs there, pin to other CPUs, or give --wait SECONDS.",
            )
        say(message)
        time.sleep(min(RETRY_SECONDS, max(0.0, deadline - time.monotonic())))


def _pressure(proc: Path = PROC) -> float | None:
    """Seconds that some task waited for a CPU since the start, where the kernel counts them."""
    try:
        line = (proc / "pressure" / "cpu").read_text().splitlines()[0]
        return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


class ArmSampler(PeakSampler):
    """Samples an arm's memory, and how long its threads waited for a CPU."""

    def __init__(self, pid: int, *, wrapper: bool) -> None:
        super().__init__(pid, keep_tree=True, wrapper=wrapper)
        self._waits: dict[str, float] = {}
        self.names: dict[int, str] = {}

    def _each_sample(self, pids: list[int]) -> None:
        for pid in pids:
            folder = self.proc / str(pid)
            try:
                # Every time: a process changes its name when it executes another program.
                self.names[pid] = (folder / "comm").read_text(errors="replace").strip()
                for task in os.listdir(folder / "task"):
                    fields = (folder / "task" / task / "schedstat").read_text().split()
                    self._waits[f"{pid}/{task}"] = int(fields[1]) / 1e9
            except (OSError, ValueError, IndexError):
                continue  # it has ended, or the kernel does not count

    @property
    def wait_seconds(self) -> float | None:
        """Runnable but waiting, summed over all threads seen; None where nothing was counted."""
        return round(sum(self._waits.values()), 6) if self._waits else None


class PassWatch:
    """Counts, from its making to :meth:`result`, what others did on the target CPUs."""

    def __init__(self, cpus: Sequence[int], limit: float) -> None:
        self._cpus, self._limit = list(cpus), limit
        self._times, self._pressure = cpu_times(cpus), _pressure()

    def result(self, own_seconds: float, wait_seconds: float | None) -> Contention:
        """``own_seconds``: CPU time of the arm itself, all processes together."""
        after, pressure = cpu_times(self._cpus), _pressure()
        pairs = [(self._times[cpu], after[cpu]) for cpu in self._cpus]
        total = sum(new.total - old.total for old, new in pairs)
        busy = sum(new.busy - old.busy for old, new in pairs)
        steal = sum(new.steal - old.steal for old, new in pairs)
        others = max(0.0, busy - own_seconds) / max(total, TICK)
        stolen = steal / max(total, TICK)
        waited = None
        if pressure is not None and self._pressure is not None:
            waited = round(pressure - self._pressure, 6)
        if total / len(self._cpus) < SHORTEST:
            label = "too short to tell"
        else:
            label = "contended" if others + stolen > self._limit else "quiet"
        return Contention(
            cpus=self._cpus,
            others=round(others, 4),
            steal=round(stolen, 4),
            wait_seconds=wait_seconds,
            pressure_seconds=waited,
            label=label,  # type: ignore[arg-type]
        )
