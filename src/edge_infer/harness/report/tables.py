"""Tables out of an artifact, as plain text cells; Markdown and HTML come from the same tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_infer.harness.comparison import median_interval, ranking
from edge_infer.harness.record import Record
from edge_infer.harness.report.figures import digits, figure, interval_figure, metric_figure
from edge_infer.harness.schema import Arm, Artifact
from edge_infer.harness.schema_load import Distribution


@dataclass(frozen=True)
class Table:
    """``name`` is what a page asks for ("metrics")."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def arm_title(arm: Arm) -> str:
    """Its name, with a label where it is no result."""
    return arm.name if arm.status == "result" else f"{arm.name} ({arm.status.upper()})"


def metrics(artifact: Artifact) -> Table | None:
    """One row a metric, one column an arm."""
    names = list(dict.fromkeys(m.name for arm in artifact.arms for m in arm.metrics))
    if not names:
        return None
    rows = []
    for name in names:
        cells = [arm.metric(name) for arm in artifact.arms]
        rows.append([name, *("" if cell is None else metric_figure(cell) for cell in cells)])
    notes = [f"{a.name}: {a.status}: {a.status_reason}" for a in artifact.arms if a.status_reason]
    return Table("metrics", ["", *(arm_title(a) for a in artifact.arms)], rows, notes)


def comparisons(artifact: Artifact) -> Table | None:
    """Ratios pass by pass."""
    rows = [
        [
            found.metric,
            f"{found.arm} / {found.baseline}",
            digits(found.ratio.median),
            f"{digits(found.ratio.min)} to {digits(found.ratio.max)}",
            interval_figure(found.interval or median_interval(found.ratio.samples)),
            str(len(found.ratio.samples)),
            ranking(found),
        ]
        for found in artifact.comparisons
    ]
    columns = ["metric", "arms", "median ratio", "range", "interval", "passes", "verdict"]
    return Table("comparisons", columns, rows) if rows else None


def memory(artifact: Artifact) -> Table | None:
    """Peaks of each arm, and its exact snapshots."""
    rows = []
    for arm in artifact.arms:
        if arm.memory is None:
            continue
        for moment in arm.memory.snapshots:
            parts = (moment.anonymous, moment.file_backed, moment.rss, moment.pss)
            label = "exact, " + moment.moment
            processes = str(len(moment.processes))
            rows.append([arm.name, label, *(figure(x, "bytes") for x in parts), processes])
        peak = arm.memory
        highest = (peak.peak_anonymous, peak.peak_file_backed, peak.peak_rss)
        pss = "" if peak.peak_pss is None else figure(peak.peak_pss, "bytes")
        rows.append([arm.name, "highest", *(figure(x, "bytes") for x in highest), pss, ""])
    columns = ["arm", "moment", "anonymous", "file-backed", "resident", "PSS", "processes"]
    return Table("memory", columns, rows) if rows else None


def _spread(found: Distribution | None) -> list[str]:
    if found is None:
        return ["", "", ""]
    return [figure(x, found.unit) for x in (found.p50, found.p95, found.p99)]


def load(artifact: Artifact) -> Table | None:
    """One row a number of clients."""
    rows = []
    for arm in artifact.arms:
        if arm.load is not None:
            run = arm.load
            rate = figure(run.generated_tokens / run.seconds, "tok/s")
            rows.append([str(run.clients), rate, *_spread(run.time_to_first_token)])
            rows[-1] += [*_spread(run.inter_token), f"{run.finished}", f"{run.failed}"]
    columns = ["clients", "total"]
    columns += [f"first token {p}" for p in ("p50", "p95", "p99")]
    columns += [f"between tokens {p}" for p in ("p50", "p95", "p99")]
    return Table("load", [*columns, "finished", "failed"], rows) if rows else None


