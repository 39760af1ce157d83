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


def test_inside_spread() -> None:
    assert stats.inside_spread([0.9, 1.1, 1.2])
    assert not stats.inside_spread([1.01, 1.1])
    assert not stats.inside_spread([0.8, 0.99])
