"""The packed layout: 16 output channels a block, K in 64-byte lines.

The format is described in docs/edge/architecture.md. Everything here is numpy and vectorised; it is
what readers, tests and the converter share. Codes are unsigned for 4 bits (0..15) and 6 bits
(0..63) and signed for 8 bits (-127..127); scales and minimums are fp16, one per (channel, group).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_N = 16
LINE_BYTES = 64
GROUP_SIZES = (32, 64, 128)
BITS = (4, 6, 8)

CODE_DTYPE: dict[int, type[np.generic]] = {4: np.uint8, 6: np.uint8, 8: np.int8}
STORED_DTYPE = {4: "U8", 6: "U8", 8: "I8"}
_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)  # places of 2 bits in a byte


def pad(value: int, multiple: int) -> int:
    """`value` rounded up to a multiple."""
    return -(-value // multiple) * multiple


def code_lines(k_pad: int, bits: int) -> int:
    """Lines that the codes of `k_pad` values of K take, a multiple of 32."""
    return k_pad * bits // 32


def codes_shape(n: int, k: int, bits: int, group_size: int) -> tuple[int, int, int]:
    """Stored shape of the codes of an [n, k] matrix."""
    return pad(n, BLOCK_N) // BLOCK_N, code_lines(pad(k, group_size), bits), LINE_BYTES


def scales_shape(n: int, k: int, group_size: int) -> tuple[int, int, int]:
    """Stored shape of the scales (and minimums) of an [n, k] matrix."""
    return pad(n, BLOCK_N) // BLOCK_N, pad(k, group_size) // group_size, BLOCK_N


def packed_bytes(n: int, k: int, bits: int, group_size: int, symmetric: bool) -> int:
    """Bytes of codes, scales and minimums together."""
    blocks, lines, width = codes_shape(n, k, bits, group_size)
    groups = scales_shape(n, k, group_size)[1]
    return blocks * (lines * width + groups * BLOCK_N * 2 * (1 if symmetric else 2))


def zero_code(bits: int, symmetric: bool) -> int:
    """The code that stands for zero, and that padding carries: 8 for symmetric 4-bit, 32 for
    symmetric 6-bit, 0 otherwise."""
    return 1 << (bits - 1) if bits < 8 and symmetric else 0


def pack_codes(
    codes: npt.NDArray[Any], bits: int, group_size: int, symmetric: bool
) -> npt.NDArray[Any]:
    """[N, K] codes -> [N/16, lines, 64], padded with the code of zero."""
    n, k = codes.shape
    dtype = CODE_DTYPE[bits]
    n_pad, k_pad = pad(n, BLOCK_N), pad(k, group_size)
    if (n_pad, k_pad) != (n, k) or codes.dtype != dtype:
        padded = np.full((n_pad, k_pad), zero_code(bits, symmetric), dtype)
        padded[:n, :k] = codes
        codes = padded
    blocks = n_pad // BLOCK_N
    if bits == 8:
        return _lines(codes.reshape(blocks, BLOCK_N, k_pad // 4, 4))
    steps = codes.reshape(blocks, BLOCK_N, k_pad // 8, 2, 4) & 15
    packed = steps[:, :, :, 1] << 4
    packed |= steps[:, :, :, 0]
    low = _lines(packed)
    if bits == 4:
        return low
    above = codes.reshape(blocks, BLOCK_N, k_pad // 16, 4, 4) >> 4 << _PAIRS[:, None]
    high = _lines(np.bitwise_or.reduce(above, axis=3))
    out = np.concatenate([low.reshape(blocks, -1, 2, LINE_BYTES), high[:, :, None]], axis=2)
    return out.reshape(blocks, -1, LINE_BYTES)


def _lines(cells: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N/16, 16, lines, 4] bytes of channels -> [N/16, lines, 64]."""
    blocks, _, lines, _ = cells.shape
    return np.ascontiguousarray(cells.transpose(0, 2, 1, 3)).reshape(blocks, lines, LINE_BYTES)


def _cells(lines: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N/16, lines, 64] -> [N/16, 16, lines, 4] bytes of channels."""
    return lines.reshape(*lines.shape[:2], BLOCK_N, 4).transpose(0, 2, 1, 3)


def unpack_codes(packed: npt.NDArray[Any], n: int, k: int, bits: int) -> npt.NDArray[np.int8]:
    """Packed lines -> [N, K] codes as int8 (those of 4 and 6 bits stay unsigned)."""
    rows = packed.shape[0] * BLOCK_N
    if bits == 8:
        codes = _cells(packed).reshape(rows, -1)
    else:
        triples = packed.reshape(packed.shape[0], -1, 3, LINE_BYTES) if bits == 6 else None
        low = packed if triples is None else triples[:, :, :2].reshape(len(packed), -1, LINE_BYTES)
        cells = _cells(low)
        codes = np.stack([cells & 15, cells >> 4], axis=3).reshape(rows, -1)
        if triples is not None:
            above = _cells(triples[:, :, 2])[:, :, :, None] >> _PAIRS[:, None] & 3
            codes |= above.reshape(rows, -1) << 4
    return np.ascontiguousarray(codes[:n, :k]).astype(np.int8, copy=False)


def pack_scales(scales: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """[N, K/group] -> [N/16, K/group, 16], padding channels with 0."""
    n, groups = scales.shape
    n_pad = pad(n, BLOCK_N)
    if n_pad != n:
        scales = np.concatenate([scales, np.zeros((n_pad - n, groups), np.float16)])
    return np.ascontiguousarray(
        scales.reshape(n_pad // BLOCK_N, BLOCK_N, groups).transpose(0, 2, 1), dtype=np.float16
    )


def unpack_scales(packed: npt.NDArray[np.float16], n: int) -> npt.NDArray[np.float16]:
    """[N/16, K/group, 16] -> [N, K/group]."""
    blocks, groups, _ = packed.shape
    return np.ascontiguousarray(packed.transpose(0, 2, 1).reshape(blocks * BLOCK_N, groups)[:n])


def dequantize(
    codes: npt.NDArray[Any],
    scales: npt.NDArray[np.float16],
    minimums: npt.NDArray[np.float16] | None,
    *,
    n: int,
    k: int,
    bits: int,
) -> npt.NDArray[np.float32]:
    """The f32 [N, K] matrix that packed arrays stand for.

    One product and, with a minimum, one sum in f32: no fused operation, so values are exactly
    reproducible. Leading dimensions (stacked experts) give [..., N, K].
    """
    if codes.ndim > 3:
        parts = [
            dequantize(c, s, None if minimums is None else minimums[i], n=n, k=k, bits=bits)
            for i, (c, s) in enumerate(zip(codes, scales, strict=True))
        ]
        return np.stack(parts)
    q = unpack_codes(codes, n, k, bits).astype(np.float32)
    q -= zero_code(bits, minimums is None)
    groups = scales.shape[1]
    k_pad = codes.shape[1] * 32 // bits
    group = k_pad // groups
    s = np.repeat(unpack_scales(scales, n).astype(np.float32), group, axis=1)[:, :k]
    q *= s
    if minimums is not None:
        q += np.repeat(unpack_scales(minimums, n).astype(np.float32), group, axis=1)[:, :k]
    return q
