"""How numbers are written: one place for tables, plots and pages."""

from __future__ import annotations

from edge_infer.harness.schema import Metric
from edge_infer.harness.schema_grid import Interval


def digits(value: float, significant: int = 3) -> str:
    """At least three significant digits, and never an exponent: 91.1, 3112, 0.0213."""
    if value == 0:
        return "0"
    text = f"{abs(value):.{significant - 1}e}"
    exponent = int(text.partition("e")[2])
    return f"{value:.{max(0, significant - 1 - exponent)}f}"


def figure(value: float, unit: str) -> str:
    """A value with its unit: bytes in powers of ten, short times in milliseconds."""
    if unit == "bytes":
        for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= size:
                return f"{digits(value / size)} {name}"
        return f"{value:.0f} bytes"
    if unit == "s" and abs(value) < 1:
        return f"{digits(value * 1e3)} ms"
    if unit == "ratio":
        return digits(value)
    return f"{digits(value)} {unit}"


def metric_figure(metric: Metric) -> str:
    """Median, range and number of samples; the range without units that it shares."""
    text = figure(metric.median, metric.unit)
    if len(metric.samples) == 1:
        return text
    low, high = figure(metric.min, metric.unit), figure(metric.max, metric.unit)
    number, _, unit = low.partition(" ")
    if unit and {high.partition(" ")[2], text.partition(" ")[2]} == {unit}:
        low, high = number, high.partition(" ")[0]
    return f"{text} ({low} to {high}, n={len(metric.samples)})"


def interval_figure(interval: Interval) -> str:
    """An interval with its confidence."""
    low, high = digits(interval.low), digits(interval.high)
    return f"{low} to {high} ({interval.confidence:.0%})"
