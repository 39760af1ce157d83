"""``edge-infer roofline``: what this machine can do at most, by number of threads.

Streaming read: every thread reads its own region of a buffer far larger than the caches, by plain
loads at the best ISA level. Peaks: multiply-accumulates of each level that has instructions of its
own, in a loop whose operands stay in registers or tiles, so no memory takes part. These are the
hardware's ceilings, not those of the linear kernels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from edge_infer import _native
from edge_infer.device import cpu_budget
from edge_infer.errors import ConfigError
from edge_infer.harness.bench import Progress
from edge_infer.harness.bench_child import stream_reads
from edge_infer.harness.provenance import edge_infer_build, now, portable, provenance
from edge_infer.harness.schema import Arm, Artifact, Metric

TYPES = ("int8", "bf16")
_FIRST_STEPS = 1 << 12


@dataclass(frozen=True)
class RooflineOptions:
    """``threads``: the most that run at once, default one per usable core. ``seconds``: length of
    one measurement of a peak."""

    threads: int | None = None
    repeat: int = 5
    seconds: float = 0.1

    def __post_init__(self) -> None:
        most = len(cpu_budget().affinity)
        if self.threads is not None and not 1 <= self.threads <= most:
            raise ConfigError(f"threads = {self.threads}; this process may use 1 to {most} CPUs.")
        if not 1 <= self.repeat <= 1000:
            raise ConfigError(f"repeat = {self.repeat}; a number of 1 to 1000 is needed.")
        if not 0 < self.seconds <= 60:
            raise ConfigError(f"seconds = {self.seconds}; more than 0 and at most 60 are needed.")


def peak_samples(team: Any, level: str, kind: str, options: RooflineOptions) -> list[float]:
    """Top/s of the whole team; a multiplication and an addition are two operations."""
    steps = _FIRST_STEPS
    while True:
        _, seconds = _native.roofline.peak(team, level, kind, steps)
        if seconds >= options.seconds / 4:
            break
        steps *= 4
    steps = max(1, round(steps * options.seconds / seconds))
    runs = [_native.roofline.peak(team, level, kind, steps) for _ in range(options.repeat)]
    return [2 * operations / seconds / 1e12 for operations, seconds in runs]


def measure(threads: int, options: RooflineOptions) -> tuple[list[Metric], int]:
    """The metrics of so many threads, and the bytes of the buffer that was read."""
    team = _native.Team(threads, list(cpu_budget().pin_list(threads)))
    levels = _native.available_levels()
    stream = stream_reads(team, levels[-1], options.repeat)
    speeds = [stream["bytes"] / s / 1e9 for s in stream["seconds"]]
    metrics = [Metric.of("stream_read", "GB/s", "higher", speeds)]
    for level in levels:
        for kind in TYPES:
            if _native.roofline.has_peak(level, kind):
                samples = peak_samples(team, level, kind, options)
                metrics.append(Metric.of(f"peak.{level}.{kind}", "Top/s", "higher", samples))
    return metrics, stream["bytes"]


def roofline(options: RooflineOptions, progress: Progress = lambda text: None) -> Artifact:
    """Measures 1 to N threads, an arm each."""
    started, clock = now(), time.monotonic()
    command = ["edge-infer", "roofline", "--repeat", str(options.repeat)]
    command += ["--seconds", f"{options.seconds:g}"]
    if options.threads is not None:
        command += ["--threads", str(options.threads)]
    source, build = provenance(), edge_infer_build()
    arms = []
    for threads in range(1, (options.threads or cpu_budget().threads) + 1):
        progress(f"{threads} threads")
        metrics, size = measure(threads, options)
        arms.append(
            Arm(
                name=f"{threads} threads",
                engine=build,
                command=portable(command),
                threads=threads,
                cpus=list(cpu_budget().pin_list(threads)),
                isa=_native.available_levels()[-1],
                settings={"stream_read_bytes": size},
                metrics=metrics,
            )
        )
    return Artifact(
        kind="roofline",
        command=command,
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={"repeat": options.repeat, "seconds": options.seconds},
        provenance=source,
        arms=arms,
    )
