"""Several comparisons in one plot: decode and prefill beside the peers, and what memory allows.

The limit of a decode step is that every weight is read once: the streaming read of the same run,
divided by the bytes of the weights. Context is not counted in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edge_infer.errors import ConfigError
from edge_infer.harness.report.collect import Loaded
from edge_infer.harness.report.figures import digits
from edge_infer.harness.report.plots import new_figure, png
from edge_infer.harness.report.tables import Table
from edge_infer.harness.schema import Arm, Artifact, Metric

PANELS = {"decode": "decode", "decode.together": "several sequences, in all", "prefill": "prefill"}


@dataclass(frozen=True)
class Pair:
    """One metric of one comparison; ``limit`` in tok/s, for a decode of one sequence."""

    label: str
    ours: Metric
    theirs: Metric
    limit: float | None


def limit(arm: Arm) -> float | None:
    """tok/s if the weights were read as fast as memory streams; None where it was not measured."""
    found = [arm.metric(name) for name in ("decode", "stream_read", "weights_read")]
    decode, stream, read = (None if m is None else m.median for m in found)
    return decode * stream / read if decode and stream and read else None


def _model(arm: Arm) -> str:
    """Its name without what a converted copy or a file has behind it."""
    name = arm.checkpoint.name if arm.checkpoint is not None else ""
    return re.sub(r"(-[0-9a-f]{16}|\.gguf)$", "", name)


def label(artifact: Artifact) -> str:
    """Both models, and the settings that differ from a comparison's defaults."""
    ours, theirs = artifact.arms[:2]
    parts = [f"{_model(ours)}, {theirs.name} {_model(theirs)}".strip()]
    if artifact.parameters.get("context"):
        parts.append(f"after {artifact.parameters['context']} tokens")
    levels = artifact.provenance.machine.isa_levels
    if ours.isa and levels and ours.isa != levels[-1]:
        parts.append(f"both limited to {ours.isa}")
    elif ours.isa:  # two machines may have measured the same
        parts.append(f"at level {ours.isa}")
    return "; ".join(parts)


def pairs(loaded: Sequence[Loaded], metric: str) -> list[Pair]:
    """One for each comparison that has the metric on both sides."""
    found = []
    for one in loaded:
        if one.artifact.kind != "compare":
            raise ConfigError(f"{one.name} is no comparison; only those are plotted together.")
        ours, theirs = one.artifact.arms[:2]
        mine, peer = ours.metric(metric), theirs.metric(metric)
        if mine is not None and peer is not None:
            ceiling = limit(ours) if metric == "decode" else None
            found.append(Pair(label(one.artifact), mine, peer, ceiling))
    return found


def peers_table(loaded: Sequence[Loaded]) -> Table:
    """What the plot shows, in figures."""
    rows = []
    for metric, title in PANELS.items():
        for pair in pairs(loaded, metric):
            ceiling = "" if pair.limit is None else digits(pair.limit)
            values = [digits(pair.ours.median), digits(pair.theirs.median), ceiling]
            rows.append([title, pair.label, *values])
    columns = ["tok/s", "compared", "edge-infer", "the peer", "limit of the memory"]
    return Table("peers", columns, rows)


def peers_plot(loaded: Sequence[Loaded]) -> bytes:
    """A PNG: a panel for each metric, a pair of bars for each comparison, samples as dots.

    Raises ConfigError where nothing can be drawn, UnsupportedError without matplotlib.
    """
    panels = {title: found for m, title in PANELS.items() if (found := pairs(loaded, m))}
    if not panels:
        raise ConfigError("None of these artifacts compares a speed.")
    heights = [0.9 + 0.5 * len(found) for found in panels.values()]
    figure = new_figure(9.0, sum(heights))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (title, found) in zip(axes, panels.items(), strict=True):
        for row, pair in enumerate(found):
            for offset, metric, color in (
                (-0.19, pair.ours, "tab:blue"),
                (0.19, pair.theirs, "tab:orange"),
            ):
                at = row + offset
                ax.barh(at, metric.median, height=0.34, color=color, alpha=0.6)
                ax.plot(metric.samples, [at] * len(metric.samples), "o", color=color, markersize=3)
            if pair.limit is not None:
                ax.plot([pair.limit] * 2, [row - 0.42, row + 0.42], "k--", linewidth=1.2)
        ax.set_yticks(
            range(len(found)), [pair.label.replace(", ", "\n", 1) for pair in found], fontsize=7
        )
        ax.set_ylim(len(found) - 0.5, -0.5)
        ax.set_xlim(left=0)
        ax.set_xlabel(f"{title}, tok/s")
        ax.grid(axis="x", alpha=0.3)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color="tab:blue", alpha=0.6, label="edge-infer"),
        Patch(color="tab:orange", alpha=0.6, label="the peer"),
        Line2D([], [], color="black", linestyle="--", label="all weights at the streaming rate"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=8)
    return png(figure)
