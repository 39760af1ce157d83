"""The artifact: what every benchmark of this project writes, one JSON document per run.

A run has one or more *arms* (an engine with a model and settings); each arm has metrics, memory
and failures; *comparisons* relate arms. Provenance says on what and with what it was measured.
Unknown fields are refused, so a typing error in a hand-made file does not pass for data; add new
fields here, with a default, and raise SCHEMA_VERSION when a meaning changes.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from edge_infer.harness import stats
from edge_infer.harness.record import Bytes, Failure, Record, Scalar
from edge_infer.harness.schema_agent import AgentResults
from edge_infer.harness.schema_fidelity import Fidelity
from edge_infer.harness.schema_grid import LEAST_PASSES, GridRun, Interval, ProbeResult, Status
from edge_infer.harness.schema_load import LoadRun
from edge_infer.harness.schema_profile import StepProfile

SCHEMA_VERSION: Literal[1] = 1


class Metric(Record):
    """One measured quantity with all its samples; the summary is recomputed on reading."""

    name: str
    """For example "prefill": dotted lower-case words."""
    unit: str
    """SI or "tok/s", "tokens", "bytes", "ratio"."""
    better: Literal["higher", "lower"]
    samples: list[float] = Field(min_length=1)
    median: float
    min: float
    max: float
    iqr: float
    mad: float

    @classmethod
    def of(
        cls, name: str, unit: str, better: Literal["higher", "lower"], samples: list[float]
    ) -> Metric:
        """Builds the metric and its summary from samples (at least one, all finite)."""
        return cls(
            name=name,
            unit=unit,
            better=better,
            samples=samples,
            median=stats.median(samples),
            min=min(samples),
            max=max(samples),
            iqr=stats.iqr(samples),
            mad=stats.mad(samples),
        )

    @model_validator(mode="after")
    def _summary_matches_samples(self) -> Metric:
        if not all(math.isfinite(x) for x in self.samples):
            raise ValueError(f"metric {self.name!r} has a sample that is not finite")
        expected = {
            "median": stats.median(self.samples),
            "min": min(self.samples),
            "max": max(self.samples),
            "iqr": stats.iqr(self.samples),
            "mad": stats.mad(self.samples),
        }
        for field, value in expected.items():
            if not math.isclose(getattr(self, field), value, rel_tol=1e-9, abs_tol=1e-12):
                raise ValueError(
                    f"metric {self.name!r}: {field} is {getattr(self, field)}, "
                    f"its samples give {value}"
                )
        return self


class ProcessMemory(Record):
    """One process, from /proc/<pid>/smaps_rollup, in bytes."""

    pid: int
    name: str
    rss: Bytes
    pss: Bytes
    """Proportional share: a page mapped by n processes counts 1/n in each."""
    anonymous: Bytes
    """Resident memory that no file backs: heap, stacks, copies."""
    file_backed: Bytes
    """Resident pages of mapped files, weights among them."""
    shared_memory: Bytes
    """Resident tmpfs and shared anonymous memory."""
    shared: Bytes
    """Resident pages that other processes map too."""
    swap: Bytes


class TreeMemory(Record):
    """A process with all its descendants at one moment, in bytes.

    ``pss`` is the figure to add up: it counts a page shared inside the tree once.
    """

    moment: str
    """When: "loaded", "prefill", "decode", "end"."""
    rss: Bytes
    pss: Bytes
    anonymous: Bytes
    file_backed: Bytes
    shared_memory: Bytes
    shared: Bytes
    swap: Bytes
    processes: list[ProcessMemory]


class MemoryReport(Record):
    """Memory of an arm: snapshots at named moments, and sampled peaks over the process tree."""

    snapshots: list[TreeMemory] = []
    peak_anonymous: Bytes
    peak_rss: Bytes
    peak_file_backed: Bytes
    interval_seconds: float
    """Time between two samples of the peaks; shorter spikes can be missed."""
    samples: int
    peak_pss: Bytes | None = None
    """Of the exact snapshots, which are fewer than the samples."""


class TensorGroup(Record):
    """Tensors of one format that belong together (all down projections, the embedding)."""

    group: str
    format: str
    """For example "q4g32", "q4g32+min", "q8g32", "f32", or a peer's own name."""
    tensors: int
    parameters: int
    bytes: Bytes
    bits_per_weight: float


class TensorFormat(Record):
    """The format of tensors that differ in their layer only."""

    name: str
    """With * for the layer's number."""
    layers: str | None = None
    """For example "0-8,17"; None for a tensor that belongs to no layer."""
    format: str
    tensors: int


class CheckpointFile(Record):
    """One file of the model, by name."""

    name: str
    bytes: Bytes
    sha256: str | None = None
    """None where the file was larger than the run was willing to hash."""


