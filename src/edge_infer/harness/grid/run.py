"""The loop of a grid: pre-flight, passes in rotating order, each on the disk before the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from edge_infer.checkpoint.inspect import tensor_formats
from edge_infer.errors import ConfigError, StorageError, UnsupportedError
from edge_infer.harness import stats
from edge_infer.harness.comparison import rotation
from edge_infer.harness.files import write_whole
from edge_infer.harness.grid.assemble import assemble
from edge_infer.harness.grid.binding import binding, model_identity
from edge_infer.harness.grid.contention import preflight, target_cpus
from edge_infer.harness.grid.instructions import unavailable
from edge_infer.harness.grid.journal import Begin, Done, Engine, Header, Journal, Session, Void
from edge_infer.harness.grid.once import Outcome, end_session, run_arm, start_ticks
from edge_infer.harness.grid.spec import ArmSpec, GridSpec, MetricSpec
from edge_infer.harness.provenance import now, provenance
from edge_infer.harness.record import Failure
from edge_infer.harness.schema import Artifact, CheckpointIdentity
from edge_infer.harness.schema_grid import GridPass, GridSession


@dataclass(frozen=True)
class Step:
    """Where the grid is."""

    text: str
    done: int
    total: int
    seconds_left: float | None
    """None until something has run."""


Progress = Callable[[Step], None]


@dataclass(frozen=True)
class Run:
    """One run that the grid consists of."""

    arm: str
    index: int
    warmup: bool
    position: int


def journal_path(output: Path) -> Path:
    """The journal beside an artifact."""
    return output.with_name(output.name + ".journal.jsonl")


def schedule(spec: GridSpec) -> Iterator[Run]:
    """Every run in order: warm-up passes, then passes, the first arm another one each time."""
    names = [arm.name for arm in spec.arms]
    for warmup, passes in ((True, spec.warmup), (False, spec.passes)):
        for index in range(passes):
            for position, name in enumerate(rotation(names, index)):
                yield Run(name, index, warmup, position)


def run_grid(
    spec: GridSpec,
    output: Path,
    *,
    resume: bool = False,
    wait: float = 0.0,
    progress: Progress = lambda step: None,
    command: list[str] | None = None,
) -> Artifact:
    """Measures the grid and writes the artifact to ``output``.

    Raises ConfigError, DeviceError (busy CPUs), UnsupportedError, StorageError; what goes wrong
    in a run is in the artifact.
    """
    _refuse_existing(output)
    if not output.parent.is_dir():
        raise StorageError(f"{output.parent} is no folder.", remedy="Make it first.")
    cpus = target_cpus(spec.pin)
    runs = list(schedule(spec))
    clock = time.monotonic()

    def say(text: str) -> None:
        progress(Step(text, 0, len(runs), None))

    say("looking at programs and models")
    models = {arm.name: model_identity(arm) for arm in spec.arms}
    metrics, failures = usable_metrics(spec)
    bound = binding(spec, models)
    journal: Journal | None = None
    try:
        if resume:
            journal = Journal.resume(journal_path(output), bound)
            _end_leftover(journal)
        else:
            # Before the pre-flight makes anyone wait.
            Journal.refuse_left(journal_path(output))
        say("looking at the CPUs")
        quiet = preflight(spec.preflight, cpus, wait, say=say)
        started = now()
        if journal is None:
            source = provenance(spec.preflight.seconds)
            header = Header(started_at=started, binding=bound, provenance=source, failures=failures)
            journal = Journal.create(journal_path(output), header)
        journal.write(Session(session=GridSession(started_at=started, preflight=quiet)))
        _void_unexpected(spec, models, journal)
        for number, run in enumerate(runs):
            if not journal.has(run.arm, run.index, run.warmup) and run.arm not in journal.void:
                progress(_step(run, number, runs, journal, spec))
                _one(run, spec, cpus, metrics, models, journal)
        progress(Step("writing the artifact", len(runs), len(runs), 0.0))
        artifact = assemble(spec, journal, models, cpus, command or ["edge-infer", "grid"], clock)
        _refuse_existing(output)
        write_whole(output, artifact.model_dump_json(indent=2).encode() + b"\n")
        journal.remove()
    finally:
        if journal is not None:
            journal.close()
    return artifact


def _refuse_existing(output: Path) -> None:
    if output.exists():
        raise ConfigError(
            f"{output} exists already; artifacts are never overwritten.",
            remedy="Name another file.",
        )


def usable_metrics(spec: GridSpec) -> tuple[list[MetricSpec], list[Failure]]:
    """The metrics that can be read here, and why the others cannot.

    Raises UnsupportedError where none is left.
    """
    reason = unavailable(spec.counter) if spec.counter else None
    if reason is None:
        return list(spec.metrics), []
    left = [m for m in spec.metrics if not m.instructions]
    message = f"{spec.counter} cannot count instructions here: {reason}"
    if not left:
        raise UnsupportedError(
            message + ".", remedy="Count on another machine, or with instructions: callgrind."
        )
    return left, [Failure(stage="instructions", code="unsupported", message=message)]


def _end_leftover(journal: Journal) -> None:
    """Ends the run that the killed grid left alive, if it is still that process."""
    begun = journal.cut_short
    if begun is not None and start_ticks(begun.pid) in (begun.start_ticks, None):
        end_session(begun.pid)


def _void_unexpected(
    spec: GridSpec, models: dict[str, CheckpointIdentity | None], journal: Journal
) -> None:
    """Arms whose checkpoint is not what the spec expects are out before they run."""
    for arm in spec.arms:
        identity = models[arm.name]
        if arm.expect is None or identity is None or arm.name in journal.void:
            continue
        digests = {f.name: f.sha256 for f in identity.files}
        found = arm.expect.violations(tensor_formats(arm.model or ""), digests)
        if found:
            journal.write(Void(arm=arm.name, reason="checkpoint: " + "; ".join(found)))


def _one(
    run: Run,
    spec: GridSpec,
    cpus: list[int],
    metrics: list[MetricSpec],
    models: dict[str, CheckpointIdentity | None],
    journal: Journal,
) -> None:
    """Runs once and writes down what came of it."""
    arm = next(a for a in spec.arms if a.name == run.arm)

    def started(pid: int) -> None:
        journal.write(Begin(arm=arm.name, pid=pid, start_ticks=start_ticks(pid) or 0))

    outcome = run_arm(arm, spec, cpus, metrics, started)
    engine = _engine(outcome)
    journal.write(Done(run=_record(run, outcome, journal), memory=outcome.memory, engine=engine))
    reason = _why_void(arm, outcome, engine, models[arm.name], journal)
    if reason is not None:
        journal.write(Void(arm=arm.name, reason=reason))


def _record(run: Run, outcome: Outcome, journal: Journal) -> GridPass:
    memory = outcome.memory
    peaks = (
        {}
        if memory is None
        else {
            "peak_anonymous": memory.peak_anonymous,
            "peak_file_backed": memory.peak_file_backed,
            "peak_pss": memory.peak_pss or 0,
        }
    )
    return GridPass(
        arm=run.arm,
        index=run.index,
        warmup=run.warmup,
        position=run.position,
        session=len(journal.sessions) - 1,
        started_at=outcome.started_at,
        seconds=outcome.seconds,
        exit_status=outcome.exit_status,
        values=outcome.values,
        memory=peaks,
        processes=outcome.processes,
        contention=outcome.contention,
        probes=outcome.probes,
        failure=outcome.failure,
    )


def _engine(outcome: Outcome) -> Engine | None:
    """What the program wrote about itself, where it wrote an artifact of this schema."""
    if outcome.failure is not None or not outcome.output.stdout.lstrip().startswith("{"):
        return None
    try:
        arm = Artifact.model_validate_json(outcome.output.stdout).arms[0]
    except (ValidationError, IndexError):
        return None
    return Engine(
        build=arm.engine,
        threads=arm.threads,
        isa=arm.isa,
        settings=arm.settings,
        checkpoint=arm.checkpoint,
    )


def _why_void(
    arm: ArmSpec,
    outcome: Outcome,
    engine: Engine | None,
    model: CheckpointIdentity | None,
    journal: Journal,
) -> str | None:
    """Why nothing that this arm measures may count, or None."""
    if outcome.failure is not None:
        return None
    for probe in outcome.probes:
        if not probe.held:
            return f"probe {probe.probe}: expected {probe.expected}, found {probe.found!r}"
    if engine is None:
        return None
    if model is not None and engine.checkpoint is not None:
        named = {f.name: f.sha256 for f in model.files}
        read = {f.name: f.sha256 for f in engine.checkpoint.files}
        if named != read:
            return f"the engine read {engine.checkpoint.name!r}, other files than {model.name!r}"
    for done in journal.done:
        if done.run.arm == arm.name and done.engine is not None:
            if done.engine.build != engine.build:
                return "the program changed between two passes"
            break
    return None


def _step(run: Run, number: int, runs: list[Run], journal: Journal, spec: GridSpec) -> Step:
    took: dict[str, list[float]] = {}
    for done in journal.done:
        took.setdefault(done.run.arm, []).append(done.run.seconds)
    left = None
    if took:
        anything = stats.median([s for seconds in took.values() for s in seconds])
        typical = {name: stats.median(seconds) for name, seconds in took.items()}
        coming = [r for r in runs[number:] if r.arm not in journal.void]
        left = sum(typical.get(r.arm, anything) for r in coming)
    passes = spec.warmup if run.warmup else spec.passes
    what = "warm-up" if run.warmup else "pass"
    return Step(f"{what} {run.index + 1} of {passes}: {run.arm}", number, len(runs), left)
