"""Paged attention against float64: decode splits, merges and prefill, at every level."""

from __future__ import annotations

import numpy as np
import pytest
from rows_support import (
    BLOCK,
    Pool,
    attention_reference,
    from_kv,
    guarded,
    k,
    kv_block_bytes,
    level_params,
    to_kv,
)

LEVELS = level_params()
ROUNDED = " rounded"  # after a level: its kernel with weights and values in bf16
PREFILLS = level_params() + level_params(["avx512bf16"], ROUNDED)
TOLERANCE = 2e-5
DTYPES = ["f16", "bf16", "int8"]


def table(level: str) -> str:
    return level.removesuffix(ROUNDED)


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def make_pool(
    tokens: int, kv_heads: int, dim: int, dtype: str = "f16", first_block: int = 0, scale: float = 1
) -> Pool:
    shape = (tokens, kv_heads, dim)
    return Pool(rand(*shape, seed=1, scale=scale), rand(*shape, seed=2), dtype, first_block)


def split(
    level: str, pool: Pool, head: int, q: np.ndarray, begin: int, end: int, cap: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    heads, dim = q.shape
    m, l = (guarded(np.full(heads, np.nan, np.float32)) for _ in range(2))  # noqa: E741
    acc = guarded(np.full((heads, dim), np.nan, np.float32))
    k.attention_split(
        table(level), pool.data, pool.dtype, pool.kv_heads, head, pool.blocks, guarded(q),
        begin, end, dim**-0.5, cap, m, l, acc,
    )  # fmt: skip
    return m, l, acc


def merge(level: str, parts: list, head: int, dim: int) -> np.ndarray:
    out = guarded(np.full(dim, np.nan, np.float32))
    m, l = (guarded(np.array([p[i][head] for p in parts])) for i in range(2))  # noqa: E741
    k.attention_merge(table(level), m, l, guarded(np.stack([p[2][head] for p in parts])), out)
    return out


def prefill(
    level: str, pool: Pool, head: int, q: np.ndarray, begin: list, end: list, cap: float = 0.0
) -> np.ndarray:
    out = guarded(np.full(q.shape, np.nan, np.float32))
    k.attention_prefill(
        table(level), pool.data, pool.dtype, pool.kv_heads, head, pool.blocks, guarded(q),
        np.asarray(begin, np.int32), np.asarray(end, np.int32), q.shape[2] ** -0.5, cap, out,
        level.endswith(ROUNDED),
    )  # fmt: skip
    return out


def reference(
    pool: Pool, head: int, q: np.ndarray, begin: int, end: int, cap: float = 0.0
) -> np.ndarray:
    rows = slice(begin, max(begin, end))
    return attention_reference(
        q, pool.keys[rows, head], pool.values[rows, head], q.shape[-1] ** -0.5, cap
    )


def assert_prefill(
    level: str, got: np.ndarray, pool: Pool, head: int, q: np.ndarray, begin: int, end: int,
    cap: float = 0.0, tolerance: float = TOLERANCE,
) -> None:  # fmt: skip
    """amx multiplies pairs of bf16, 16 to 17 bits of each operand, and the scores here reach 20.
    Where weights and values are rounded to bf16, each moves by 2^-8 of itself at most; values that
    are stored as bf16 or int8 do not."""
    rows = slice(begin, max(begin, end))
    bound = np.full(got.shape, max(tolerance, 1e-4) if level == "amx" else tolerance)
    if level.endswith(ROUNDED):
        keys, values = pool.keys[rows, head], np.abs(pool.values[rows, head])
        rounding = 2**-7 if pool.dtype == "f16" else 2**-8
        bound += rounding * attention_reference(q, keys, values, q.shape[-1] ** -0.5, cap)
    assert (np.abs(got - reference(pool, head, q, begin, end, cap)) <= bound).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 5, 16, 40, 64, 128])
