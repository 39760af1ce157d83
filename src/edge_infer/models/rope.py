"""Rotary position embedding: inverse frequencies of the scaling variants.

Formulas: RoFormer (arXiv:2104.09864); position interpolation (arXiv:2306.15595); YaRN
(arXiv:2309.00071); the Llama 3.1 rule as published with that model (`rope_type: llama3`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_infer.errors import CheckpointError, UnsupportedError


@dataclass(frozen=True)
class RopeTable:
    """``inverse_frequency``: radians per position for each rotated pair; ``axis``: which position
    axis drives each pair (empty: axis 0); ``attention_factor`` multiplies cos and sin."""

    inverse_frequency: tuple[float, ...]
    axis: tuple[int, ...] = ()
    attention_factor: float = 1.0

    def axes(self) -> tuple[int, ...]:
        return self.axis or (0,) * len(self.inverse_frequency)


def finite(value: float) -> bool:
    """Whether a number, perhaps an integer of any size, is finite as float32."""
    return abs(value) <= float(np.finfo(np.float32).max)


def rope_table(
    head_dim: int, theta: float, *, scaling: dict[str, Any] | None = None, partial: float = 1.0
) -> RopeTable:
    """The table for ``int(head_dim * partial)`` rotated dims.

    ``scaling`` is the Hugging Face ``rope_scaling`` / ``rope_parameters`` object. Raises
    UnsupportedError for a type that is not implemented, CheckpointError for a damaged one.
    """
    if not 0 < partial <= 1 or not (np.float32(theta) > 0 and finite(theta)):
        raise CheckpointError(f"RoPE over {partial} of a head with theta {theta} makes no sense.")
    dims = int(head_dim * partial) // 2 * 2
    if dims < 2:
        raise CheckpointError(f"RoPE over {dims} of {head_dim} dims makes no sense.")
    exponent = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    frequency = (1.0 / np.power(np.float32(theta), exponent)).astype(np.float32)
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) or "default"
    factor = 1.0
    axis: tuple[int, ...] = ()
    try:
        if kind == "linear":
            with np.errstate(over="ignore"):
                frequency = frequency / np.float32(_positive(scaling, "factor"))
        elif kind == "llama3":
            frequency = _llama3(frequency, scaling)
        elif kind == "yarn":
            frequency, factor = _yarn(frequency, dims, theta, scaling)
        elif kind not in ("default", "mrope"):
            raise UnsupportedError(
                f"RoPE scaling {kind!r} is not implemented.",
                remedy="Supported: default, linear, llama3, yarn, mrope.",
            )
        sections = scaling.get("mrope_section")
        if sections:
            counts = [int(n) for n in sections]
            if min(counts) < 0 or sum(counts) != dims // 2:
                raise CheckpointError(f"mrope_section {sections} does not add up to {dims // 2}.")
            axis = tuple(a for a, n in enumerate(counts) for _ in range(n))
    except (KeyError, TypeError, ValueError, ArithmeticError) as e:
        raise CheckpointError(f"RoPE scaling {kind!r} is damaged: {e}.") from None
    if not (np.isfinite(frequency).all() and finite(factor)):
        raise CheckpointError(f"RoPE scaling {kind!r} has frequencies that are no numbers.")
    return RopeTable(tuple(float(f) for f in frequency), axis, factor)


def _positive(scaling: dict[str, Any], key: str) -> float:
    value = float(scaling[key])
    if not (value > 0 and math.isfinite(value)):
        raise CheckpointError(f"RoPE scaling has {key} = {value}.")
    return value


def _llama3(frequency: np.ndarray, s: dict[str, Any]) -> np.ndarray:
    factor = _positive(s, "factor")
    low, high = _positive(s, "low_freq_factor"), _positive(s, "high_freq_factor")
    original = _positive(s, "original_max_position_embeddings")
    if high == low:
        raise CheckpointError("RoPE scaling has equal low and high frequency factors.")
    wavelength = 2 * np.pi / frequency
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    blended = (1 - smooth) * frequency / factor + smooth * frequency
    out = np.where(wavelength > original / low, frequency / factor, blended)
    return np.where(wavelength < original / high, frequency, out).astype(np.float32)


def _yarn(
    frequency: np.ndarray, dims: int, theta: float, s: dict[str, Any]
) -> tuple[np.ndarray, float]:
    factor = _positive(s, "factor")
    original = _positive(s, "original_max_position_embeddings")
    fast, slow = float(s.get("beta_fast") or 32), float(s.get("beta_slow") or 1)

    def correction(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = correction(fast), correction(slow)
    if s.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = np.clip((np.arange(dims // 2, dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
    keep = 1 - ramp  # 1: extrapolate (untouched), 0: interpolate
    out = frequency / factor * (1 - keep) + frequency * keep

    def mscale(scale: float, m: float) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    attention = s.get("attention_factor")
    if attention is None:
        m, m_all = s.get("mscale"), s.get("mscale_all_dim")
        attention = (
            mscale(factor, float(m)) / mscale(factor, float(m_all))
            if m and m_all
            else mscale(factor, 1)
        )
    return out.astype(np.float32), float(attention)
