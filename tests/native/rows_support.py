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


def level_params() -> list:
    """Every ISA level; those that this machine lacks are skipped with a reason."""
    have = _native.available_levels()
    return [
        pytest.param(
            level, marks=[] if level in have else pytest.mark.skip(reason=f"CPU lacks {level}")
        )
        for level in ALL_LEVELS
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


def to_16(x: np.ndarray, bf16: bool) -> np.ndarray:
    with np.errstate(over="ignore"):
        return to_bf16(x) if bf16 else x.astype(np.float16).view(np.uint16)


def from_16(x: np.ndarray, bf16: bool) -> np.ndarray:
    return from_bf16(x) if bf16 else x.view(np.float16).astype(np.float32)


class Pool:
    """A paged pool filled by numpy, with its blocks shuffled; NaN wherever no token is."""

    def __init__(self, keys: np.ndarray, values: np.ndarray, bf16: bool, first_block: int = 0):
        """keys, values: f32 [tokens, kv_heads, dim]; blocks before first_block are released."""
        tokens, self.kv_heads, self.dim = keys.shape
        self.bf16 = bf16
        count = -(-tokens // BLOCK)
        rng = np.random.default_rng(tokens)
        nan = 0x7FC1 if bf16 else 0x7E01
        data = np.full((count + 2, 2 * self.kv_heads, self.dim * BLOCK), nan, np.uint16)
        self.blocks = rng.permutation(count + 2)[:count].astype(np.int32)
        self.keys = from_16(to_16(keys, bf16), bf16).astype(np.float64)
        self.values = from_16(to_16(values, bf16), bf16).astype(np.float64)
        for b in range(first_block, count):
            rows = slice(b * BLOCK, min((b + 1) * BLOCK, tokens))
            n = rows.stop - rows.start
            for h in range(self.kv_heads):
                block = data[self.blocks[b]]
                kh = block[h].reshape(self.dim, BLOCK)
                kh[:, :n] = to_16(keys[rows, h], bf16).T
                vh = block[self.kv_heads + h].reshape(BLOCK, self.dim)
                vh[:n] = to_16(values[rows, h], bf16)
        self.blocks[:first_block] = -1
        self.data = guarded(data.reshape(count + 2, -1))


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