def test_kv_store_lays_out_and_rounds(level: str, dtype: str, dim: int) -> None:
    special = np.array(
        [0, -0.0, 65504, 65519, 65520, 1e6, -1e6, 6e-8, 2.9e-8, 3e-8, 5.96e-5, 6.1e-5, 1e-9, np.inf,
         1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, np.nan], np.float32
    )  # fmt: skip
    heads = 3
    key, value = rand(heads, dim, seed=1, scale=3), rand(heads, dim, seed=2, scale=3)
    for x in (key, value):
        flat = x.reshape(-1)
        n = min(len(special), flat.size)
        flat[-n:] = special[-n:]
        if flat.size >= 2 * len(special):
            flat[: len(special)] = -special
    fill = 0x34
    pool = guarded(np.full((3, kv_block_bytes(dtype, heads, dim)), fill, np.uint8))
    block, slot = 2, BLOCK - 1
    k.kv_store(level, pool, dtype, block, slot, guarded(key[None]), guarded(value[None]))
    want = [to_kv(x, dtype) for x in (key, value)]
    elements, unit = 2 * heads * dim * BLOCK, want[0][0].itemsize
    got = pool[block, : elements * unit].view(want[0][0].dtype).reshape(2 * heads, dim * BLOCK)
    stored_keys = np.stack([got[h].reshape(dim, BLOCK)[:, slot] for h in range(heads)])
    stored_values = np.stack([got[heads + h].reshape(BLOCK, dim)[slot] for h in range(heads)])
    scales = pool[block, elements * unit :].view(np.float32).reshape(-1, heads, BLOCK)
    written = 2 * heads * dim * unit
    for i, (stored, x) in enumerate(((stored_keys, key), (stored_values, value))):
        codes, want_scales = want[i]
        if dtype == "int8":
            np.testing.assert_array_equal(stored, codes)
            np.testing.assert_array_equal(scales[i, :, slot], want_scales)
            written += 4 * heads
            continue
        nan = np.isnan(x)
        assert np.isnan(from_kv(stored, want_scales, dtype)[nan]).all()
        np.testing.assert_array_equal(stored[~nan], codes[~nan])
    assert (pool != fill).sum() <= written
    assert (pool[:2] == fill).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 17, 64, 80, 256])
def test_kv_store_of_many_tokens_is_that_of_each(level: str, dtype: str, dim: int) -> None:
    heads = 3
    keys, values = (rand(BLOCK, heads, dim, seed=s, scale=3) for s in (1, 2))
    keys[3] = 0
    values[5, 1, 0] = np.inf
    for slot, tokens in ((0, BLOCK), (0, 1), (5, 20), (BLOCK - 1, 1), (16, 16), (31, 1), (7, 25)):
        together, one_by_one, by_head = (
            guarded(np.full((2, kv_block_bytes(dtype, heads, dim)), 0x34, np.uint8)) for _ in "abc"
        )
        k.kv_store(
            level, together, dtype, 1, slot, guarded(keys[:tokens]), guarded(values[:tokens])
        )
        for i in range(tokens):
            one = guarded(keys[i : i + 1]), guarded(values[i : i + 1])
            k.kv_store("scalar", one_by_one, dtype, 1, slot + i, *one)
        np.testing.assert_array_equal(together, one_by_one)
        all_tokens = guarded(keys[:tokens]), guarded(values[:tokens])
        for begin, end in ((1, 3), (0, 1)):
            assert (by_head != together).any()
            k.kv_store(level, by_head, dtype, 1, slot, *all_tokens, head_begin=begin, head_end=end)
        np.testing.assert_array_equal(by_head, together)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 8, 16, 17, 64, 80, 128, 256])
