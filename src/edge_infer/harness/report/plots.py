"""Plots of an artifact as PNG: every sample, not only medians."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from edge_infer.harness.files import missing_package
from edge_infer.harness.schema import Artifact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BYTES = 1e6


def plots(artifact: Artifact) -> dict[str, bytes]:
    """PNG images by a short name (letters, digits, dashes).

    One a metric; for a load run also latencies over clients and memory over time. Raises
    UnsupportedError where matplotlib is not installed.
    """
    made: dict[str, bytes] = {}
    names = dict.fromkeys(m.name for arm in artifact.arms for m in arm.metrics)
    for name in names:
        short = _short(name)
        # "a.b" and "a-b" are two metrics and want two files.
        short += f"-{len(made)}" if short in made else ""
        made[short] = _draw(_metric(artifact, name), 1.2 + 0.45 * len(artifact.arms))
    if any(arm.load for arm in artifact.arms):
        made["latency"] = _draw(_latency(artifact), 3.0)
    if any(arm.load is not None and arm.load.memory for arm in artifact.arms):
        made["memory-over-time"] = _draw(_memory(artifact), 3.0)
    return made


def _short(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower() or "metric"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches. Raises UnsupportedError where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_package("matplotlib") from None
    # Without pyplot: no global state, no display.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw(paint: Callable[[Axes], None], height: float) -> bytes:
    figure = new_figure(7.0, height)
    paint(figure.subplots())
    return png(figure)


def png(figure: Figure) -> bytes:
    """The figure's image."""
    image = io.BytesIO()
    # Without the program's version, so that the same artifact gives the same bytes.
    figure.savefig(image, format="png", dpi=110, metadata={"Software": None})
    return image.getvalue()


def _metric(artifact: Artifact, name: str) -> Callable[[Axes], None]:
    """Each arm a row: its samples as dots, the median as a bar."""

    def paint(axes: Axes) -> None:
        labels = []
        for row, arm in enumerate(artifact.arms):
            metric = arm.metric(name)
            labels.append(arm.name if arm.status == "result" else f"{arm.name}\n({arm.status})")
            if metric is None:
                continue
            size = BYTES if metric.unit == "bytes" else 1.0
            unit = "MB" if metric.unit == "bytes" else metric.unit
            color = "tab:blue" if arm.status == "result" else "tab:gray"
            samples = [s / size for s in metric.samples]
            axes.plot(samples, [row] * len(samples), "o", color=color, alpha=0.5)
            axes.plot([metric.median / size], [row], "|", color="black", markersize=18)
            axes.set_xlabel(f"{name}, {unit} ({metric.better} is better)")
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.3)

    return paint


def _latency(artifact: Artifact) -> Callable[[Axes], None]:
    """Percentiles over the number of clients."""

    def paint(axes: Axes) -> None:
        runs = sorted(
            (a.load for a in artifact.arms if a.load is not None), key=lambda run: run.clients
        )
        for title, pick in (
            ("first token", lambda run: run.time_to_first_token),
            ("between tokens", lambda run: run.inter_token),
        ):
            for style, q in (("-", "p50"), (":", "p99")):
                points = [(r.clients, getattr(pick(r), q)) for r in runs if pick(r) is not None]
                if points:
                    x, y = zip(*points, strict=True)
                    axes.plot(x, y, style, marker="o", label=f"{title} {q}")
        axes.set(xlabel="clients", ylabel="s", xscale="log", yscale="log")
        axes.legend()
        axes.grid(alpha=0.3)

    return paint


def _memory(artifact: Artifact) -> Callable[[Axes], None]:
    """Anonymous memory of the server over time, a line for each number of clients."""

    def paint(axes: Axes) -> None:
        for arm in artifact.arms:
            if arm.load is not None and arm.load.memory:
                points = arm.load.memory
                axes.plot(
                    [p.seconds for p in points],
                    [p.anonymous / BYTES for p in points],
                    label=arm.name,
                )
        axes.set(xlabel="s", ylabel="anonymous memory, MB")
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)

    return paint
