"""Vocabulary passes and SamplingState against a float64 reference that knows the generator."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from rows_support import guarded, k, level_params, ulp_error

from edge_infer import _native
from edge_infer.errors import ConfigError, ExecutionError

LEVELS = level_params()
VOCAB = 262_144
INF = np.float32(np.inf)


def rand(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def uniform(seed: int, position: int) -> float:
    r = k.philox(seed, [position & 0xFFFFFFFF, position >> 32, 0, 0])
    return ((r[0] << 32 | r[1]) >> 11) * 2.0**-53


def kept(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """ids (ascending) that stay in the draw, and their f64 weights, by sorting everything."""
    x = logits.astype(np.float64)
    order = np.lexsort((np.arange(len(x)), -x))
    order = order[np.isfinite(x[order])]
    if top_k > 0:
        order = order[:top_k]
    w = np.exp((x[order] - x.max()) / temperature)
    if top_p < 1:
        n = int(np.searchsorted(np.cumsum(w), top_p * w.sum())) + 1
        order, w = order[:n], w[:n]
    order = order[w >= min_p]
    ids = np.sort(order)
    return ids, np.exp((x[ids] - x.max()) / temperature)


def drawn(ids: np.ndarray, weights: np.ndarray, u: float) -> int:
    total = np.cumsum(weights)
    return int(ids[min(int(np.searchsorted(total, u * total[-1], "right")), len(ids) - 1)])


# --- passes over a row ---


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 5, 8, 16, 31, 64, 65, 1000, 4099])
def test_row_passes(level: str, n: int) -> None:
    x = guarded(rand(n, seed=n, scale=4))
    assert k.argmax(level, x) == x.argmax()
    assert k.reduce_max(level, x) == x.max()
    assert k.all_finite(level, x)
    x64 = x.astype(np.float64)
    want = np.exp((x64 - x.max()) / 0.7)
    y = guarded(np.zeros(n, np.float32))
    k.exp_row(level, x, x.max(), 1 / 0.7, y)
    np.testing.assert_allclose(y, want, rtol=5e-6)
    assert math.isclose(k.exp_sum(level, x, x.max(), 1 / 0.7), want.sum(), rel_tol=1e-6)
    for capacity in (0, 1, n // 2, n, n + 40):
        ids = guarded(np.full(capacity, -7, np.int32))
        expected = np.flatnonzero(x >= np.float32(0.5))
        assert k.collect_above(level, x, 0.5, ids) == len(expected)
        written = min(capacity, len(expected))
        np.testing.assert_array_equal(ids[:written], expected[:written])
        assert (ids[written:] == -7).all()


@pytest.mark.parametrize("level", LEVELS)
def test_ties_and_unusual_values(level: str) -> None:
    for n in (1, 7, 40, 100, 333):
        for at in {0, n // 2, n - 1}:
            x = np.zeros(n, np.float32)
            x[at:] = 3  # the first of equals wins
            assert k.argmax(level, x) == at
            x[:at] = np.nan
            assert k.argmax(level, x) == at and k.reduce_max(level, x) == 3
            assert k.all_finite(level, x) == (at == 0)
            x[:] = -INF
            assert k.all_finite(level, x) and k.reduce_max(level, x) == -INF
            for bad in (np.nan, INF):
                x[:] = 1
                x[at] = bad
                assert not k.all_finite(level, x)


@pytest.mark.parametrize("level", LEVELS)
def test_exp_is_within_two_ulp(level: str) -> None:
    x = np.concatenate([-np.logspace(-8, 2, 100_000), [-200, -1e30, -INF, 0, np.nan]])
    x = x.astype(np.float32)
    y = np.empty_like(x)
    k.exp_row(level, x, 0.0, 1.0, y)
    usual = x > -86.9
    assert ulp_error(y[usual], np.exp(x[usual].astype(np.float64))).max() <= 2
    assert (y[x < -86.9] < 2e-38).all()  # the vector levels skip denormal results
    assert (y[-5:-2] == 0).all() and y[-2] == 1 and np.isnan(y[-1])


def test_philox_known_answers() -> None:
    """The vectors published with the generator (Random123, kat_vectors)."""
    assert k.philox(0, [0] * 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert k.philox(2**64 - 1, [ones] * 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    got = k.philox(0x299F31D0A4093822, pi)
    assert got == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


# --- SamplingState ---

SETTINGS = [
    {},
    {"temperature": 0.6},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 40, "temperature": 1.7},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"top_p": 0.999, "temperature": 0.8},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_p": 0.8, "min_p": 0.02},
    {"top_p": 0.5, "min_p": 0.2},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "temperature": 0.7},
    {"top_k": 100_000_000, "top_p": 0.95},
]


def shapes(n: int) -> dict[str, np.ndarray]:
    peaked = rand(n, seed=1, scale=1.5)
    peaked[:: max(1, n // 20)] += np.linspace(3, 12, len(peaked[:: max(1, n // 20)]))
    holes = rand(n, seed=2, scale=3)
    holes[1::3] = -INF
    return {
        "peaked": peaked.astype(np.float32),
        "flat": rand(n, seed=3, scale=0.01),
        "equal": np.full(n, 2.5, np.float32),
        "holes": holes,
        "sorted": np.sort(rand(n, seed=4, scale=4)),
        "steps": np.floor(rand(n, seed=5, scale=3)).astype(np.float32),
        "wide": rand(n, seed=6, scale=1e30),
    }


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("n", [1, 50, 5000])
def test_draws_equal_the_reference(level: str, settings: dict, n: int) -> None:
    """Token for token; a draw within 1e-5 of an edge of the distribution may fall either way."""
    for name, logits in shapes(n).items():
        ids, weights = kept(logits, **settings)
        state = _native.SamplingState(n, seed=99, level=level, **settings)
        edges = np.cumsum(weights) / weights.sum()
        for position in range(40):
            u = uniform(99, position)
            token = state.sample(logits).token
            if np.abs(edges - u).min() > 1e-5:
                assert token == drawn(ids, weights, u), (name, position)
        assert state.position == 40


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "settings",
    [{"top_p": 0.5}, {"top_k": 131_072}, {"top_k": 131_072, "top_p": 1.0}, {"top_k": 5000}],
    ids=str,
)
def test_large_flat_vocabulary_is_exact(level: str, settings: dict) -> None:
    """Equal logits: ranks are ids, and every sum is exact, so the kept set is known exactly."""
    logits = np.zeros(VOCAB, np.float32)
    count = settings.get("top_k", VOCAB // 2)
    state = _native.SamplingState(VOCAB, seed=5, level=level, **settings)
    for position in range(20):
        assert state.sample(logits).token == int(uniform(5, position) * count)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999])
def test_large_vocabulary_top_p(level: str, top_p: float) -> None:
    for scale in (0.01, 1.0, 5.0):
        logits = rand(VOCAB, seed=8, scale=scale)
        ids, weights = kept(logits, top_p=top_p)
        edges = np.cumsum(weights) / weights.sum()
        state = _native.SamplingState(VOCAB, seed=6, top_p=top_p, level=level)
        checked = 0
        for position in range(15):
            u = uniform(6, position)
            token = state.sample(logits).token
            assert token in ids
            if np.abs(edges - u).min() > 1e-7:
                # the f32 weights move an edge by parts in 1e7, which is a few tokens when flat
                at = np.searchsorted(ids, token)
                assert abs(edges[at] - u) < 1e-5 + weights[at] / weights.sum()
                checked += 1
        assert checked > 5


@pytest.mark.parametrize("level", LEVELS)
def test_frequencies_follow_the_distribution(level: str) -> None:
    logits = rand(30, seed=1, scale=1.2)
    for settings in ({}, {"temperature": 0.5}, {"top_k": 8}, {"top_p": 0.7}, {"min_p": 0.15}):
        ids, weights = kept(logits, **settings)
        state = _native.SamplingState(30, seed=2024, level=level, **settings)
        draws = 20_000
        counts = np.bincount([state.sample(logits).token for _ in range(draws)], minlength=30)
        assert counts.sum() == counts[ids].sum()
        expected = weights / weights.sum() * draws
        chi2 = ((counts[ids] - expected) ** 2 / expected).sum()
        freedom = len(ids) - 1
        assert chi2 < freedom + 4 * math.sqrt(2 * freedom)
        assert chi2 > freedom - 4 * math.sqrt(2 * freedom)  # suspiciously even is wrong too


def test_a_seed_and_position_decide() -> None:
    logits = rand(1000, seed=1)

    def run(seed: int | None, n: int = 30) -> list[int]:
        s = _native.SamplingState(1000, seed=seed)
        return [s.sample(logits).token for _ in range(n)]

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert run(None) != run(None)
    state = _native.SamplingState(1000, seed=7)
    for token in run(7, 10):
        state.accept(token)  # recomputed after preemption: positions go on
    assert [state.sample(logits).token for _ in range(20)] == run(7)[10:]
    results: list[list[int]] = [[] for _ in range(4)]

    def worker(i: int) -> None:
        results[i] = run(7)

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(r == run(7) for r in results)


def test_a_pick_counts_nothing_and_a_second_draw_is_independent() -> None:
    n, allowed = 64, 20
    logits = rand(n, seed=4, scale=1.0)
    logits[allowed:] += 1.0  # most draws are not allowed
    mask = np.array([(1 << allowed) - 1, 0], np.uint32)
    state = _native.SamplingState(n, seed=11)
    counts = np.zeros(n)
    for _ in range(20_000):
        result = state.pick(logits)
        assert result.token == state.pick(logits, again=False).token  # nothing was counted
        if result.token >= allowed:
            result = state.pick(logits, mask, again=True)
        counts[result.token] += 1
        state.accept(result.token)
    assert counts[allowed:].sum() == 0
    p = np.exp(logits[:allowed].astype(np.float64))
    p /= p.sum()
    chi = (((counts[:allowed] - 20_000 * p) ** 2) / (20_000 * p)).sum()
    assert chi < 45  # 19 degrees of freedom: 0.07 % of sound generators are beyond
    twin = _native.SamplingState(n, seed=11)
    assert twin.sample(logits).token == _native.SamplingState(n, seed=11).pick(logits).token
    assert (twin.position, state.position) == (1, 20_000)


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_greedy_takes_the_first_of_equals(temperature: float) -> None:
    logits = rand(VOCAB, seed=1)
    logits[[70_000, 1234, 200_000]] = 50
    state = _native.SamplingState(VOCAB, temperature=temperature)
    assert state.sample(logits).token == 1234
    low = _native.SamplingState(VOCAB, temperature=2e-5, seed=1)
    assert {low.sample(logits).token for _ in range(50)} == {70_000, 1234, 200_000}


def test_penalties_and_bias_in_order() -> None:
    """Bias, then repetition (prompt and output), then frequency and presence (output only)."""
    logits = np.array([2.0, 1.0, -1.0, 0.5, 0.0, -2.0], np.float32)
    original = logits.copy()
    bias = {1: 0.5, 4: -2.0}
    settings = {"repetition_penalty": 2.0, "presence_penalty": 0.3, "frequency_penalty": 0.1}
    state = _native.SamplingState(6, seed=1, logit_bias=bias, **settings)
    prompt, output = {0, 2}, [1, 1, 4]
    state.add_prompt(np.array([0, 2, 2], np.int32))
    for token in output:
        state.accept(token)
    for position in range(3, 60):  # each draw is counted, too
        want = logits.astype(np.float64)
        for i, b in bias.items():
            want[i] += b
        for i in prompt | set(output):
            want[i] = want[i] / 2 if want[i] > 0 else want[i] * 2
        for i in set(output):
            want[i] -= output.count(i) * 0.1 + 0.3
        token = state.sample(logits).token
        assert token == drawn(*kept(want), uniform(1, position))
        output.append(token)
    assert len(set(output)) > 3
    np.testing.assert_array_equal(logits, original)


def greedy(logits: np.ndarray, mask: np.ndarray | None = None, **settings: object) -> int:
    state = _native.SamplingState(len(logits), temperature=0, **settings)
    return state.sample(logits, mask).token


def test_each_penalty_alone() -> None:
    logits = np.array([3.0, 2.9, -5.0, 2.8], np.float32)
    assert greedy(logits) == 0
    assert greedy(logits, logit_bias={0: -0.15}) == 1
    assert greedy(logits, logit_bias={0: -math.inf, 1: -math.inf}) == 3
    state = _native.SamplingState(4, temperature=0, repetition_penalty=1.5)
    state.add_prompt([0, 1])
    assert [state.sample(logits).token for _ in range(2)] == [3, 0]
    state = _native.SamplingState(4, temperature=0, presence_penalty=0.15)
    state.add_prompt([0, 0, 0])  # presence and frequency do not look at the prompt
    assert [state.sample(logits).token for _ in range(4)] == [0, 1, 0, 0]
    state = _native.SamplingState(4, temperature=0, frequency_penalty=0.06)
    assert [state.sample(logits).token for _ in range(5)] == [0, 0, 1, 0, 1]
    state = _native.SamplingState(4, temperature=0, repetition_penalty=0.5)
    state.add_prompt([3])
    assert state.sample(logits).token == 3


@pytest.mark.parametrize("n", [31, 32, 33, 1000, 4097])
@pytest.mark.parametrize(
    "settings", [{"temperature": 0}, {}, {"top_k": 5}, {"top_p": 0.9}], ids=str
)
def test_mask(n: int, settings: dict) -> None:
    logits = rand(n, seed=n)
    rng = np.random.default_rng(n)
    for density in (0.02, 0.5, 1.0):
        allowed = rng.random(n) < density
        allowed[rng.integers(n)] = True
        bits = np.zeros(-(-n // 32) * 32, bool)
        bits[:n] = allowed
        bits[n:] = rng.random(len(bits) - n) < 0.5  # beyond the vocabulary: no effect
        mask = np.packbits(bits, bitorder="little").view(np.uint32)
        state = _native.SamplingState(n, seed=3, **settings)
        tokens = [state.sample(logits, mask).token for _ in range(50)]
        assert allowed[tokens].all()
        if settings == {"temperature": 0}:
            assert tokens[0] == np.where(allowed, logits, -INF).argmax()
        elif density < 1 and settings == {}:
            masked = np.where(allowed, logits, -INF)
            assert tokens[1] == drawn(*kept(masked), uniform(3, 1))


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [40, VOCAB])
def test_logprobs_are_those_of_the_raw_logits(level: str, n: int) -> None:
    logits = np.round(rand(n, seed=1, scale=3), 1)  # many ties
    want = log_softmax(logits)
    order = np.lexsort((np.arange(n), -logits))
    rank = np.empty(n, int)
    rank[order] = np.arange(1, n + 1)
    for count in (0, 1, 5, 20):
        state = _native.SamplingState(
            n, seed=2, temperature=0.5, logit_bias={3: 4.0}, num_logprobs=count, level=level
        )
        for _ in range(10):
            r = state.sample(logits)
            assert math.isclose(r.logprob, want[r.token], rel_tol=1e-6, abs_tol=1e-6)
            assert r.rank == rank[r.token]
            assert [i for i, _ in r.top] == list(order[:count])
            np.testing.assert_allclose([v for _, v in r.top], want[order[:count]], atol=1e-6)
    r = _native.SamplingState(n).sample(logits)
    assert r.logprob is None and r.rank == 0 and r.top == []


def test_logprobs_of_a_whole_small_vocabulary() -> None:
    logits = rand(20, seed=1)
    logits[4] = -INF
    r = _native.SamplingState(20, temperature=0, num_logprobs=20).sample(logits)
    assert len(r.top) == 19  # a token of probability 0 is not listed
    assert math.isclose(sum(math.exp(v) for _, v in r.top), 1.0, rel_tol=1e-6)


# --- refusals ---


@pytest.mark.parametrize("level", LEVELS)
def test_unusable_logits_are_errors_with_numbers(level: str) -> None:
    for settings in ({"temperature": 0}, {}, {"top_k": 5}):
        state = _native.SamplingState(1000, seed=1, level=level, **settings)
        logits = rand(1000)
        logits[[17, 400]] = np.nan
        logits[500] = INF
        with pytest.raises(ExecutionError, match=r"1000 logits, 2 are NaN and 1 are \+inf.*17"):
            state.sample(logits)
        with pytest.raises(ExecutionError, match="1000 tokens are all -inf"):
            state.sample(np.full(1000, -INF))
        with pytest.raises(ExecutionError, match="leave none of 1000 tokens allowed"):
            state.sample(rand(1000), np.zeros(32, np.uint32))
        assert state.position == 0
        state.sample(rand(1000))
        assert state.position == 1
    state = _native.SamplingState(4, repetition_penalty=1e-6, level=level)
    state.add_prompt([2])
    with pytest.raises(ExecutionError, match=r"token 2 of 4 tokens to \+inf"):
        state.sample(np.array([0, 0, 3e38, 0], np.float32))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": 0.0}, "top_p is 0;"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": -0.5}, "min_p is -0.5"),
        ({"min_p": 2.0}, "min_p is 2;"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0;"),
        ({"presence_penalty": math.inf}, "presence_penalty is inf"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"num_logprobs": 101}, "num_logprobs is 101.*100"),
        ({"num_logprobs": -2}, "num_logprobs is -2"),
        ({"logit_bias": {100: 1.0}}, "token 100 is outside the vocabulary of 100"),
        ({"logit_bias": {-1: 1.0}}, "token -1 is outside"),
        ({"logit_bias": {1: math.inf}}, "logit_bias is inf"),
        ({"logit_bias": {1: math.nan}}, "logit_bias is nan"),
    ],
    ids=str,
)
def test_parameters_out_of_range(settings: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        _native.SamplingState(100, **settings)


def test_foreign_tokens_and_shapes() -> None:
    with pytest.raises(ConfigError, match="vocab_size is 0"):
        _native.SamplingState(0)
    state = _native.SamplingState(100)
    with pytest.raises(ConfigError, match="prompt token 100 is outside"):
        state.add_prompt([1, 100])
    with pytest.raises(ConfigError, match="token -1 is outside"):
        state.accept(-1)
    with pytest.raises(ConfigError, match="logits has 99 elements"):
        state.sample(np.zeros(99, np.float32))
    with pytest.raises(ConfigError, match="mask has 3 elements"):
        state.sample(np.zeros(100, np.float32), np.zeros(3, np.uint32))


def test_given_tokens_have_the_logprobs_of_raw_logits() -> None:
    logits = np.stack([rand(5000, seed, 3.0) for seed in range(3)])
    tokens = np.array([17, int(logits[1].argmax()), 4999], np.int32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    for row, result in enumerate(_native.token_logprobs(logits, tokens, 4)):
        order = np.argsort(-exact[row], kind="stable")
        assert result.token == tokens[row]
        assert result.logprob == pytest.approx(exact[row, tokens[row]], abs=1e-5)
        assert result.rank == 1 + int(np.flatnonzero(order == tokens[row])[0])
        assert [i for i, _ in result.top] == order[:4].tolist()
    assert _native.token_logprobs(logits[:1], tokens[:1])[0].top == []
    for bad in ([5000], [-1]):
        with pytest.raises(ConfigError, match="vocabulary of 5000"):
            _native.token_logprobs(logits[:1], np.array(bad, np.int32))
    with pytest.raises(ConfigError, match="rows"):
        _native.token_logprobs(logits, tokens[:2])
    logits[2, 5] = np.nan
    with pytest.raises(ExecutionError, match="NaN"):
        _native.token_logprobs(logits, tokens)
