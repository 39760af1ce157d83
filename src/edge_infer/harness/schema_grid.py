"""The part of an artifact that a grid adds: its spec, its passes, and who else used the CPUs."""

from __future__ import annotations

from typing import Any, Literal

from edge_infer.harness.record import Bytes, Failure, Record, Scalar

Status = Literal["result", "not a result", "void"]
LEAST_PASSES = 3
"""Fewer good passes than this are not a result."""


class Interval(Record):
    """A percentile bootstrap interval of a median; the seed makes it again."""

    low: float
    high: float
    confidence: float
    resamples: int
    seed: int


class CoreLoad(Record):
    """Use of one logical CPU over a stretch of time, as shares of that time (0..1)."""

    cpu: int
    busy: float
    steal: float
    """What the hypervisor gave to others while something here wanted to run."""


class Preflight(Record):
    """What the target CPUs were doing before anything of ours ran on them."""

    at: str
    """UTC, ISO 8601."""
    seconds: float
    """Length of each of the samples."""
    busy_limit: float
    steal_limit: float
    samples: list[list[CoreLoad]]


class Contention(Record):
    """Who else used the target CPUs during one pass."""

    cpus: list[int]
    others: float
    """Share of the CPUs' time that went to processes outside the arm's tree (0..1)."""
    steal: float
    wait_seconds: float | None
    """Time that the arm's threads were runnable but waited for a CPU, summed over threads."""
    pressure_seconds: float | None
    """Time that some task of the machine waited for a CPU (/proc/pressure/cpu)."""
    label: Literal["quiet", "contended", "too short to tell"]


class ProbeResult(Record):
    """A value read back from the running engine, which proves (or not) that a setting is on."""

    probe: str
    """Where the value was read."""
    expected: str
    found: Scalar
    held: bool


class GridPass(Record):
    """One run of one arm."""

    arm: str
    index: int
    """Which pass, from 0; warm-up passes count from 0 on their own."""
    warmup: bool
    position: int
    """The arm's place in the order of this pass, from 0."""
    session: int
    """Which start of the grid this ran in; more than one where it was resumed."""
    started_at: str
    """UTC, ISO 8601."""
    seconds: float
    exit_status: int | None
    """Negative: the signal that ended it. None: it could not be started."""
    values: dict[str, float] = {}
    """One value per metric; empty where the pass failed."""
    memory: dict[str, Bytes] = {}
    """Peaks over the process tree."""
    processes: list[str] = []
    """Names of the processes of the tree, the root first."""
    contention: Contention | None = None
    probes: list[ProbeResult] = []
    failure: Failure | None = None

    @property
    def good(self) -> bool:
        """Whether its values count."""
        return self.failure is None and not self.warmup


class GridSession(Record):
    """One start of the grid: the first one, or a resumption."""

    started_at: str
    preflight: Preflight


class GridRun(Record):
    """How a grid's arms were measured, pass by pass."""

    name: str
    spec: dict[str, Any]
    """The spec as it was read, with paths cut to base names."""
    binding: dict[str, Scalar]
    """What every session had to have in common: hashes of the spec, the source and the programs."""
    baseline: str
    sessions: list[GridSession]
    passes: list[GridPass]
