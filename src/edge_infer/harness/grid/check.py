"""``--check``: a grid as a gate. Only what is steady enough to gate is gated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from edge_infer.harness.grid.documents import read_document
from edge_infer.harness.grid.spec import Part
from edge_infer.harness.record import Record
from edge_infer.harness.schema import Arm, Artifact, Metric

WIDEST = 0.05
"""Widest relative range, (max - min) / median, of samples that a bound may be held against."""


class Bound(Part):
    """One bound on a metric of one arm, or of every arm."""

    metric: str
    arm: str | None = None
    max: float | None = None
    min: float | None = None
    spread: float = Field(default=WIDEST, gt=0, le=0.5)
    """Widest relative range of the samples at which the bound is held against them."""

    @model_validator(mode="after")
    def _bounds_something(self) -> Bound:
        if self.max is None and self.min is None:
            raise ValueError(f"the bound on {self.metric!r} has neither max nor min")
        return self


class Expected(Part):
    """The document of ``--check``."""

    bounds: list[Bound] = Field(min_length=1)


class Finding(Record):
    """What came of one bound on one arm."""

    metric: str
    arm: str
    outcome: Literal["held", "violated", "refused"]
    """"refused": nothing can be said, which is no pass."""
    message: str


def read_expected(path: Path) -> Expected:
    """Reads the document. Raises ConfigError in words."""
    return read_document(path, Expected)


def check(artifact: Artifact, expected: Expected) -> list[Finding]:
    """Holds every bound against the artifact. A bound that finds nothing is refused."""
    found = []
    for bound in expected.bounds:
        arms = [a for a in artifact.arms if bound.arm in (None, a.name)]
        if not arms:
            nobody = f"there is no arm {bound.arm!r}"
            found.append(_finding(bound, bound.arm or "", "refused", nobody))
        found += [_hold(bound, arm) for arm in arms]
    return found


def _finding(
    bound: Bound, arm: str, outcome: Literal["held", "violated", "refused"], message: str
) -> Finding:
    return Finding(metric=bound.metric, arm=arm, outcome=outcome, message=message)


def _hold(bound: Bound, arm: Arm) -> Finding:
    if arm.status != "result":
        return _finding(bound, arm.name, "refused", f"{arm.status}: {arm.status_reason}")
    metric = arm.metric(bound.metric)
    if metric is None:
        return _finding(bound, arm.name, "refused", "was not measured")
    # The worst sample, not the median: a gate that passes by the median passes by luck.
    for limit, worst, beyond in (
        (bound.max, metric.max, bound.max is not None and metric.max > bound.max),
        (bound.min, metric.min, bound.min is not None and metric.min < bound.min),
    ):
        if limit is None:
            continue
        wide = relative_range(metric)
        if wide > bound.spread:
            return _finding(
                bound,
                arm.name,
                "refused",
                f"the samples are {wide:.1%} apart, more than the {bound.spread:.1%} at which "
                f"a bound on {metric.unit} means something",
            )
        if beyond:
            side = "above" if limit is bound.max else "below"
            message = f"{worst:g} {metric.unit} is {side} the bound of {limit:g}"
            return _finding(bound, arm.name, "violated", message)
    bounds = " to ".join(f"{x:g}" for x in (bound.min, bound.max) if x is not None)
    return _finding(bound, arm.name, "held", f"{metric.median:g} {metric.unit} ({bounds})")


def relative_range(metric: Metric) -> float:
    """(max - min) / |median|; 0 for equal samples."""
    apart = metric.max - metric.min
    if apart == 0:
        return 0.0
    return apart / abs(metric.median) if metric.median else float("inf")