def contention(artifact: Artifact) -> Table | None:
    """How many passes of each arm ran undisturbed."""
    if artifact.grid is None:
        return None
    rows = []
    for arm in artifact.arms:
        passes = [p for p in artifact.grid.passes if p.arm == arm.name and not p.warmup]
        labels = [p.contention.label for p in passes if p.contention is not None]
        worst = max(
            (p.contention.others + p.contention.steal for p in passes if p.contention), default=0.0
        )
        rows.append(
            [
                arm.name,
                str(sum(p.good for p in passes)),
                str(len(passes) - sum(p.good for p in passes)),
                *(str(labels.count(label)) for label in ("quiet", "contended")),
                f"{worst:.0%}",
            ]
        )
    columns = ["arm", "good passes", "failed", "quiet", "contended", "most used by others"]
    return Table("passes", columns, rows)


def failures(artifact: Artifact) -> Table | None:
    """What could not be measured."""
    rows = [["", f.stage, f.code, f.message] for f in artifact.failures]
    rows += [[a.name, f.stage, f.code, f.message] for a in artifact.arms for f in a.failures]
    return Table("failures", ["arm", "stage", "code", "message"], rows) if rows else None


_SHOWN = {"memory", "load", "checkpoint", "engine"}


def details(artifact: Artifact) -> Table | None:
    """The numbers of every other part that an arm carries (fidelity, tasks, a profile)."""
    rows: list[list[str]] = []
    for arm in artifact.arms:
        for part in type(arm).model_fields:
            value = getattr(arm, part)
            if part not in _SHOWN and isinstance(value, Record):
                rows += [[arm.name, name, text] for name, text in _scalars(part, value)]
    return Table("details", ["arm", "", ""], rows) if rows else None


def profile(artifact: Artifact) -> Table | None:
    """Where the time of each profiled step went."""
    rows: list[list[str]] = []
    for arm in artifact.arms:
        for step in arm.profiles or []:
            label = f"{step.phase}, {digits(step.rows)} rows after {step.context} tokens"
            for part in step.parts:
                share = f"{part.seconds / step.seconds:.1%}"
                rows.append([arm.name, label, part.name, figure(part.seconds, "s"), share])
    return Table("profile", ["arm", "step", "part", "time", "share"], rows) if rows else None


def _scalars(prefix: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Record):
        names = type(value).model_fields
        return [pair for n in names for pair in _scalars(f"{prefix}.{n}", getattr(value, n))]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return [(prefix, str(value))] if value is not None else []
    if isinstance(value, int):
        return [(prefix, str(value))]
    return [(prefix, digits(value))] if isinstance(value, float) else []


ALL: dict[str, Callable[[Artifact], Table | None]] = {
    "metrics": metrics,
    "comparisons": comparisons,
    "load": load,
    "memory": memory,
    "passes": contention,
    "profile": profile,
    "details": details,
    "failures": failures,
}


def tables(artifact: Artifact, names: Sequence[str] = tuple(ALL)) -> list[Table]:
    """The named tables that the artifact has something for. Raises KeyError for another name."""
    made = [ALL[name](artifact) for name in names]
    return [table for table in made if table is not None]


def facts(artifact: Artifact) -> list[tuple[str, str]]:
    """Where and how the artifact was made."""
    source = artifact.provenance
    machine, build = source.machine, source.edge_infer
    commit = "" if build.commit is None else f" {build.commit[:12]}"
    changed = " with changes" if build.dirty else ""
    found = [
        ("command", " ".join(artifact.command)),
        ("started", artifact.started_at),
        ("machine", f"{machine.cpu}, {len(machine.affinity)} CPUs, {machine.kernel}"),
        ("before the run", f"{machine.load.busy:.0%} busy, {machine.load.steal:.0%} stolen"),
        ("edge-infer", f"{build.version}{commit}{changed}, {build.compiler}"),
    ]
    for arm in artifact.arms:
        model = "" if arm.checkpoint is None else f", {arm.checkpoint.name}"
        threads = "" if arm.threads is None else f", {arm.threads} threads"
        found.append((arm.name, f"{arm.engine.name} {arm.engine.version}{threads}{model}"))
    return found
