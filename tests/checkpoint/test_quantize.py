"""The quantizer: optimal scales, exact rounding, the same bits everywhere, named refusals."""

import hashlib

import numpy as np
import pytest

from edge_infer.checkpoint import layout
from edge_infer.checkpoint.quantize import quantize
from edge_infer.errors import CheckpointError, ConfigError

FORMS = [(4, True), (4, False), (6, True), (6, False), (8, True)]


def gauss(n, k, seed=0, scale=0.02):
    return (np.random.default_rng(seed).standard_normal((n, k)) * scale).astype(np.float32)


def run(w, bits, symmetric, group=32, **kw):
    p = quantize(w, "F32", bits=bits, group_size=group, symmetric=symmetric, **kw)
    return p, layout.dequantize(
        p.codes, p.scales, p.minimums, n=w.shape[0], k=w.shape[1], bits=bits
    )


def to_bf16(w):
    return (w.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("bits,symmetric", FORMS)
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("n,k", [(32, 128), (1, 1), (19, 100), (16, 31)])
def test_codes_are_the_nearest_to_the_stored_scale(bits, symmetric, group, n, k):
    w = gauss(n, k)
    p, _ = run(w, bits, symmetric, group)
    assert p.codes.shape == layout.codes_shape(n, k, bits, group)
    assert p.scales.shape == layout.scales_shape(n, k, group)
    assert (p.minimums is None) == symmetric
    column = np.arange(k) // group
    s = layout.unpack_scales(p.scales, n).astype(np.float32)[:, column]
    m = np.float32(0)
    low, high = {4: (-8, 7), 6: (-32, 31), 8: (-127, 127)}[bits]
    if not symmetric:
        m = layout.unpack_scales(p.minimums, n).astype(np.float32)[:, column]
        low, high = 0, (1 << bits) - 1
    codes = layout.unpack_codes(p.codes, n, k, bits).astype(np.int32)
    codes -= {4: 8, 6: 32, 8: 0}[bits] if symmetric else 0
    ideal = np.divide(w - m, s, out=np.zeros_like(w), where=s != 0)
    assert codes.min() >= low and codes.max() <= high
    assert np.abs(codes - np.clip(ideal, low, high)).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("bits,symmetric", FORMS)
def test_padding(bits, symmetric):
    p, _ = run(gauss(17, 40) + 1, bits, symmetric)
    zero = {4: 8, 6: 32, 8: 0}[bits] if symmetric else 0
    codes = layout.unpack_codes(p.codes, 32, 64, bits)
    assert (codes[17:] == zero).all() and (codes[:, 40:] == zero).all()
    assert (p.scales[1, :, 1:] == 0).all()
    assert p.minimums is None or (p.minimums[1, :, 1:] == 0).all()


def dense_sweep_error(g, bits):
    """The least symmetric error per group over a fine sweep of scales, in f64."""
    end = 1 << (bits - 1)
    best = np.full(len(g), np.inf)
    extreme = np.take_along_axis(g, np.abs(g).argmax(1)[:, None], 1)
    for t in np.arange(end - 4, end + 4, 0.01):
        for sign in (1, -1):
            q = np.clip(np.round(g * (sign * t / extreme)), -end, end - 1)
            s = (g * q).sum(1) / np.maximum((q * q).sum(1), 1e-30)
            best = np.minimum(best, ((g - s[:, None] * q) ** 2).sum(1))
    return best


@pytest.mark.parametrize("bits", [4, 6])
def test_symmetric_scale_is_the_best_there_is(bits):
    w = gauss(500, 32)
    _, v = run(w, bits, True)
    ours = ((v - w.astype(np.float64)) ** 2).sum(1)
    best = dense_sweep_error(w.astype(np.float64), bits)
    assert ours.sum() <= 1.002 * best.sum()
    assert (ours <= 1.05 * best).all()


def test_search_beats_plain_range_scaling():
    w = gauss(256, 512, seed=3)
    g = w.reshape(-1, 32)

    def mse(v):
        return float(((v.reshape(g.shape) - g) ** 2).mean())

    s = (np.abs(g).max(1, keepdims=True) / 7).astype(np.float16).astype(np.float32)
    assert mse(run(w, 4, True)[1]) < 0.75 * mse(np.clip(np.round(g / s), -8, 7) * s)
    low = g.min(1, keepdims=True)
    s = ((g.max(1, keepdims=True) - low) / 15).astype(np.float16).astype(np.float32)
    m = low.astype(np.float16).astype(np.float32)
    assert mse(run(w, 4, False)[1]) < 0.85 * mse(np.clip(np.round((g - m) / s), 0, 15) * s + m)
    s = (np.abs(g).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    assert mse(run(w, 8, True)[1]) < 0.9 * mse(np.clip(np.round(g / s), -127, 127) * s)


@pytest.mark.parametrize("bits,symmetric", FORMS)
def test_importance_lowers_the_weighted_error(bits, symmetric):
    w = gauss(64, 256, seed=5)
    importance = np.random.default_rng(6).gamma(0.3, 1, 256).astype(np.float32)

    def weighted(v):
        return float(((v - w) ** 2 * importance).sum())

    plain = weighted(run(w, bits, symmetric)[1])
    bound = {4: 0.9, 6: 0.96, 8: 0.98}[bits]
    aware = weighted(run(w, bits, symmetric, importance=importance)[1])
    assert aware < bound * plain
    huge = run(w, bits, symmetric, importance=importance * np.float32(1e30))[1]
    assert weighted(huge) < bound * plain


@pytest.mark.parametrize("bits,symmetric", FORMS)
def test_float_types_agree(bits, symmetric):
    w = gauss(33, 96)
    b = to_bf16(w)
    from_bf16 = quantize(b, "BF16", bits=bits, group_size=32, symmetric=symmetric)
    as_f32, _ = run((b.astype(np.uint32) << 16).view(np.float32), bits, symmetric)
    for x, y in zip(from_bf16, as_f32, strict=True):
        assert x is y is None or np.array_equal(x, y)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = np.sort(halves[np.isfinite(halves)]).reshape(-1, 64)  # every finite fp16
    halves = halves[np.abs(halves).max(1) < 60000]
    from_f16 = quantize(halves, "F16", bits=bits, group_size=32, symmetric=symmetric)
    as_f32, _ = run(halves.astype(np.float32), bits, symmetric)
    for x, y in zip(from_f16, as_f32, strict=True):
        assert x is y is None or np.array_equal(x, y)


def test_fp16_rounding_is_numpys():
    rng = np.random.default_rng(9)
    x = rng.integers(0, 1 << 32, 20000, np.uint32).view(np.float32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[:-1] + halves[1:]) / 2  # ties
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.concatenate([x, halves, between, np.nextafter(between, 0), -between])
        x = x[np.isfinite(x) & (np.abs(x) < 65500)]
        expected = x.astype(np.float16)
    # a constant group is stored as its minimum alone
    p = quantize(
        np.repeat(x[:, None], 32, 1), "F32", bits=4, group_size=32, symmetric=False
    ).minimums
    assert np.array_equal(
        layout.unpack_scales(p, len(x))[:, 0].view(np.uint16), expected.view("u2")
    )


@pytest.mark.parametrize("bits,symmetric", FORMS)
def test_threads_do_not_change_a_bit(bits, symmetric):
    w = gauss(200, 160)
    one, _ = run(w, bits, symmetric, threads=1)
    many, _ = run(w, bits, symmetric, threads=5)
    for x, y in zip(one, many, strict=True):
        assert x is y is None or np.array_equal(x, y)


@pytest.mark.parametrize(
    "bits,symmetric,digest",
    [(4, True, "2e6c486442514181"), (4, False, "ca277df8116a9e38"), (8, True, "dfc4b749134f93fa")],
)
def test_bits_are_the_same_on_every_machine(bits, symmetric, digest):
    raw = np.random.default_rng(7).integers(-30000, 30000, (48, 256), np.int64)
    w = (raw * raw * raw * 2.0**-50).astype(np.float32)
    p, _ = run(w, bits, symmetric)
    h = hashlib.sha256(b"".join(a.tobytes() for a in p if a is not None))
    assert h.hexdigest()[:16] == digest


@pytest.mark.parametrize("bits,symmetric", FORMS)
def test_extreme_but_legal_values(bits, symmetric):
    for w in (
        np.zeros((16, 64), np.float32),
        np.full((16, 64), 1e-45, np.float32),
        np.full((16, 64), -1e-7, np.float32),
        gauss(16, 64, scale=1e-7),
        gauss(16, 64, scale=1e-4),
        gauss(16, 64, scale=3000),
    ):
        _, v = run(w, bits, symmetric)
        assert np.isfinite(v).all()
        assert ((v - w) ** 2).sum() <= 0.05 * (w**2).sum() + w.size * 2.0**-50
    outlier = gauss(1, 32)
    outlier[0, 5] = 400.0
    _, v = run(outlier, bits, symmetric)
    assert abs(v[0, 5] - 400) < 3


@pytest.mark.parametrize("bits,symmetric", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_named(bits, symmetric, bad):
    w = gauss(100, 96)
    w[70, 41] = bad
    w[90, 1] = bad
    with pytest.raises(CheckpointError, match=r"model\.x.*row 70, column 41"):
        run(w, bits, symmetric, name="model.x", threads=4)


@pytest.mark.parametrize("bits,symmetric", FORMS)
@pytest.mark.parametrize("value", [1e9, -1e9, 3e38])
def test_values_beyond_fp16_scales_are_refused(bits, symmetric, value):
    w = gauss(40, 32)
    w[33, 3] = value
    with pytest.raises(CheckpointError, match=r"tensor w .*row 33.*fp16"):
        run(w, bits, symmetric, name="w")


def test_rows_may_be_strided_and_arguments_are_checked():
    w = gauss(32, 128)
    whole = np.concatenate([w, w], axis=1)[:, :128]
    assert np.array_equal(run(whole, 4, True)[0].codes, run(w, 4, True)[0].codes)
    with pytest.raises(ConfigError, match="group 48"):
        run(w, 4, True, group=48)
    with pytest.raises(ConfigError, match="5-bit"):
        quantize(w, "F32", bits=5, group_size=32, symmetric=True)
    with pytest.raises(ConfigError, match="not F64"):
        quantize(w.astype(np.float64), "F64", bits=4, group_size=32, symmetric=True)
    with pytest.raises(ConfigError, match="contiguous rows"):
        run(w.T, 4, True)
    with pytest.raises(ConfigError, match="3 entries for 128"):
        run(w, 4, True, importance=np.ones(3, np.float32))
    with pytest.raises(ConfigError, match="finite"):
        run(w, 4, True, importance=np.full(128, np.nan, np.float32))