class CheckpointIdentity(Record):
    """Which weights, exactly, and in which formats."""

    name: str
    """The base name of the folder or file; never a path."""
    architecture: str | None = None
    parameters: int | None = None
    bytes: Bytes
    files: list[CheckpointFile]
    groups: list[TensorGroup] = []
    tensors: list[TensorFormat] = []
    """The format of every tensor."""
    source: dict[str, Scalar] = {}
    """What it was converted from, as its provenance.json tells."""


class EngineBuild(Record):
    """The program that ran the model."""

    name: str
    """"edge-infer", "llama.cpp", ..."""
    version: str
    commit: str | None = None
    dirty: bool | None = None
    """True where the source tree had changes that the commit does not have."""
    compiler: str | None = None
    flags: str | None = None
    details: dict[str, Scalar] = {}


class Arm(Record):
    """One engine with one model and one set of settings."""

    name: str
    engine: EngineBuild
    command: list[str]
    """What was run, with paths cut to base names."""
    threads: int | None = None
    """None: not known, as for a server elsewhere."""
    cpus: list[int] = []
    """Logical CPUs that the process was confined to; empty where it was not."""
    isa: str | None = None
    kernels: dict[str, str] = {}
    """Which kernel served which operation, where the engine tells."""
    settings: dict[str, Scalar] = {}
    checkpoint: CheckpointIdentity | None = None
    memory: MemoryReport | None = None
    agent: AgentResults | None = None
    load: LoadRun | None = None
    profiles: list[StepProfile] = []
    metrics: list[Metric] = []
    fidelity: Fidelity | None = None
    failures: list[Failure] = []
    status: Status = "result"
    """"void": a probe or an expectation failed. "not a result": too few good passes."""
    status_reason: str = ""
    probes: list[ProbeResult] = []
    unprobed: str = ""
    """Why the arm needs no probe, in its author's words."""

    def metric(self, name: str) -> Metric | None:
        """The metric of that name, or None."""
        return next((m for m in self.metrics if m.name == name), None)


class Comparison(Record):
    """One metric of two arms, as ratios of samples taken in the same pass."""

    metric: str
    arm: str
    baseline: str
    ratio: Metric
    """arm / baseline, one sample per pass."""
    verdict: Literal["better", "worse", "inside the spread"]
    interval: Interval | None = None
    """Of the median ratio."""


class MachineLoad(Record):
    """What else the machine was doing just before the run, over ``seconds``."""

    seconds: float
    load_average: tuple[float, float, float]
    busy: float
    """Share of all CPU time that was used, 0..1, steal not included."""
    steal: float
    """Share that the hypervisor gave to others, 0..1."""
    iowait: float


class Machine(Record):
    """The hardware and the operating system, as this process sees them."""

    cpu: str
    isa_levels: list[str]
    physical_cores: int
    affinity: list[int]
    quota_cpus: float | None
    memory_total: Bytes
    memory_available: Bytes
    kernel: str
    governor: str | None
    transparent_huge_pages: str | None
    load: MachineLoad


class Provenance(Record):
    """With what and on what the run was made."""

    edge_infer: EngineBuild
    python: str
    machine: Machine
    environment: dict[str, str] = {}
    """Variables that change results: EDGE_INFER_*, OMP_*, MALLOC_*."""


class Retraction(Record):
    """Why a published artifact no longer counts. It stays where it is: results are append-only."""

    reason: str = Field(min_length=1)
    successor: str | None = None
    """File name of the artifact that replaces it, if there is one."""


class Artifact(Record):
    """One run of one benchmark."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: str
    """"bench", "compare", ..."""
    command: list[str]
    started_at: str
    """UTC, ISO 8601."""
    duration_seconds: float
    parameters: dict[str, Scalar] = {}
    provenance: Provenance
    arms: list[Arm]
    comparisons: list[Comparison] = []
    failures: list[Failure] = []
    grid: GridRun | None = None
    retracted: Retraction | None = None

    @model_validator(mode="after")
    def _few_passes_are_no_result(self) -> Artifact:
        for arm in self.arms if self.grid is not None else []:
            for metric in arm.metrics if arm.status == "result" else []:
                if len(metric.samples) < LEAST_PASSES:
                    raise ValueError(
                        f"arm {arm.name!r} calls {len(metric.samples)} passes of {metric.name!r} "
                        f"a result; {LEAST_PASSES} are needed"
                    )
        return self

    @model_validator(mode="after")
    def _comparisons_name_arms(self) -> Artifact:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"two arms share a name: {names}")
        for comparison in self.comparisons:
            for arm in (comparison.arm, comparison.baseline):
                if arm not in names:
                    raise ValueError(f"comparison of {arm!r}, which is not an arm ({names})")
        return self
