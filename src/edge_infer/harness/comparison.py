"""Comparing arms that ran in turn: who goes first, ratios pass by pass, and what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from edge_infer.harness import stats
from edge_infer.harness.schema import Arm, Comparison, MemoryReport, Metric
from edge_infer.harness.schema_grid import Interval

CONFIDENCE, RESAMPLES, SEED = 0.95, 5000, 0


def rotation(arms: Sequence[str], index: int) -> list[str]:
    """The order of the arms in pass ``index``: each is first equally often."""
    shift = index % len(arms)
    return [*arms[shift:], *arms[:shift]]


def median_interval(samples: Sequence[float]) -> Interval:
    """The bootstrap interval of the median that every comparison carries."""
    low, high = stats.bootstrap_median(
        samples, confidence=CONFIDENCE, resamples=RESAMPLES, seed=SEED
    )
    return Interval(low=low, high=high, confidence=CONFIDENCE, resamples=RESAMPLES, seed=SEED)


def verdict(ratio: Metric) -> Literal["better", "worse", "inside the spread"]:
    """Better or worse only where :func:`edge_infer.harness.stats.shows_difference`."""
    interval = median_interval(ratio.samples)
    if not stats.shows_difference(ratio.samples, interval.low, interval.high):
        return "inside the spread"
    higher = ratio.median > 1
    return "better" if higher == (ratio.better == "higher") else "worse"


def ranking(found: Comparison) -> str:
    """The verdict as people are to read it."""
    return "NOT A RANKING" if found.verdict == "inside the spread" else found.verdict


def compare_samples(
    metric: Metric, arm: str, baseline: str, ours: Sequence[float], theirs: Sequence[float]
) -> Comparison | None:
    """``ours`` against ``theirs``, pass by pass; None where a ratio has no meaning (0 or less)."""
    if not ours or any(x <= 0 for x in (*ours, *theirs)):
        return None
    ratio = Metric.of(metric.name, "ratio", metric.better, stats.paired_ratios(ours, theirs))
    return Comparison(
        metric=metric.name,
        arm=arm,
        baseline=baseline,
        ratio=ratio,
        verdict=verdict(ratio),
        interval=median_interval(ratio.samples),
    )


def comparisons(arm: Arm, baseline: Arm) -> list[Comparison]:
    """Each metric that both arms have, as ratios pass by pass."""
    found = []
    for ours in arm.metrics:
        theirs = baseline.metric(ours.name)
        if theirs is not None and len(theirs.samples) == len(ours.samples):
            made = compare_samples(ours, arm.name, baseline.name, ours.samples, theirs.samples)
            found += [made] if made else []
    return found


def worst_peaks(first: MemoryReport | None, second: MemoryReport) -> MemoryReport:
    """The report with the larger anonymous peak: what the arm can need."""
    return second if first is None or second.peak_anonymous > first.peak_anonymous else first
