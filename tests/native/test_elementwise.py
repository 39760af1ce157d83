"""Row kernels against float64 references: accuracy, every width, aliasing, no stray access."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rows_support import guarded, k, level_params, ulp_error

from edge_infer import _native

LEVELS = level_params()
WIDTHS = [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 100, 128, 640, 1027]


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def erfc(x: np.ndarray) -> np.ndarray:
    return np.array([math.erfc(v) for v in x.ravel()]).reshape(x.shape)


def reference_activation(name: str, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    with np.errstate(over="ignore"):
        if name == "silu":
            return x / (1 + np.exp(-x))
        if name == "sigmoid":
            return 1 / (1 + np.exp(-x))
        if name == "gelu":
            return 0.5 * x * erfc(-x / math.sqrt(2))
        if name == "gelu_tanh":
            return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return np.maximum(x, 0) if name == "relu" else x


ACTIVATIONS = ["none", "silu", "gelu", "gelu_tanh", "sigmoid", "relu"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_within_a_few_ulp(level: str, name: str) -> None:
    x = np.concatenate(
        [np.linspace(-12, 12, 200_001), np.logspace(-30, 1, 5000), -np.logspace(-30, 1, 5000)]
    ).astype(np.float32)
    y = np.empty_like(x)
    k.activation(level, x, name, y)
    want = reference_activation(name, x)
    # gelu_tanh takes exp of a rounded cubic: as many ulp more as that argument is large
    t = 1.6 * x.astype(np.float64) + 0.0714 * x.astype(np.float64) ** 3
    bound = 5 + (3 * np.maximum(0, -t) if name == "gelu_tanh" else 0)
    excess = ulp_error(y, want, floor=1e-30) / bound
    assert excess.max() <= 1, (x[excess.argmax()], y[excess.argmax()], want[excess.argmax()])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_at_the_extremes(level: str, name: str) -> None:
    x = np.array([0, -0.0, 88, -88, 104, -104, 1e4, -1e4, 3e38, -3e38, 1e-40, np.nan], np.float32)
    y = np.empty_like(x)
    k.activation(level, x, name, y)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        want = reference_activation(name, x).astype(np.float32)
    assert np.isnan(y[-1]) and np.isfinite(y[:-1]).all()
    np.testing.assert_allclose(y[:-1], want[:-1], rtol=2e-5, atol=1e-36)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_glu_multiplies_by_up(level: str, name: str) -> None:
    for n in WIDTHS:
        gate, up = guarded(rand(n, seed=n, scale=3)), guarded(rand(n, seed=n + 1))
        y, act = guarded(np.zeros(n, np.float32)), np.empty(n, np.float32)
        k.activation(level, gate, name, act)
        k.glu(level, gate, up, name, y)
        np.testing.assert_array_equal(y, act * up)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(level: str, width: int) -> None:
    x, w, res = (guarded(rand(width, seed=s, scale=5)) for s in (1, 2, 3))
    for weight, offset, residual in ((w, 0.0, None), (w, 1.0, res), (None, 0.0, res)):
        y = guarded(np.full(width, np.nan, np.float32))
        k.rms_norm(level, x, weight, offset, 1e-6, residual, y)
        x64 = x.astype(np.float64)
        want = x64 / np.sqrt((x64**2).mean() + 1e-6)
        want = want * (weight.astype(np.float64) + offset) if weight is not None else want
        want = want + residual if residual is not None else want
        np.testing.assert_allclose(y, want, rtol=1e-6, atol=2e-6)
        alias = guarded(x)
        k.rms_norm(level, alias, weight, offset, 1e-6, residual, alias)
        np.testing.assert_array_equal(alias, y)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(level: str, width: int) -> None:
    x = guarded(rand(width, seed=1, scale=5) + np.float32(20))  # a mean that one pass would lose
    w, b = guarded(rand(width, seed=2)), guarded(rand(width, seed=3))
    for weight, bias in ((w, b), (w, None), (None, None)):
        y = guarded(np.full(width, np.nan, np.float32))
        k.layer_norm(level, x, weight, bias, 1e-5, y)
        x64 = x.astype(np.float64)
        want = (x64 - x64.mean()) / np.sqrt(x64.var() + 1e-5)
        want = want * weight if weight is not None else want
        want = want + bias if bias is not None else want
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
        alias = guarded(x)
        k.layer_norm(level, alias, weight, bias, 1e-5, alias)
        np.testing.assert_array_equal(alias, y)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "half"), [(2, 1), (8, 4), (64, 32), (80, 40), (256, 32), (34, 17)])
def test_rope_rotates_pairs_and_leaves_the_rest(
    level: str, interleaved: bool, dim: int, half: int
) -> None:
    heads = 3
    x = rand(heads, dim, seed=dim)
    angle = np.random.default_rng(5).uniform(0, 6, half)
    cos, sin = guarded(np.cos(angle).astype(np.float32)), guarded(np.sin(angle).astype(np.float32))
    got = guarded(x)
    k.rope(level, got, dim, cos, sin, interleaved)
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    want = x.astype(np.float64)
    z = (x[:, first] + 1j * x[:, second]) * (cos.astype(np.float64) + 1j * sin)
    want[:, first], want[:, second] = z.real, z.imag
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(got[:, 2 * half :], x[:, 2 * half :])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", WIDTHS)
def test_arithmetic(level: str, width: int) -> None:
    a, b = guarded(rand(width, seed=1)), guarded(rand(width, seed=2))
    for kernel, want in ((k.add, a + b), (k.mul, a * b)):
        for target in (guarded(a), guarded(b)):
            first = target if np.array_equal(target, a) else a
            second = target if first is not target else b
            kernel(level, first, second, target)
            np.testing.assert_array_equal(target, want)
    y = guarded(a)
    k.scale(level, y, 0.37, y)
    np.testing.assert_array_equal(y, a * np.float32(0.37))
    big = guarded(rand(width, seed=3, scale=60))
    want64 = 30 * np.tanh(big.astype(np.float64) / 30)
    k.softcap(level, big, 30.0, big)
    assert ulp_error(big, want64).max() <= 5


@pytest.mark.parametrize("level", LEVELS)
def test_tanh_near_zero_and_saturated(level: str) -> None:
    x = np.concatenate([np.logspace(-38, 2, 20000), [3e38, 0.0, 0.55]]).astype(np.float32)
    x = np.concatenate([x, -x, [np.float32(np.nan)]])
    y = np.empty_like(x)
    k.softcap(level, x, 1.0, y)
    assert np.isnan(y[-1])
    assert ulp_error(y[:-1], np.tanh(x[:-1].astype(np.float64))).max() <= 3


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dim", [2, 16, 33, 64, 128])
def test_head_gate(level: str, dim: int) -> None:
    x, gate = guarded(rand(5, dim, seed=1)), guarded(rand(5, seed=2, scale=4))
    y = guarded(np.zeros((5, dim), np.float32))
    k.head_gate(level, x, gate, y)
    want = x / (1 + np.exp(-gate.astype(np.float64)))[:, None]
    assert ulp_error(y, want).max() <= 4


def test_vector_levels_agree_bitwise() -> None:
    """avx2 and avx512 run the same operations lane by lane; norms agree with scalar too."""
    levels = [v for v in ("avx2", "avx512") if v in _native.available_levels()]
    if len(levels) < 2:
        pytest.skip("needs avx2 and avx512")
    x = rand(1027, seed=9, scale=4)
    for name in ACTIVATIONS:
        results = []
        for level in levels:
            y = np.empty_like(x)
            k.activation(level, x, name, y)
            results.append(y)
        np.testing.assert_array_equal(results[0], results[1])
    results = []
    for level in ["scalar", *levels]:
        y, z = np.empty_like(x), np.empty_like(x)
        k.rms_norm(level, x, None, 0.0, 1e-6, None, y)
        k.layer_norm(level, x, None, None, 1e-6, z)
        results.append((y, z))
    for y, z in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(z, results[0][1])


def test_wrong_sizes_are_refused() -> None:
    from edge_infer.errors import ConfigError

    x = rand(8)
    with pytest.raises(ConfigError, match="7 values, not 8"):
        k.add("scalar", x, rand(7), np.empty(8, np.float32))
    with pytest.raises(ConfigError, match="swish"):
        k.activation("scalar", x, "swish", x)
