"""Linears on the caller's threads: the same bits as single kernels, in every dtype."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from test_linear import FORMS, Packed, float_bytes, need, random_packed, run_bf16, run_int8

from edge_infer import _native
from edge_infer.errors import ConfigError, ExecutionError

kernels = _native.kernels
TYPES = {"f32": 0, "bf16": 1, "f16": 2}


def to_type(x: np.ndarray, dtype: str) -> np.ndarray:
    """Rounded to the type, as the array whose memory has that type."""
    if dtype == "f32":
        return x.astype(np.float32)
    if dtype == "f16":
        return x.astype(np.float16)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_f32(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


def run(
    linear, x: np.ndarray, dtype: str = "f32", decode_rows: int | None = None, bias: bool = True
) -> np.ndarray:
    handle = np.array([linear.handle], np.int64)
    y = np.full((x.shape[0], linear.n), 7, x.dtype)
    rows = x.shape[0] if decode_rows is None else decode_rows
    _native.linear_run(
        handle.ctypes.data, x.ctypes.data, TYPES[dtype], x.shape[1], x.shape[0], rows, bias,
        y.ctypes.data, TYPES[dtype], linear.n,
    )  # fmt: skip
    return y


def by_kernels(level: str, parts: list[Packed], x: np.ndarray, bias: np.ndarray | None):
    """What single kernels give, f32."""
    out, at = [], 0
    for p in parts:
        n = p.dense.shape[0]
        rows = kernels.quantize_rows(level, x, p.k_pad)
        own = None if bias is None else bias[at : at + n].copy()
        out.append(run_int8(level, p, rows, bias=own))
        at += n
    return np.concatenate(out, axis=1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 37, 600])
def test_same_bits_as_kernels(dtype, rows):
    rng = np.random.default_rng(rows)
    k = 160
    parts = [
        random_packed(rng, n, k, 32, bits, minimum)
        for n, (bits, minimum) in zip((100, 16, 200, 40, 33, 64), FORMS, strict=True)
    ]
    bias = rng.normal(size=453).astype(np.float32)
    x = to_type(rng.normal(size=(rows, k)), dtype)
    linear = _native.Linear([p.w for p in parts], bias)
    level = _native.active_level()
    for with_bias in (False, True):
        want = by_kernels(level, parts, to_f32(x, dtype), bias if with_bias else None)
        got = run(linear, x, dtype, bias=with_bias) if not linear.bf16_prefill else run(
            linear, x, dtype, rows, with_bias
        )  # fmt: skip
        assert np.array_equal(got, to_type(want, dtype))


@pytest.mark.parametrize("level", ["scalar", "avx512bf16", "amx"])
def test_prompt_rows_may_have_bf16_numerics(level):
    need(level)
    rng = np.random.default_rng(1)
    p = random_packed(rng, 80, 128)
    linear = _native.Linear([p.w], level=level, bf16_prefill=True)
    x = rng.normal(size=(40, 128)).astype(np.float32)
    got = run(linear, x, decode_rows=3)
    assert np.array_equal(got[:3], run_int8(level, p, kernels.quantize_rows(level, x[:3], 128)))
    assert np.array_equal(got[3:], run_bf16(level, p, x[3:].copy()))
    # the kinds of rows differ, and each kind is the same in any company
    alone = run(linear, x[:3].copy(), decode_rows=0)
    assert not np.array_equal(alone, got[:3])
    assert np.array_equal(alone, run(linear, x, decode_rows=0)[:3])


@pytest.mark.parametrize("dtype", TYPES)
def test_float_segments_beside_packed_ones(dtype):
    rng = np.random.default_rng(2)
    p = random_packed(rng, 48, 64)
    plain = rng.normal(size=(24, 64)).astype(np.float32)
    stored, _ = float_bytes(plain, "f32")
    linear = _native.Linear([p.w, kernels.Matrix.rows(stored, 24, 64, "f32")])
    for rows in (1, 2, 9):
        x = to_type(rng.normal(size=(rows, 64)), dtype)
        got = to_f32(run(linear, x, dtype), dtype)
        want = to_f32(x, dtype).astype(np.float64) @ np.concatenate([p.dense, plain]).T
        assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits,minimum", FORMS)
def test_lookup(dtype, bits, minimum):
    rng = np.random.default_rng(3)
    p = random_packed(rng, 50, 96, 32, bits, minimum)
    linear = _native.Linear([p.w])
    handle = np.array([linear.handle], np.int64)
    ids = np.array([0, 49, 17, 17], np.int64)
    y = to_type(np.zeros((4, 96)), dtype)
    _native.linear_lookup(handle.ctypes.data, ids.ctypes.data, 4, y.ctypes.data, TYPES[dtype])
    want = kernels.dequantize_rows(_native.active_level(), p.w, ids.astype(np.int32))
    assert np.array_equal(y, to_type(want, dtype))
    ids[2] = 50
    with pytest.raises(ConfigError, match=r"Row 50 is outside 0\.\.49"):
        _native.linear_lookup(handle.ctypes.data, ids.ctypes.data, 4, y.ctypes.data, TYPES[dtype])


def test_bad_input():
    rng = np.random.default_rng(4)
    a, b = random_packed(rng, 16, 64), random_packed(rng, 16, 96)
    with pytest.raises(ConfigError, match="one K, not 64 and 96"):
        _native.Linear([a.w, b.w])
    with pytest.raises(ConfigError, match="The bias has 3 values; N is 16"):
        _native.Linear([a.w], np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="at least one matrix"):
        _native.Linear([])
    linear = _native.Linear([a.w])
    x = np.zeros((1, 63), np.float32)
    with pytest.raises(ConfigError, match="K = 64"):
        run(linear, x)


def test_a_handle_dies_with_its_linear():
    rng = np.random.default_rng(5)
    linear = _native.Linear([random_packed(rng, 16, 64).w])
    x = np.zeros((1, 64), np.float32)
    run(linear, x)
    handle, y = np.array([linear.handle], np.int64), np.zeros(16, np.float32)
    del linear
    for stray in (int(handle[0]), 0, 17, -1):
        handle[0] = stray
        with pytest.raises(ExecutionError, match="No linear has the handle"):
            _native.linear_run(
                handle.ctypes.data, x.ctypes.data, 0, 64, 1, 1, False, y.ctypes.data, 0, 16
            )


TORCH = """
import sys
import numpy as np
import torch
sys.path[:0] = ["tests/native"]
from test_linear import random_packed
from test_packed_linear import run
from edge_infer import _native

p = random_packed(np.random.default_rng(0), 4096, 512)
linear = _native.Linear([p.w])
x = np.random.default_rng(1).normal(size=(5, 512)).astype(np.float32)
results = []
for threads in (1, 2, 3, 7):
    torch.set_num_threads(threads)
    library, count = _native.linear_threads()
    assert count == torch.get_num_threads() == threads, (count, threads)
    assert "omp" in library.lower(), library
    results += [run(linear, x[:rows].copy()) for rows in (1, 5)]
for one, five in zip(results[::2], results[1::2]):
    assert np.array_equal(one, results[0]) and np.array_equal(five, results[1])
print("ok")
"""


def test_runs_on_the_threads_of_torch():
    pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "ok", done.stderr


def test_without_openmp_the_caller_runs_alone():
    script = "from edge_infer import _native; print(_native.linear_threads())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "('', 1)", done.stderr
