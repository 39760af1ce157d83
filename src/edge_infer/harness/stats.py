"""Statistics of a few noisy samples: medians and spreads, no means and no assumed distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile (0..1), interpolating linearly between order statistics.

    Raises ValueError on no samples, a NaN, or q outside [0, 1].
    """
    if not samples or not 0 <= q <= 1 or any(math.isnan(x) for x in samples):
        raise ValueError(f"quantile {q} of {len(samples)} samples")
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    fraction = position - below
    # Equal neighbours first: x + 0*(y-x) must be x even for infinities and huge values.
    if fraction == 0 or ordered[below] == ordered[above]:
        return float(ordered[below])
    return ordered[below] * (1 - fraction) + ordered[above] * fraction


def median(samples: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    return quantile(samples, 0.5)


def iqr(samples: Sequence[float]) -> float:
    """Interquartile range."""
    return quantile(samples, 0.75) - quantile(samples, 0.25)


def mad(samples: Sequence[float]) -> float:
    """Median absolute deviation from the median, unscaled."""
    middle = median(samples)
    return median([abs(x - middle) for x in samples])


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours[i] / theirs[i]: pairs from the same pass share the machine's mood.

    Raises ValueError where the lengths differ or a denominator is not positive.
    """
    if len(ours) != len(theirs) or any(x <= 0 for x in theirs):
        raise ValueError(f"{len(ours)} samples against {len(theirs)}, or a value of 0 or less")
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def bootstrap_median(
    samples: Sequence[float], *, confidence: float = 0.95, resamples: int = 5000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the median: (low, high), the same for the same seed.

    With few samples it is no narrower than their range, which is as it should be. Raises
    ValueError on no samples, a NaN, or a confidence outside (0, 1).
    """
    import numpy as np

    if not samples or not 0 < confidence < 1 or any(math.isnan(x) for x in samples):
        raise ValueError(f"a {confidence} interval of {len(samples)} samples")
    values = np.asarray(samples, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    medians = np.median(values[drawn], axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)


def spread(samples: Sequence[float]) -> float:
    """The range of fewer than five samples, the interquartile range of more."""
    return max(samples) - min(samples) if len(samples) < 5 else iqr(samples)


def shows_difference(ratios: Sequence[float], low: float, high: float) -> bool:
    """Whether paired ratios (positive) rank two arms, given the interval of their median.

    The interval must leave out 1, and the median must be farther from 1 than the passes are from
    each other, both on a logarithmic scale: 2 and 1/2 are equally far. Equal arms pass by chance
    in 9 of 100 runs of three passes, in 5 of five to seven.
    """
    if low <= 1.0 <= high:
        return False
    logarithms = [math.log(r) for r in ratios]
    return abs(median(logarithms)) > spread(logarithms)


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a rate, 95% by default: (low, high) inside [0, 1].

    Raises ValueError where successes is not in 0..n or n is 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n}")
    rate, spread = successes / n, z * z / n
    centre = rate + spread / 2
    half = z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n))
    scale = 1 + spread
    # The ends of the interval at 0 and n are exact; rounding must not carry them past.
    low = 0.0 if successes == 0 else (centre - half) / scale
    return low, 1.0 if successes == n else (centre + half) / scale
