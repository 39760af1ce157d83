"""Float matrices to the packed layout.

Per group of 32, 64 or 128 weights, the scale (and minimum) is the one that minimises
``sum_k importance[k] * (w[k] - stored value[k])^2``: a sweep over candidate scales, each with its
least-squares solution, refined by alternating codes and scale, and compared after rounding to fp16.
Without an importance every weight counts the same, which is the right choice when nothing is known
about the activations: for inputs of equal power the expected squared error of the output is
exactly that sum.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import edge_infer._native as _native


class Packed(NamedTuple):
    """Arrays in the packed layout of one matrix."""

    codes: npt.NDArray[Any]  # uint8 or int8 [N/16, lines, 64]
    scales: npt.NDArray[np.float16]  # [N/16, K/group, 16]
    minimums: npt.NDArray[np.float16] | None  # like scales


def default_threads() -> int:
    """Quantizer threads: the CPUs of this process."""
    return max(1, len(os.sched_getaffinity(0)))


def quantize(
    weights: npt.NDArray[Any],
    dtype: str,
    *,
    bits: int,
    group_size: int,
    symmetric: bool,
    name: str = "weights",
    first_row: int = 0,
    importance: npt.NDArray[np.float32] | None = None,
    threads: int | None = None,
) -> Packed:
    """Quantizes [N, K] weights.

    ``weights`` is float32 for dtype "F32", float16 or its bits for "F16", uint16 bits for "BF16".
    ``importance`` is one weight per input channel, f32 [K]. 8-bit codes are always symmetric here.
    The result does not depend on the machine or the number of threads. Raises CheckpointError
    naming ``name`` and the row (counted from ``first_row``) for NaN, infinity and values beyond
    what an fp16 scale reaches.
    """
    if weights.dtype == np.float16:
        weights = weights.view(np.uint16)
    if importance is not None:
        importance = np.ascontiguousarray(importance, np.float32)
        peak = float(importance.max(initial=0.0))
        if 0 < peak < np.inf:  # only ratios matter; this keeps sums away from overflow
            importance = importance / np.float32(peak)
    codes, scales, minimums = _native.quantize_matrix(
        weights,
        dtype,
        bits,
        group_size,
        bits < 8 and not symmetric,
        importance,
        threads or default_threads(),
        name,
        first_row,
    )
    return Packed(
        codes.view(np.int8) if bits == 8 else codes,
        scales.view(np.float16),
        None if minimums is None else minimums.view(np.float16),
    )
