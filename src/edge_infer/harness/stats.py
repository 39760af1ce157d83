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


def inside_spread(ratios: Sequence[float]) -> bool:
    """True where the paired ratios fall on both sides of 1: no difference was shown."""
    return min(ratios) <= 1.0 <= max(ratios)


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
