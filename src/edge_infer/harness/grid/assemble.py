"""From a journal to an artifact: arms with their status, and what the passes show."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from typing import Any

from edge_infer.harness.comparison import compare_samples, worst_peaks
from edge_infer.harness.grid.binding import program_of
from edge_infer.harness.grid.journal import Done, Journal
from edge_infer.harness.grid.spec import ArmSpec, GridSpec
from edge_infer.harness.provenance import portable, sha256
from edge_infer.harness.record import Failure
from edge_infer.harness.schema import (
    Arm,
    Artifact,
    CheckpointIdentity,
    Comparison,
    EngineBuild,
    MemoryReport,
    Metric,
)
from edge_infer.harness.schema_grid import LEAST_PASSES, GridRun, Status


def assemble(
    spec: GridSpec,
    journal: Journal,
    models: dict[str, CheckpointIdentity | None],
    cpus: Sequence[int],
    command: list[str],
    clock: float,
) -> Artifact:
    """The artifact of a finished grid; ``clock``: when this session began (monotonic)."""
    arms = [_arm(a, spec, journal, models[a.name], cpus) for a in spec.arms]
    earlier = sum(d.run.seconds for d in journal.done if d.run.session < len(journal.sessions) - 1)
    return Artifact(
        kind="grid",
        command=portable(command),
        started_at=journal.header.started_at,
        duration_seconds=earlier + time.monotonic() - clock,
        parameters={"passes": spec.passes, "warmup": spec.warmup, "timeout": spec.timeout},
        provenance=journal.header.provenance,
        arms=arms,
        comparisons=_comparisons(spec, journal, arms),
        failures=journal.header.failures,
        grid=GridRun(
            name=spec.name,
            spec=_portable_document(spec.model_dump(mode="json", by_alias=True)),
            binding=journal.header.binding,
            baseline=spec.baseline_arm,
            sessions=journal.sessions,
            passes=[d.run for d in journal.done],
        ),
    )


def _of(journal: Journal, arm: str) -> list[Done]:
    return [d for d in journal.done if d.run.arm == arm]


def _arm(
    arm: ArmSpec,
    spec: GridSpec,
    journal: Journal,
    model: CheckpointIdentity | None,
    cpus: Sequence[int],
) -> Arm:
    done = _of(journal, arm.name)
    good = [d for d in done if d.run.good]
    reason = journal.void.get(arm.name)
    status, why = _status(reason, len(good))
    engine = next((d.engine for d in good if d.engine is not None), None)
    peaks: MemoryReport | None = None
    for one in good:
        if one.memory is not None:
            peaks = worst_peaks(peaks, one.memory)
    checkpoint = engine.checkpoint if engine is not None and model is None else model
    return Arm(
        name=arm.name,
        engine=engine.build if engine is not None else _build(arm),
        command=portable(arm.command),
        threads=engine.threads if engine is not None else None,
        cpus=list(cpus) if spec.pin else [],
        isa=engine.isa if engine is not None else None,
        settings=engine.settings if engine is not None else {},
        checkpoint=checkpoint,
        memory=peaks,
        metrics=[] if status == "void" else _metrics(spec, good),
        failures=[_failure(d) for d in done if d.run.failure is not None],
        status=status,
        status_reason=why,
        probes=done[-1].run.probes if done else [],
        unprobed=arm.no_probe,
    )


def _status(void: str | None, good: int) -> tuple[Status, str]:
    if void is not None:
        return "void", void
    if good < LEAST_PASSES:
        return "not a result", f"{good} good passes; {LEAST_PASSES} are needed"
    return "result", ""


def _metrics(spec: GridSpec, good: list[Done]) -> list[Metric]:
    found = []
    for metric in spec.metrics:
        samples = [d.run.values[metric.name] for d in good if metric.name in d.run.values]
        if samples:
            found.append(Metric.of(metric.name, metric.unit, metric.better, samples))
    return found


def _failure(done: Done) -> Failure:
    assert done.run.failure is not None
    which = f"{'warm-up' if done.run.warmup else 'pass'} {done.run.index + 1}"
    failure = done.run.failure
    return Failure(stage=failure.stage, code=failure.code, message=f"{which}: {failure.message}")


def _build(arm: ArmSpec) -> EngineBuild:
    """What can be said of a program that says nothing of itself."""
    program = program_of(arm)
    version = "unknown"
    if arm.version is not None:
        try:
            run = subprocess.run(
                arm.version, capture_output=True, text=True, errors="replace", timeout=30
            )
            version = next(iter((run.stdout + run.stderr).strip().splitlines()), "unknown")
        except (OSError, subprocess.TimeoutExpired):
            version = "unknown"
    return EngineBuild(
        name=program.name, version=version, details={"program_sha256": sha256(program)}
    )


def _comparisons(spec: GridSpec, journal: Journal, arms: list[Arm]) -> list[Comparison]:
    """Every arm against the baseline, over the passes that are good in both."""
    baseline = next(a for a in arms if a.name == spec.baseline_arm)
    theirs = _values(journal, baseline)
    found = []
    for arm in arms:
        ours = _values(journal, arm)
        both = sorted(ours.keys() & theirs.keys())
        if arm is baseline or len(both) < LEAST_PASSES:
            continue
        for metric in arm.metrics:
            made = compare_samples(
                metric,
                arm.name,
                baseline.name,
                [ours[i][metric.name] for i in both],
                [theirs[i][metric.name] for i in both],
            )
            found += [made] if made else []
    return found


def _values(journal: Journal, arm: Arm) -> dict[int, dict[str, float]]:
    """Values of the good passes by their index; none where the arm is void."""
    done = [] if arm.status == "void" else _of(journal, arm.name)
    return {d.run.index: d.run.values for d in done if d.run.good}


def _portable_document(value: Any) -> Any:
    """The spec without what names this machine's folders."""
    if isinstance(value, dict):
        return {k: _portable_document(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_portable_document(v) for v in value]
    return portable([value])[0] if isinstance(value, str) else value
