"""Linear kernels: every ISA level against the scalar reference, that against float64 numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from edge_infer import _native

kernels = _native.kernels
ALL_LEVELS = ["scalar", "avx2", "avx2vnni", "avx512", "avx512bf16", "amx"]
BF16_LEVELS = ["scalar", "avx512bf16", "amx"]


def need(level: str) -> None:
    if level not in _native.available_levels():
        pytest.skip(f"this machine lacks ISA level {level}")


@dataclass
class Packed:
    """A packed matrix and its meaning in float64."""

    w: object
    dense: np.ndarray  # [n, k] float64
    terms: np.ndarray  # |s*q| + |m|, which may cancel in dense
    group: int
    k_pad: int


def pack(q: np.ndarray, s: np.ndarray, m: np.ndarray | None, k: int, group: int, bits: int):
    """Codes [n, k] and fp16 scales (minimums) [n, ceil(k/group)] to the documented layout."""
    n = q.shape[0]
    groups = -(-k // group)
    k_pad, n_pad = groups * group, -(-n // 16) * 16
    zero = {4: 8, 6: 32, 8: 0}[bits] if m is None else 0
    full = np.full((n_pad, k_pad), zero, np.int64)
    full[:n, :k] = q
    blocks = full.reshape(n_pad // 16, 16, k_pad)
    if bits < 8:
        b = (
            blocks.reshape(n_pad // 16, 16, k_pad // 8, 2, 4) & 15
        )  # block, channel, line, nibble, j
        lines = (b[:, :, :, 0] | (b[:, :, :, 1] << 4)).transpose(0, 2, 1, 3)
        if bits == 6:  # after two lines of nibbles, the two bits above each of them
            b = blocks.reshape(n_pad // 16, 16, k_pad // 16, 4, 4) >> 4
            above = sum(b[:, :, :, t] << (2 * t) for t in range(4)).transpose(0, 2, 1, 3)
            lines = lines.reshape(n_pad // 16, k_pad // 16, 2, 16, 4)
            lines = np.concatenate([lines, above[:, :, None]], axis=2)
    else:
        lines = blocks.reshape(n_pad // 16, 16, k_pad // 4, 4).transpose(0, 2, 1, 3) & 0xFF
    codes = np.ascontiguousarray(lines.reshape(n_pad // 16, -1, 64).astype(np.uint8))

    def rows(a: np.ndarray) -> np.ndarray:
        out = np.zeros((n_pad, groups), np.float16)
        out[:n] = a
        out = out.reshape(n_pad // 16, 16, groups).transpose(0, 2, 1)
        return np.ascontiguousarray(out).view(np.uint16)

    w = kernels.Matrix.packed(
        codes, rows(s), None if m is None else rows(m), n=n, k=k, group=group, bits=bits
    )
    wide = np.repeat(s.astype(np.float64), group, axis=1)[:, :k]
    dense = wide * (q - zero)
    terms = np.abs(dense)
    if m is not None:
        minimums = np.repeat(m.astype(np.float64), group, axis=1)[:, :k]
        dense, terms = dense + minimums, terms + np.abs(minimums)
    return Packed(w, dense, terms, group, k_pad)


RANGES = {4: (0, 16), 6: (0, 64), 8: (-127, 128)}


def random_packed(rng, n, k, group=32, bits=4, minimum=False) -> Packed:
    groups = -(-k // group)
    q = rng.integers(*RANGES[bits], (n, k))
    s = (rng.uniform(0.25, 4, (n, groups)) * 2e-3).astype(np.float16)
    m = rng.normal(0, 0.02, (n, groups)).astype(np.float16) if minimum else None
    return pack(q, s, m, k, group, bits)


def quantized(rng, rows, k, k_pad):
    """Random activations as quantize_rows would give them."""
    codes = np.zeros((rows, k_pad), np.int8)
    codes[:, :k] = rng.integers(-127, 128, (rows, k))
    scales = rng.uniform(0.001, 0.1, (rows, k_pad // 32)).astype(np.float32)
    return with_sums(codes, scales)


def with_sums(codes, scales):
    sums = codes.reshape(codes.shape[0], -1, 32).astype(np.int32).sum(axis=2, dtype=np.int32)
    return codes, scales, sums


def dense_rows(x):
    codes, scales, _ = x
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)


def run_int8(level, p: Packed, x, **kwargs):
    y = np.full((x[0].shape[0], p.dense.shape[0]), np.nan, np.float32)
    kernels.linear_int8(level, p.w, *x, y, **kwargs)
    return y


def same_bits(a, b) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


FORMS = [(4, False), (4, True), (6, False), (6, True), (8, False), (8, True)]


@pytest.mark.parametrize("bits,minimum", FORMS)
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("n,k", [(1, 32), (17, 100), (33, 2080), (64, 256), (16, 1)])
def test_scalar_int8_matches_float64(bits, minimum, group, n, k):
    rng = np.random.default_rng(n * k + group + bits)
    p = random_packed(rng, n, k, group, bits, minimum)
    x = quantized(rng, 3, k, p.k_pad)
    y = run_int8("scalar", p, x)
    exact = dense_rows(x)[:, :k] @ p.dense.T
    bound = np.abs(dense_rows(x)[:, :k]) @ p.terms.T + 1e-12
    assert np.max(np.abs(y - exact) / bound) < 2e-6


@pytest.mark.parametrize("level", ALL_LEVELS[1:])
@pytest.mark.parametrize("bits,minimum", FORMS)
def test_int8_levels_equal_scalar(level, bits, minimum):
    need(level)
    rng = np.random.default_rng(7)
    for n, k in [(1, 32), (17, 32), (33, 2080), (17, 100), (16, 1), (48, 257)]:
        for group in (32, 64, 128):
            p = random_packed(rng, n, k, group, bits, minimum)
            bias = rng.normal(size=n).astype(np.float32)
            for rows in (1, 2, 3, 5, 8, 17, 37):
                x = quantized(rng, rows, k, p.k_pad)
                same_bits(run_int8(level, p, x), run_int8("scalar", p, x))
                start = rng.normal(size=(rows, n + 5)).astype(np.float32)
                ys = []
                for which in ("scalar", level):
                    y = start.copy()
                    kernels.linear_int8(which, p.w, *x, y[:, 3:], bias=bias, accumulate=True)
                    same_bits(y[:, :3], start[:, :3])
                    same_bits(y[:, 3 + n :], start[:, 3 + n :])
                    ys.append(y)
                same_bits(*ys)


@pytest.mark.parametrize("level", ALL_LEVELS)
@pytest.mark.parametrize("bits,minimum", FORMS)
def test_int8_extreme_codes(level, bits, minimum):
    """All codes at either end: no intermediate may saturate."""
    need(level)
    n, k = 16, 128
    ends = {4: (0, 15), 6: (0, 15, 48, 63), 8: (-128, -127, 127)}[bits]
    for wa in ends:
        for wb in ends:
            q = np.where(np.arange(k) % 2 == 0, wa, wb)[None, :].repeat(n, 0)
            s = np.ones((n, k // 32), np.float16)
            m = np.full((n, k // 32), -3.0, np.float16) if minimum else None
            p = pack(q, s, m, k, 32, bits)
            for xa in (-127, 127):
                for xb in (-127, 127):
                    codes = np.where(np.arange(k) % 2 == 0, xa, xb)[None, :].repeat(5, 0)
                    x = with_sums(codes.astype(np.int8), np.ones((5, k // 32), np.float32))
                    y = run_int8(level, p, x)
                    # every partial sum is an integer below 2^24: the result is exact
                    np.testing.assert_array_equal(y, codes.astype(np.float64) @ p.dense.T)


@pytest.mark.parametrize("level", ALL_LEVELS)
@pytest.mark.parametrize("bits,minimum", FORMS)
def test_int8_scale_extremes(level, bits, minimum):
    """Zero, denormal and largest fp16 scales, tiny and huge activation scales."""
    need(level)
    rng = np.random.default_rng(5)
    n, k = 33, 320
    scales = np.array([0.0, 6e-8, 6e-5, 1.0, 65504.0, -2.0], np.float16)
    s = scales[np.arange(n * (k // 32)) % len(scales)].reshape(n, k // 32)
    p = pack(
        rng.integers(*RANGES[bits], (n, k)), s, s[::-1].copy() if minimum else None, k, 32, bits
    )
    codes = rng.integers(-127, 128, (6, k)).astype(np.int8)
    codes[0] = 0
    for a in (0.0, 1e-40, 1e-30, 1.0, 1e25):
        x = with_sums(codes, np.full((6, k // 32), a, np.float32))
        y = run_int8(level, p, x)
        same_bits(y, run_int8("scalar", p, x))
        if a in (1.0, 1e25):
            exact = dense_rows(x) @ p.dense.T
            bound = np.abs(dense_rows(x)) @ p.terms.T + 1e-30
            assert np.max(np.abs(y - exact) / bound) < 2e-6


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_int8_rows_and_ranges_do_not_matter(level):
    need(level)
    rng = np.random.default_rng(11)
    for bits, minimum in FORMS:
        p = random_packed(rng, 70, 416, 32, bits, minimum)
        x = quantized(rng, 23, 416, p.k_pad)
        whole = run_int8(level, p, x)
        for r in (0, 1, 7, 8, 16, 22):
            one = tuple(np.ascontiguousarray(a[r : r + 1]) for a in x)
            same_bits(run_int8(level, p, one), whole[r : r + 1])
        parts = np.full_like(whole, np.nan)
        for b in range(5):
            kernels.linear_int8(level, p.w, *x, parts, block_begin=b, block_end=b + 1)
        same_bits(parts, whole)


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_quantize_rows(level):
    need(level)
    rng = np.random.default_rng(2)
    for rows, k, k_pad in [(1, 32, 32), (3, 100, 128), (2, 1, 128), (5, 2048, 2048), (2, 33, 64)]:
        x = (rng.normal(size=(rows, k)) * rng.choice([1e-3, 1, 1e4], (rows, k))).astype(np.float32)
        x[0, : k // 2] = 0
        codes, scales, sums = kernels.quantize_rows(level, x, k_pad)
        padded = np.zeros((rows, k_pad), np.float32)
        padded[:, :k] = x
        groups = padded.reshape(rows, -1, 32)
        amax = np.abs(groups).max(axis=2)
        same_bits(scales, (amax / np.float32(127)).astype(np.float32))
        with np.errstate(divide="ignore", invalid="ignore"):
            want = np.rint(groups * (np.float32(127) / amax)[..., None])
        want = np.where(amax[..., None] == 0, 0, want)
        np.testing.assert_array_equal(codes.reshape(groups.shape), want)
        np.testing.assert_array_equal(sums, want.sum(axis=2))


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_quantize_rows_odd_values(level):
    """Non-finite groups become NaN scales, vanishing ones zero; ties go to even."""
    need(level)
    x = np.zeros((1, 224), np.float32)
    x[0, 3] = np.nan
    x[0, 40] = np.inf
    x[0, 70] = -np.inf
    x[0, 96:100] = [1e-41, -1e-40, 1e-38, 0]
    x[0, 128:132] = [3e38, -3.4e38, 1e38, 5]
    x[0, 160:166] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    codes, scales, sums = kernels.quantize_rows(level, x, 224)
    assert np.isnan(scales[0, :3]).all()
    assert scales[0, 3] == 0 and scales[0, 6] == 0
    assert not codes[0, :128].any() and not sums[0, :4].any()
    assert codes[0, 128:132].tolist() == [112, -127, 37, 0]
    assert codes[0, 160:166].tolist() == [127, 0, 2, 2, 0, -2]
    p = random_packed(np.random.default_rng(1), 17, 224)
    assert np.isnan(run_int8(level, p, (codes, scales, sums))).all()


def float_bytes(values: np.ndarray, dtype: str):
    """float32 values to the bytes of a type, and the float64 values that those bytes mean."""
    if dtype == "f32":
        return values.tobytes(), values.astype(np.float64)
    if dtype == "f16":
        half = values.astype(np.float16)
        return half.tobytes(), half.astype(np.float64)
    cut = (values.view(np.uint32) >> 16).astype(np.uint16)
    return cut.tobytes(), (cut.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("level", ALL_LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_linear_float(level, dtype):
    need(level)
    rng = np.random.default_rng(4)
    for n, k in [(1, 1), (5, 7), (17, 100), (33, 2080), (6, 48)]:
        raw, dense = float_bytes(rng.normal(size=(n, k)).astype(np.float32), dtype)
        buffer = np.empty(len(raw) + 1, np.uint8)
        buffer[1:] = np.frombuffer(raw, np.uint8)  # an odd address, as in a file
        w = kernels.Matrix.rows(buffer[1:], n=n, k=k, type=dtype)
        bias = rng.normal(size=n).astype(np.float32)
        x = rng.normal(size=(9, k)).astype(np.float32)
        y = np.full((9, n), np.nan, np.float32)
        kernels.linear_float(level, w, x, y)
        bound = np.abs(x.astype(np.float64)) @ np.abs(dense.T)
        assert np.max(np.abs(y - x.astype(np.float64) @ dense.T) / bound) < 1e-6
        one = np.full((1, n), np.nan, np.float32)
        kernels.linear_float(level, w, x[6:7].copy(), one)
        same_bits(one, y[6:7])
        start = rng.normal(size=(9, n + 4)).astype(np.float32)
        more = start.copy()
        split = n // 2
        for lo, hi in ((0, split), (split, n)):
            kernels.linear_float(
                level, w, x, more[:, 1:], bias=bias, accumulate=True, n_begin=lo, n_end=hi
            )
        same_bits(more[:, 1 : n + 1], (y + bias) + start[:, 1 : n + 1])
        same_bits(more[:, n + 1 :], start[:, n + 1 :])


def bf16_round(a: np.ndarray) -> np.ndarray:
    """Round to nearest even, as float64."""
    bits = a.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)


def run_bf16(level, p: Packed, x, **kwargs):
    y = np.full((x.shape[0], p.dense.shape[0]), np.nan, np.float32)
    kernels.linear_bf16(level, p.w, kernels.pack_rows_bf16(level, x), x.shape[0], y, **kwargs)
    return y


@pytest.mark.parametrize("level", BF16_LEVELS)
@pytest.mark.parametrize("bits,minimum", FORMS)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_bf16_matches_float64(level, bits, minimum, group):
    """Both operands rounded to bf16, nothing else beyond f32 sums."""
    need(level)
    rng = np.random.default_rng(9)
    for n, k in [(1, 32), (17, 100), (33, 2080), (64, 256), (40, 33)]:
        p = random_packed(rng, n, k, group, bits, minimum)
        for rows in (1, 3, 16, 17, 33, 70):
            x = rng.normal(size=(rows, k)).astype(np.float32)
            y = run_bf16(level, p, x)
            wr, xr = bf16_round(p.dense), bf16_round(x)
            bound = np.abs(xr) @ np.abs(wr.T) + 1e-9
            assert np.max(np.abs(y - xr @ wr.T) / bound) < 2e-6


@pytest.mark.parametrize("level", BF16_LEVELS)
def test_bf16_rows_and_ranges_do_not_matter(level):
    need(level)
    rng = np.random.default_rng(13)
    for bits, minimum in FORMS:
        p = random_packed(rng, 90, 1184, 32, bits, minimum)
        x = rng.normal(size=(83, 1184)).astype(np.float32)
        whole = run_bf16(level, p, x)
        for lo, hi in ((0, 1), (5, 6), (31, 50), (64, 83), (82, 83)):
            same_bits(run_bf16(level, p, x[lo:hi].copy()), whole[lo:hi])
        packed = kernels.pack_rows_bf16(level, x)
        parts = np.full_like(whole, np.nan)
        for lo, hi in ((0, 1), (1, 4), (4, 6)):
            kernels.linear_bf16(level, p.w, packed, 83, parts, block_begin=lo, block_end=hi)
        same_bits(parts, whole)


@pytest.mark.parametrize("level", BF16_LEVELS)
def test_bf16_many_rows_and_long_k(level):
    """More rows and more k than one stage of the tile kernel takes, with a last block alone."""
    need(level)
    rng = np.random.default_rng(15)
    for rows, n, k, bits in [(300, 80, 96, 4), (270, 33, 4200, 4), (270, 33, 4200, 6)]:
        p = random_packed(rng, n, k, bits=bits)
        x = rng.normal(size=(rows, k)).astype(np.float32)
        bias = rng.normal(size=n).astype(np.float32)
        y = run_bf16(level, p, x, bias=bias)
        wr, xr = bf16_round(p.dense), bf16_round(x)
        bound = np.abs(xr) @ np.abs(wr.T) + np.abs(bias)
        assert np.max(np.abs(y - (xr @ wr.T + bias)) / bound) < 2e-6
        for r in (0, 255, 256, rows - 1):
            same_bits(run_bf16(level, p, x[r : r + 1].copy(), bias=bias), y[r : r + 1])


@pytest.mark.parametrize("level", BF16_LEVELS)
def test_bf16_epilogue_stays_inside(level):
    need(level)
    rng = np.random.default_rng(17)
    p = random_packed(rng, 41, 96)
    x = rng.normal(size=(19, 96)).astype(np.float32)
    bias = rng.normal(size=41).astype(np.float32)
    plain = run_bf16(level, p, x)
    start = rng.normal(size=(19, 50)).astype(np.float32)
    y = start.copy()
    kernels.linear_bf16(
        level, p.w, kernels.pack_rows_bf16(level, x), 19, y[:, 5:], bias=bias, accumulate=True
    )
    same_bits(y[:, 5:46], (plain + bias) + start[:, 5:46])
    same_bits(y[:, :5], start[:, :5])
    same_bits(y[:, 46:], start[:, 46:])


@pytest.mark.parametrize("level", BF16_LEVELS)
def test_bf16_nan_reaches_only_its_row(level):
    need(level)
    rng = np.random.default_rng(19)
    p = random_packed(rng, 33, 64)
    x = rng.normal(size=(20, 64)).astype(np.float32)
    x[3, 5] = np.nan
    x[18, 60] = np.inf
    y = run_bf16(level, p, x)
    assert np.isnan(y[3]).all()
    assert not np.isfinite(y[18]).any()
    assert np.isfinite(np.delete(y, [3, 18], axis=0)).all()


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_dequantize_rows(level):
    need(level)
    rng = np.random.default_rng(23)
    for bits, minimum in FORMS:
        for k, group in [(100, 32), (256, 64), (33, 128)]:
            p = random_packed(rng, 40, k, group, bits, minimum)
            ids = np.array([39, 0, 17, 17], np.int32)
            got = kernels.dequantize_rows(level, p.w, ids, scale=1.5)
            want = p.dense[ids].astype(np.float32) * np.float32(1.5)
            np.testing.assert_array_equal(got, want)
    for dtype in ("f32", "bf16", "f16"):
        raw, dense = float_bytes(rng.normal(size=(9, 37)).astype(np.float32), dtype)
        w = kernels.Matrix.rows(np.frombuffer(raw, np.uint8), n=9, k=37, type=dtype)
        ids = np.array([8, 0, 3], np.int32)
        np.testing.assert_array_equal(
            kernels.dequantize_rows(level, w, ids), dense[ids].astype(np.float32)
        )


@pytest.mark.parametrize("level", ALL_LEVELS)
@pytest.mark.parametrize("minimum", [False, True])
def test_every_six_bit_code_at_every_place(level, minimum):
    """One channel and value of k at a time: a wrong place or a stray bit cannot hide in a sum."""
    need(level)
    n, k = 16, 32
    q = (np.arange(n)[:, None] * 5 + np.arange(k)[None] * 7) % 64
    for turn in range(64):
        codes = (q + turn) % 64
        s, m = np.ones((n, 1), np.float16), np.full((n, 1), 3, np.float16) if minimum else None
        p = pack(codes, s, m, k, 32, 6)
        want = codes + 3.0 if minimum else codes - 32.0
        got = kernels.dequantize_rows(level, p.w, np.arange(n, dtype=np.int32))
        np.testing.assert_array_equal(got, want)
        rows = np.eye(k, dtype=np.int8)
        x = with_sums(rows, np.ones((k, 1), np.float32))
        np.testing.assert_array_equal(run_int8(level, p, x), want.T)
        if level in BF16_LEVELS:
            np.testing.assert_array_equal(run_bf16(level, p, rows.astype(np.float32)), want.T)


def test_bf16_prefill_flags():
    have = {level: kernels.bf16_prefill(level) for level in _native.available_levels()}
    assert have == {level: level == "amx" for level in have}


def test_bad_shapes_are_refused():
    from edge_infer.errors import ConfigError

    codes, scales = np.zeros((2, 4, 64), np.uint8), np.zeros((2, 1, 16), np.uint16)
    with pytest.raises(ConfigError, match=r"\[2, 8, 64\]"):
        kernels.Matrix.packed(codes, scales, None, n=20, k=64, group=64, bits=4)
    with pytest.raises(ConfigError, match=r"\[2, 12, 64\]"):
        kernels.Matrix.packed(codes, scales, None, n=20, k=64, group=64, bits=6)
    with pytest.raises(ConfigError, match="4, 6 and 8"):
        kernels.Matrix.packed(codes, scales, None, n=20, k=64, group=64, bits=5)
    p = random_packed(np.random.default_rng(0), 20, 64)
    x = quantized(np.random.default_rng(0), 2, 64, 64)
    with pytest.raises(ConfigError, match="y must"):
        kernels.linear_int8("scalar", p.w, *x, np.zeros((2, 19), np.float32))
    with pytest.raises(ConfigError, match="range"):
        kernels.linear_int8("scalar", p.w, *x, np.zeros((2, 20), np.float32), block_end=3)