def test_split_is_attention(level: str, dtype: str, dim: int) -> None:
    pool = make_pool(150, 2, dim, dtype)
    q = rand(3, dim, seed=3, scale=2)
    for begin, end in ((0, 150), (0, 1), (0, 32), (33, 63), (31, 97), (64, 128), (149, 150)):
        m, l, acc = split(level, pool, 1, q, begin, end)  # noqa: E741
        want = reference(pool, 1, q, begin, end)
        np.testing.assert_allclose(acc / l[:, None], want, rtol=0, atol=TOLERANCE)
        scores = q.astype(np.float64) @ pool.keys[begin:end, 1].T * dim**-0.5
        np.testing.assert_allclose(m, scores.max(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("heads", [*range(1, 10), 16, 19])
def test_any_number_of_heads_shares_a_kv_head(level: str, heads: int) -> None:
    pool = make_pool(70, 1, 64)
    q = rand(heads, 64, seed=3, scale=2)
    together = split(level, pool, 0, q, 5, 70)
    np.testing.assert_allclose(
        together[2] / together[1][:, None], reference(pool, 0, q, 5, 70), rtol=0, atol=TOLERANCE
    )
    for h in range(heads):
        alone = split(level, pool, 0, q[h : h + 1], 5, 70)
        for got, want in zip(alone, together, strict=True):
            np.testing.assert_allclose(got[0], want[h], rtol=1e-5, atol=TOLERANCE)


@pytest.mark.parametrize("level", PREFILLS)
def test_empty_ranges(level: str) -> None:
    pool = make_pool(64, 1, 16)
    q = rand(2, 16)
    for begin, end in ((0, 0), (40, 40), (50, 40)):
        m, l, acc = split(level, pool, 0, q, begin, end)  # noqa: E741
        assert (m == -np.inf).all() and (l == 0).all() and (acc == 0).all()
    empty, full = split(level, pool, 0, q, 7, 7), split(level, pool, 0, q, 7, 60)
    want = reference(pool, 0, q, 7, 60)
    np.testing.assert_allclose(merge(level, [empty, full, empty], 1, 16), want[1], atol=TOLERANCE)
    assert (merge(level, [empty, empty], 0, 16) == 0).all()
    out = prefill(level, pool, 0, rand(3, 2, 16), [5, 40, 9], [5, 30, 20])
    assert (out[:2] == 0).all() and (out[2] != 0).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dim", [16, 33, 128])
def test_merged_splits_equal_the_whole(level: str, dim: int) -> None:
    tokens = 4500
    pool = make_pool(tokens, 1, dim)
    q = rand(2, dim, seed=4, scale=4)
    want = reference(pool, 0, q, 100, tokens)
    for size in (512, 1024, 4500):
        edges = list(range(100 // size * size, tokens + size, size))
        parts = [split(level, pool, 0, q, max(100, a), min(tokens, a + size)) for a in edges[:-1]]
        for h in range(2):
            got = merge(level, parts, h, dim)
            np.testing.assert_allclose(got, want[h], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("level", PREFILLS)
@pytest.mark.parametrize("cap", [0.0, 20.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "heads"), [(2, 1), (8, 2), (17, 3), (64, 4), (80, 5), (256, 2)])
def test_prefill_is_attention(level: str, cap: float, dtype: str, dim: int, heads: int) -> None:
    tokens = 140
    pool = make_pool(tokens, 2, dim, dtype)
    q = rand(31, heads, dim, seed=5, scale=3)
    rng = np.random.default_rng(6)
    causal = list(range(tokens - 30, tokens + 1))
    begins = rng.integers(0, tokens, 31)
    for begin, end in (
        ([0] * 31, causal),
        ([max(0, e - 40) for e in causal], causal),
        ([7] * 31, [133] * 31),
        (begins, [rng.integers(b, tokens + 1) for b in begins]),
    ):
        out = prefill(level, pool, 1, q, begin, end, cap)
        for r in range(31):
            assert_prefill(level, out[r], pool, 1, q[r], int(begin[r]), int(end[r]), cap)


@pytest.mark.parametrize("level", PREFILLS)
@pytest.mark.parametrize(("dim", "heads"), [(16, 1), (64, 3), (40, 8)])
def test_a_prefill_row_does_not_depend_on_its_company(level: str, dim: int, heads: int) -> None:
    tokens = 290
    pool = make_pool(tokens, 1, dim)
    q = rand(40, heads, dim, seed=7, scale=3)
    end = np.arange(tokens - 39, tokens + 1)
    begin = np.maximum(0, end - 77)
    together = prefill(level, pool, 0, q, begin, end)
    for r in (0, 1, 12, 39):
        one = slice(r, r + 1)
        np.testing.assert_array_equal(
            prefill(level, pool, 0, q[one], begin[one], end[one])[0], together[r]
        )
    for cut in (5, 23):
        halves = [
            prefill(level, pool, 0, q[part], begin[part], end[part])
            for part in (slice(0, cut), slice(cut, None))
        ]
        np.testing.assert_array_equal(np.concatenate(halves), together)


@pytest.mark.parametrize("level", PREFILLS)
@pytest.mark.parametrize("dim", [16, 128])
def test_released_blocks_are_never_read(level: str, dim: int) -> None:
    pool = make_pool(160, 1, dim, first_block=3)
    assert (pool.blocks[:3] == -1).all()
    q = rand(2, dim)
    _, l, acc = split(level, pool, 0, q, 100, 160)  # noqa: E741
    np.testing.assert_allclose(
        acc / l[:, None], reference(pool, 0, q, 100, 160), rtol=0, atol=TOLERANCE
    )
    out = prefill(level, pool, 0, q[None], [97], [155])
    assert_prefill(level, out[0], pool, 0, q, 97, 155)
    pool.blocks[3] = -1  # a block between the ranges of two rows
    pool.blocks[2] = pool.blocks[4]
    out = prefill(level, pool, 0, np.stack([q, q]), [64, 128], [96, 160])
    assert np.isfinite(out).all()


@pytest.mark.parametrize("level", PREFILLS)
@pytest.mark.parametrize("dim", [16, 40])
def test_a_block_that_no_row_sees_is_not_read(level: str, dim: int) -> None:
    """Not even where rows see blocks on both sides of it, and what the scratch holds in its place
    (here NaN, of earlier blocks that other tiles of rows see) does not count."""
    values = rand(300, 1, dim, seed=2)
    values[20:60] = np.inf
    pool = Pool(rand(300, 1, dim, seed=1), values, "f16")
    q = rand(26, 2, dim, seed=3)
    begin, end = [0] * 24 + [130, 224], [128] * 24 + [150, 256]
    for block in (5, 6, 8, 9):
        pool.blocks[block] = -1
    out = prefill(level, pool, 0, q, begin, end)
    assert not np.isfinite(out[:24]).any()
    for r in (24, 25):
        assert_prefill(level, out[r], pool, 0, q[r], begin[r], end[r])


@pytest.mark.parametrize("level", PREFILLS)
@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_extreme_scores(level: str, size: float) -> None:
    tokens, dim = 100, 64
    keys = rand(tokens, 1, dim, seed=1)
    pool = Pool(keys, rand(tokens, 1, dim, seed=2), "f16")
    q = rand(4, dim, seed=3) * np.float32(size)
    want = reference(pool, 0, q, 0, tokens)
    m, l, acc = split(level, pool, 0, q, 0, tokens)  # noqa: E741
    assert np.isfinite(m).all() and np.isfinite(acc).all()
    got = prefill(level, pool, 0, q[None], [0], [tokens])[0]
    # scores of 1e4 in f32 are 1e-3 apart, and so are the weights they give
    tolerance = 2e-2 if size > 1 else TOLERANCE
    np.testing.assert_allclose(acc / l[:, None], want, rtol=0, atol=tolerance)
    assert_prefill(level, got, pool, 0, q, 0, tokens, tolerance=tolerance)


@pytest.mark.parametrize("level", PREFILLS)
def test_long_context_keeps_its_sum(level: str) -> None:
    """65536 equal scores: the mean of the values, where a sloppy f32 sum would drift."""
    tokens, dim = 65536, 16
    keys = np.zeros((tokens, 1, dim), np.float32)
    values = rand(tokens, 1, dim, seed=1) + np.float32(1)
    pool = Pool(keys, values, "f16")
    q = rand(1, dim)
    _, l, acc = split(level, pool, 0, q, 0, tokens)  # noqa: E741
    assert l[0] == tokens
    want = pool.values[:, 0].mean(0)
    np.testing.assert_allclose(acc[0] / l[0], want, rtol=1e-4)
    np.testing.assert_allclose(
        prefill(level, pool, 0, q[None], [0], [tokens])[0, 0], want, rtol=1e-4
    )


@pytest.mark.parametrize("level", PREFILLS)
def test_broken_values_are_loud(level: str) -> None:
    """A NaN or an overflowed value that a row sees reaches its output."""
    values = rand(40, 1, 16, seed=1)
    values[33] = 1e6  # infinite as f16
    pool = Pool(rand(40, 1, 16, seed=2), values, "f16")
    q = rand(1, 16)
    assert not np.isfinite(split(level, pool, 0, q, 0, 40)[2]).any()
    assert np.isfinite(split(level, pool, 0, q, 0, 33)[2]).all()
    out = prefill(level, pool, 0, q[None], [0], [40])
    assert not np.isfinite(out).any()


@pytest.mark.parametrize("level", PREFILLS)
@pytest.mark.parametrize("broken", ["keys", "values"])
def test_a_broken_scale_is_loud(level: str, broken: str) -> None:
    """An infinite key or value becomes a NaN scale, which reaches those rows that see it."""
    keys, values = rand(40, 1, 16, seed=2), rand(40, 1, 16, seed=1)
    (keys if broken == "keys" else values)[33, 0, 3] = np.inf
    pool = Pool(keys, values, "int8")
    q = rand(1, 16)
    assert not np.isfinite(split(level, pool, 0, q, 0, 40)[2]).any()
    assert not np.isfinite(prefill(level, pool, 0, q[None], [0], [40])).any()
    assert np.isfinite(split(level, pool, 0, q, 0, 33)[2]).all()
    assert np.isfinite(prefill(level, pool, 0, q[None], [0], [33])).all()
