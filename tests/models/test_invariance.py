"""A request's numbers do not depend on company: chunk size, batch, threads (bitwise)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny

from edge_infer.checkpoint.convert import convert

KINDS = ("llama", "gemma3", "qwen2_sliding", "qwen3")


@pytest.fixture(scope="module", params=KINDS)
def packed(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, root / "hf")
    bits = [("*embed_tokens", 6), ("*.v_proj", 6), ("*.up_proj", 6), ("*.down_proj", 8)]
    return convert(root / "hf", root / "packed", bits=4, module_bits=bits)


def sequences(count: int, seed: int = 3) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    vocab = tiny.COMMON["vocab_size"]
    return [[int(t) for t in rng.integers(0, vocab, n)] for n in rng.integers(5, 90, count)]


def test_chunk_size_does_not_matter(packed) -> None:
    (tokens,) = [s + s for s in sequences(1)]
    results = []
    for chunk in (1, 7, 16, 33, 64):
        r = tiny.runner(packed, chunk_size=64)
        results.append(tiny.logits(r, [tokens], chunk=chunk)[0])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_batch_equals_its_members(packed) -> None:
    many = sequences(4)
    prompts = [max(1, len(s) * 2 // 3) for s in many]
    r = tiny.runner(packed, chunk_size=64)
    together = tiny.logits(r, many, prompts=prompts, chunk=64)
    for s, n, t in zip(many, prompts, together, strict=True):
        np.testing.assert_array_equal(tiny.logits(r, [s], prompts=[n], chunk=50)[0], t)


def test_threads_do_not_matter(packed) -> None:
    (tokens,) = sequences(1, seed=5)
    one, two, three = (
        tiny.logits(tiny.runner(packed, threads=n), [tokens], prompts=[len(tokens) // 2])[0]
        for n in (1, 2, 3)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


def test_int8_keys_and_values(packed) -> None:
    """As invariant as f16, close to it, and a byte an element."""
    (tokens,) = sequences(1, seed=9)
    prompt = len(tokens) * 2 // 3
    f16 = tiny.runner(packed, chunk_size=64, max_model_len=128)
    r = tiny.runner(packed, chunk_size=64, max_model_len=128, kv_cache_dtype="int8")
    want = tiny.logits(f16, [tokens], prompts=[prompt])[0]
    got = tiny.logits(r, [tokens], prompts=[prompt])[0]
    np.testing.assert_array_equal(got, tiny.logits(r, [tokens], prompts=[prompt], chunk=7)[0])
    error = np.sqrt(np.mean((got - want) ** 2)) / np.sqrt(np.mean(want**2))
    assert 0 < error < 0.05
    dims = [(layers, g.kv_heads, g.head_dim) for g, layers in r.plan.groups]
    pages = [-(-2 * n * h * 32 * (d + 4) // 4096) * 4096 for n, h, d in dims]
    assert list(r.plan.block_bytes) == pages


def test_blocks_come_back(packed) -> None:
    r = tiny.runner(packed)
    tiny.logits(r, sequences(4))
    assert r.blocks.used_blocks() == 0
