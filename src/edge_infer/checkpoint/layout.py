"""The packed layout: 16 output channels a block, K in 64-byte lines.

The format is described in docs/edge/architecture.md. Everything here is numpy and vectorised; it is
what readers, tests and the converter share. Codes are unsigned 0..15 for 4 bits and signed
-127..127 for 8 bits; scales and minimums are fp16, one per (channel, group).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_N = 16
LINE_BYTES = 64
GROUP_SIZES = (32, 64, 128)
BITS = (4, 8)

CODE_DTYPE: dict[int, type[np.generic]] = {4: np.uint8, 8: np.int8}
STORED_DTYPE = {4: "U8", 8: "I8"}
K_PER_LINE = {4: 8, 8: 4}


def pad(value: int, multiple: int) -> int:
    """`value` rounded up to a multiple."""
    return -(-value // multiple) * multiple


def codes_shape(n: int, k: int, bits: int, group_size: int) -> tuple[int, int, int]:
    """Stored shape of the codes of an [n, k] matrix."""
    return pad(n, BLOCK_N) // BLOCK_N, pad(k, group_size) // K_PER_LINE[bits], LINE_BYTES


def scales_shape(n: int, k: int, group_size: int) -> tuple[int, int, int]:
    """Stored shape of the scales (and minimums) of an [n, k] matrix."""
    return pad(n, BLOCK_N) // BLOCK_N, pad(k, group_size) // group_size, BLOCK_N


def packed_bytes(n: int, k: int, bits: int, group_size: int, symmetric: bool) -> int:
    """Bytes of codes, scales and minimums together."""
    blocks, lines, width = codes_shape(n, k, bits, group_size)
    groups = scales_shape(n, k, group_size)[1]
    return blocks * (lines * width + groups * BLOCK_N * 2 * (1 if symmetric else 2))


def zero_code(bits: int, symmetric: bool) -> int:
    """The code that padding carries: 8 for symmetric 4-bit, 0 otherwise."""
    return 8 if bits == 4 and symmetric else 0


def pack_codes(
    codes: npt.NDArray[Any], bits: int, group_size: int, symmetric: bool
) -> npt.NDArray[Any]:
    """[N, K] codes -> [N/16, K/8 or K/4, 64] lines, padded with the code of zero."""
    n, k = codes.shape
    dtype = CODE_DTYPE[bits]
    n_pad, k_pad = pad(n, BLOCK_N), pad(k, group_size)
    if (n_pad, k_pad) != (n, k) or codes.dtype != dtype:
        padded = np.full((n_pad, k_pad), zero_code(bits, symmetric), dtype)
        padded[:n, :k] = codes
        codes = padded
    if bits == 4:
        steps = codes.reshape(n_pad // BLOCK_N, BLOCK_N, k_pad // 8, 2, 4)
        packed = steps[:, :, :, 1] << 4
        packed |= steps[:, :, :, 0]
    else:
        packed = codes.reshape(n_pad // BLOCK_N, BLOCK_N, k_pad // 4, 4)
    lines = packed.transpose(0, 2, 1, 3)
    return np.ascontiguousarray(lines).reshape(n_pad // BLOCK_N, -1, LINE_BYTES)


def unpack_codes(packed: npt.NDArray[Any], n: int, k: int, bits: int) -> npt.NDArray[np.int8]:
    """Packed lines -> [N, K] codes as int8 (4-bit codes stay 0..15)."""
    blocks, lines, _ = packed.shape
    cells = packed.reshape(blocks, lines, BLOCK_N, 4).transpose(0, 2, 1, 3)
    if bits == 4:
        halves = np.stack([cells & 15, cells >> 4], axis=3)
        codes = halves.reshape(blocks * BLOCK_N, lines * 8)
    else:
        codes = cells.reshape(blocks * BLOCK_N, lines * 4)
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
    if bits == 4 and minimums is None:
        q -= 8
    groups = scales.shape[1]
    k_pad = codes.shape[1] * K_PER_LINE[bits]
    group = k_pad // groups
    s = np.repeat(unpack_scales(scales, n).astype(np.float32), group, axis=1)[:, :k]
    q *= s
    if minimums is not None:
        q += np.repeat(unpack_scales(minimums, n).astype(np.float32), group, axis=1)[:, :k]
    return q
