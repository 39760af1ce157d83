"""The packed layout against its definition, element by element."""

import numpy as np
import pytest

from edge_infer.checkpoint import layout

SHAPES = [(16, 32), (1, 1), (17, 33), (48, 256), (40, 100), (5, 640)]


@pytest.mark.parametrize("n,k", SHAPES)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_four_bit_codes_lie_where_the_format_says(n, k, group):
    rng = np.random.default_rng(n * k)
    codes = rng.integers(0, 16, (n, k), np.uint8)
    packed = layout.pack_codes(codes, 4, group, symmetric=True)
    assert packed.shape == layout.codes_shape(n, k, 4, group) and packed.dtype == np.uint8
    for row in range(n):
        for col in range(0, k, 7):
            byte = packed[row // 16, col // 8, 4 * (row % 16) + col % 4]
            assert (byte >> 4 if col % 8 >= 4 else byte & 15) == codes[row, col]
    assert np.array_equal(layout.unpack_codes(packed, n, k, 4), codes)


@pytest.mark.parametrize("n,k", SHAPES)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_six_bit_codes_lie_where_the_format_says(n, k, group):
    rng = np.random.default_rng(n * k)
    codes = rng.integers(0, 64, (n, k), np.uint8)
    packed = layout.pack_codes(codes, 6, group, symmetric=True)
    assert packed.shape == layout.codes_shape(n, k, 6, group) and packed.dtype == np.uint8
    for row in range(n):
        for col in range(0, k, 3):
            lines = packed[row // 16, col // 16 * 3 : col // 16 * 3 + 3, 4 * (row % 16) + col % 4]
            nibble = lines[col % 16 // 8] >> 4 if col % 8 >= 4 else lines[col % 16 // 8] & 15
            above = lines[2] >> (2 * (col % 16 // 4)) & 3
            assert nibble | above << 4 == codes[row, col]
    assert np.array_equal(layout.unpack_codes(packed, n, k, 6), codes)


@pytest.mark.parametrize("n,k", SHAPES)
def test_eight_bit_codes_lie_where_the_format_says(n, k):
    rng = np.random.default_rng(n * k)
    codes = rng.integers(-127, 128, (n, k), np.int8)
    packed = layout.pack_codes(codes, 8, 32, symmetric=True)
    assert packed.shape == layout.codes_shape(n, k, 8, 32) and packed.dtype == np.int8
    for row in range(n):
        for col in range(0, k, 5):
            assert packed[row // 16, col // 4, 4 * (row % 16) + col % 4] == codes[row, col]
    assert np.array_equal(layout.unpack_codes(packed, n, k, 8), codes)


@pytest.mark.parametrize(
    "bits,symmetric,zero", [(4, True, 8), (4, False, 0), (6, True, 32), (6, False, 0), (8, True, 0)]
)
def test_padding_is_the_code_of_zero(bits, symmetric, zero):
    codes = np.ones((17, 40), layout.CODE_DTYPE[bits])
    packed = layout.pack_codes(codes, bits, 32, symmetric)
    stored = layout.unpack_codes(packed, 32, 64, bits)
    assert (stored[17:] == zero).all() and (stored[:17, 40:] == zero).all()
    assert (stored[:17, :40] == 1).all()


def test_scales_round_trip_and_pad_with_zero():
    scales = np.arange(17 * 3, dtype=np.float16).reshape(17, 3)
    packed = layout.pack_scales(scales)
    assert packed.shape == layout.scales_shape(17, 96, 32)
    assert packed[1, 2, 0] == scales[16, 2] and (packed[1, :, 1:] == 0).all()
    assert np.array_equal(layout.unpack_scales(packed, 17), scales)


@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("group", [32, 128])
def test_dequantize(bits, minimum, group):
    rng = np.random.default_rng(0)
    n, k = 21, 160
    low, high = (-127, 128) if bits == 8 else (0, 1 << bits)
    codes = rng.integers(low, high, (n, k)).astype(layout.CODE_DTYPE[bits])
    groups = layout.pad(k, group) // group
    s = rng.standard_normal((n, groups)).astype(np.float16)
    m = rng.standard_normal((n, groups)).astype(np.float16) if minimum else None
    expected = codes.astype(np.float32) - (0 if minimum else {4: 8, 6: 32, 8: 0}[bits])
    wide = np.arange(k) // group
    expected = expected * s.astype(np.float32)[:, wide]
    if m is not None:
        expected = expected + m.astype(np.float32)[:, wide]
    got = layout.dequantize(
        layout.pack_codes(codes, bits, group, not minimum),
        layout.pack_scales(s),
        None if m is None else layout.pack_scales(m),
        n=n,
        k=k,
        bits=bits,
    )
    assert np.array_equal(got, expected)
