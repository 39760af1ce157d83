"""Medians and spreads against numpy, and what must be refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_infer.harness import stats


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10, 101])
def test_quantiles_agree_with_numpy(n: int) -> None:
    samples = list(np.random.default_rng(n).lognormal(size=n))
    for q in (0.0, 0.1, 0.25, 0.5, 0.75, 0.99, 1.0):
        assert math.isclose(stats.quantile(samples, q), float(np.quantile(samples, q)))


def test_spread() -> None:
    samples = [1.0, 2.0, 3.0, 4.0, 100.0]
    assert stats.median(samples) == 3.0
    assert stats.iqr(samples) == 2.0
    assert stats.mad(samples) == 1.0


@pytest.mark.parametrize("samples", [[], [1.0, math.nan]])
def test_no_number_out_of_nothing(samples: list[float]) -> None:
    with pytest.raises(ValueError):
        stats.median(samples)


def test_quantile_out_of_range() -> None:
    with pytest.raises(ValueError):
        stats.quantile([1.0], 1.5)


def test_paired_ratios_keep_the_pairs() -> None:
    # Both halve in the second pass: the machine slowed down, the engines did not change places.
    assert stats.paired_ratios([20.0, 10.0], [10.0, 5.0]) == [2.0, 2.0]
    with pytest.raises(ValueError):
        stats.paired_ratios([1.0], [1.0, 2.0])
    with pytest.raises(ValueError):
        stats.paired_ratios([1.0], [0.0])


def interval(ratios: list[float]) -> tuple[float, float]:
    return stats.bootstrap_median(ratios, resamples=1000)


def test_bootstrap_is_reproducible_and_holds_the_median() -> None:
    samples = list(np.random.default_rng(3).lognormal(size=15))
    low, high = interval(samples)
    assert (low, high) == interval(samples)
    assert min(samples) <= low <= stats.median(samples) <= high <= max(samples)
    assert interval([2.0]) == (2.0, 2.0)
    for bad in ([], [math.nan]):
        with pytest.raises(ValueError):
            stats.bootstrap_median(bad)


def test_bootstrap_covers_the_true_median() -> None:
    # The true median of lognormal(0, 0.1) is 1; an interval of 95% may miss it now and then.
    random = np.random.default_rng(5)
    draws = [random.lognormal(sigma=0.1, size=15).tolist() for _ in range(200)]
    covered = [low <= 1 <= high for low, high in map(interval, draws)]
    assert sum(covered) / len(covered) > 0.85


@pytest.mark.parametrize(
    ("ratios", "ranks"),
    [
        ([1.2, 1.05, 1.3], False),  # three passes farther apart than the median is from 1
        ([1.2, 1.15, 1.25], True),
        ([0.9, 1.1, 1.2], False),
        ([1.01, 1.3, 1.31, 1.02, 1.33], True),
        ([1.01, 1.5, 1.02, 1.03, 1.6], False),  # every pass above 1, but all over the place
        ([0.8, 0.79, 0.81, 0.8, 0.8], True),
        ([4.7, 4.9, 9.5], True),  # far apart, but nowhere near 1
        ([1 / 4.7, 1 / 4.9, 1 / 9.5], True),
    ],
)
def test_what_ranks_two_arms(ratios: list[float], ranks: bool) -> None:
    assert stats.shows_difference(ratios, *interval(ratios)) is ranks


@pytest.mark.parametrize(("passes", "most"), [(3, 0.13), (5, 0.08), (7, 0.08), (15, 0.05)])
def test_equal_arms_are_seldom_ranked(passes: int, most: float) -> None:
    random = np.random.default_rng(passes)
    runs = [list(random.lognormal(sigma=0.1, size=passes)) for _ in range(400)]
    ranked = sum(stats.shows_difference(run, *interval(run)) for run in runs)
    assert ranked / len(runs) <= most
