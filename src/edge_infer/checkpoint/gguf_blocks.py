"""GGUF weight blocks to codes, scales and minimums, keeping every code.

Each function takes raw blocks [count, bytes] and gives codes [count, weights], fp16 scales and
minimums [count, weights/32]. Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 come out exact; the K types have 6-bit
factors on an fp16 scale, whose product is rounded to fp16. Q6_K scales groups of 16, so its codes
cannot be kept in groups of 32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_infer.checkpoint.source import Codes, KeptForm
from edge_infer.errors import UnsupportedError

KEPT: dict[str, KeptForm] = {
    "Q4_0": KeptForm(4, 32, True, True),
    "Q4_1": KeptForm(4, 32, False, True),
    "Q5_0": KeptForm(6, 32, True, True),
    "Q5_1": KeptForm(6, 32, False, True),
    "Q8_0": KeptForm(8, 32, True, True),
    "Q4_K": KeptForm(4, 32, False, False),
    "Q5_K": KeptForm(6, 32, False, False),
}

Bytes = npt.NDArray[np.uint8]


def _halves(raw: Bytes) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(raw).view(np.float16)


def _nibbles(qs: Bytes) -> Bytes:
    """[count, 16] bytes to 32 codes: the low nibbles first, then the high ones."""
    return np.concatenate([qs & 15, qs >> 4], axis=1)


def _fifth_bits(qh: Bytes) -> npt.NDArray[Any]:
    """[count, 4] bytes to the 32 bits they hold, as 0 or 16."""
    return np.unpackbits(qh, axis=1, bitorder="little") << 4


def _q8_0(raw: Bytes) -> Codes:
    codes, scales = raw[:, 2:].view(np.int8), _halves(raw[:, :2])
    lowest = (codes == -128).any(axis=1)
    if lowest.any():  # no quantizer writes it, and the format ends at -127: rescale those blocks
        codes = codes.copy()
        factor = np.where(lowest, 128 / 127, 1.0)[:, None]
        codes[lowest] = np.rint(codes[lowest] * (127 / 128)).astype(np.int8)
        scales = np.where(lowest[:, None], (scales * factor).astype(np.float16), scales)
    return Codes(codes, scales, None)


def _k_factors(raw: Bytes) -> tuple[Bytes, Bytes]:
    """The 8 scale and 8 minimum factors of 6 bits that 12 bytes of a K block hold."""
    a, b, c = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1)
    minimums = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1)
    return scales, minimums


def _k_blocks(raw: Bytes, five: bool) -> Codes:
    d = _halves(raw[:, 0:2]).astype(np.float32)
    dmin = _halves(raw[:, 2:4]).astype(np.float32)
    scale, minimum = _k_factors(raw[:, 4:16])
    qs = raw[:, 48 if five else 16 :].reshape(-1, 4, 32)
    codes = np.stack([qs & 15, qs >> 4], axis=2).reshape(-1, 8, 32)
    if five:
        bits = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1
        codes |= bits << 4
    with np.errstate(over="ignore"):
        return Codes(
            codes.reshape(-1, 256),
            (d * scale).astype(np.float16),
            (-dmin * minimum).astype(np.float16),
        )


def codes_of(kind: str, raw: Bytes) -> Codes:
    """Raw blocks [count, bytes] of a type in `KEPT`."""
    if kind == "Q4_0":
        return Codes(_nibbles(raw[:, 2:]), _halves(raw[:, :2]), None)
    if kind == "Q4_1":
        return Codes(_nibbles(raw[:, 4:]), _halves(raw[:, :2]), _halves(raw[:, 2:4]))
    if kind == "Q5_0":
        codes: Any = _nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])
        return Codes(codes + np.uint8(16), _halves(raw[:, :2]), None)  # q - 16 is q + 16 - 32
    if kind == "Q5_1":
        codes = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
        return Codes(codes, _halves(raw[:, :2]), _halves(raw[:, 2:4]))
    if kind == "Q8_0":
        return _q8_0(raw)
    return _k_blocks(raw, five=kind == "Q5_K")


def steps_of(kind: str, raw: Bytes) -> npt.NDArray[np.float32]:
    """The distance between neighbouring codes at each value: raw blocks [count, bytes] of a
    quantized type to f32 [count, weights], or UnsupportedError for types without codes."""
    if kind == "Q6_K":
        scales = _halves(raw[:, 208:210]).astype(np.float32) * raw[:, 192:208].view(np.int8)
    elif kind in KEPT:
        scales = codes_of(kind, raw).scales.astype(np.float32)
    else:
        raise UnsupportedError(f"{kind} has no codes, so no distance between them.")
    return np.repeat(np.abs(scales), 16 if kind == "Q6_K" else 32, axis=-1)
