"""What the row-kernel tests share: levels, guarded arrays, an error measure, a KV pool in numpy."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from edge_infer import _native

k = _native.kernels
ALL_LEVELS = ["scalar", "avx2", "avx2vnni", "avx512", "avx512bf16", "amx"]
BLOCK = 32
_libc = ctypes.CDLL(None, use_errno=True)


def level_params(levels: list[str] = ALL_LEVELS, suffix: str = "") -> list:
    """Every ISA level; those that this machine lacks are skipped with a reason."""
    have = _native.available_levels()
    return [
        pytest.param(
            level + suffix,
            marks=[] if level in have else pytest.mark.skip(reason=f"CPU lacks {level}"),
        )
        for level in levels
    ]


def guarded(values: np.ndarray) -> np.ndarray:
    """A copy that ends where the next page is inaccessible: reading or writing past it faults."""
    values = np.ascontiguousarray(values)
    page = mmap.PAGESIZE
    body = -(-max(values.nbytes, 1) // page) * page
    region = mmap.mmap(-1, body + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    assert _libc.mprotect(ctypes.c_void_p(address + body), ctypes.c_size_t(page), 0) == 0
    out = np.frombuffer(region, values.dtype, values.size, body - values.nbytes)
    out = out.reshape(values.shape)
    out[...] = values
    return out


def ulp_error(got: np.ndarray, want: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """|got - want| in units of the f32 spacing at want, or at floor where want is smaller."""
    want = np.asarray(want, np.float64)
    at = np.maximum(np.abs(want), floor).astype(np.float32)
    return np.abs(got.astype(np.float64) - want) / np.spacing(at)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """f32 to bf16 bits, to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def to_kv(x: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Stored form of x [..., dim]: 16-bit floats as bits, or int8 codes; and f32 scales [...]."""
    if dtype != "int8":
        with np.errstate(over="ignore"):
            bits = to_bf16(x) if dtype == "bf16" else x.astype(np.float16).view(np.uint16)
        return bits, np.ones(x.shape[:-1], np.float32)
    largest = np.abs(x).max(-1)  # NaN where there is one
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        factor = np.float32(127) / largest
        broken = ~np.isfinite(largest)
        zero = broken | ~np.isfinite(factor)
        scales = np.where(broken, np.nan, np.where(zero, 0, largest / np.float32(127)))
        codes = np.rint(x * factor[..., None])
    return np.where(zero[..., None], 0, codes).astype(np.int8), scales.astype(np.float32)


def from_kv(stored: np.ndarray, scales: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "int8":
        return stored.astype(np.float32) * scales[..., None]
    return from_bf16(stored) if dtype == "bf16" else stored.view(np.float16).astype(np.float32)


def kv_block_bytes(dtype: str, kv_heads: int, dim: int) -> int:
    """Bytes of one block of one layer: keys, values, and the scales of int8."""
    return 2 * kv_heads * BLOCK * (dim + 4 if dtype == "int8" else 2 * dim)


class Pool:
    """A paged pool filled by numpy, with its blocks shuffled; NaN wherever no token is."""

    def __init__(
        self, keys: np.ndarray, values: np.ndarray, dtype: str = "f16", first_block: int = 0
    ):
        """keys, values: f32 [tokens, kv_heads, dim]; blocks before first_block are released."""
        tokens, self.kv_heads, self.dim = keys.shape
        self.dtype = dtype
        count = -(-tokens // BLOCK)
        rng = np.random.default_rng(tokens)
        self.blocks = rng.permutation(count + 2)[:count].astype(np.int32)
        heads = self.kv_heads
        elements, unit = 2 * heads * self.dim * BLOCK, 1 if dtype == "int8" else 2
        data = np.zeros((count + 2, kv_block_bytes(dtype, heads, self.dim)), np.uint8)
        if dtype == "int8":
            data[:, elements:].view(np.float32)[:] = np.nan
        else:
            data.view(np.uint16)[:] = 0x7FC1 if dtype == "bf16" else 0x7E01
        stored = [to_kv(x, dtype) for x in (keys, values)]
        self.keys, self.values = (from_kv(*x, dtype).astype(np.float64) for x in stored)
        for b in range(first_block, count):
            rows = slice(b * BLOCK, min((b + 1) * BLOCK, tokens))
            n = rows.stop - rows.start
            block = data[self.blocks[b]]
            cells = block[: elements * unit].view(stored[0][0].dtype).reshape(2 * heads, -1)
            for h in range(heads):
                cells[h].reshape(self.dim, BLOCK)[:, :n] = stored[0][0][rows, h].T
                cells[heads + h].reshape(BLOCK, self.dim)[:n] = stored[1][0][rows, h]
            if dtype == "int8":
                scales = block[elements:].view(np.float32).reshape(2, heads, BLOCK)
                for i in range(2):
                    scales[i, :, :n] = stored[i][1][rows].T
        self.blocks[:first_block] = -1
        self.data = guarded(data)


def attention_reference(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, softcap: float
) -> np.ndarray:
    """f64 attention of q [heads, dim] over keys, values [tokens, dim]; zeros without tokens."""
    if len(keys) == 0:
        return np.zeros(q.shape)
    s = q.astype(np.float64) @ keys.T * scale
    if softcap:
        s = softcap * np.tanh(s / softcap)
    p = np.exp(s - s.max(1, keepdims=True))
    return p @ values / p.sum(1, keepdims=True)
