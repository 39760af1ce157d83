"""Random segments, layers that hold them, and what they multiply to."""

from __future__ import annotations

import numpy as np
import torch

from edge_infer.checkpoint import layout
from edge_infer.vllm_plugin.segments import Segment

MINIMUMS = ("none", "zero points", "any")


def segment(
    n: int, k: int, *, bits: int = 4, group: int = 32, minimums: str = "none", seed: int = 0
) -> Segment:
    """A random matrix; `minimums`: none, those of whole zero points, or any."""
    rng = np.random.default_rng(seed + n * 7919 + k)
    groups = layout.pad(k, group) // group
    scales = rng.uniform(0.005, 0.02, (n, groups)).astype(np.float16)
    low, high = (-127, 128) if bits == 8 else (0, 1 << bits)
    codes = rng.integers(low, high, (n, k)).astype(layout.CODE_DTYPE[bits])
    if minimums == "none":
        stored = None
    elif minimums == "zero points":
        stored = (-scales.astype(np.float32) * rng.integers(0, 16, (n, groups))).astype(np.float16)
    else:
        stored = rng.uniform(-0.2, 0.05, (n, groups)).astype(np.float16)
    return Segment(
        f"m{n}",
        torch.from_numpy(layout.pack_codes(codes, bits, group, stored is None)),
        torch.from_numpy(layout.pack_scales(scales)),
        None if stored is None else torch.from_numpy(layout.pack_scales(stored)),
        n,
        k,
        bits,
        group,
    )


def layer(path, segments: list[Segment], dtype: torch.dtype) -> torch.nn.Module:
    """A module prepared by `path`."""
    module = torch.nn.Module()
    module.params_dtype = dtype
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # as vLLM does while it loads
    try:
        path.prepare(module, segments)
    finally:
        torch.set_default_dtype(default)
    return module


def expected(segments: list[Segment], x: torch.Tensor) -> torch.Tensor:
    """x times the exact values of all segments, f64 [rows, sum of n]."""
    return x.double() @ torch.cat([s.dequantize().double() for s in segments]).T


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative distance, |out - reference| / |reference| over all elements."""
    return float((out.double() - reference).norm() / reference.norm())
