"""Prompts that begin alike share blocks, and not one bit of a result changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from byte_model import write_model

from edge_infer import LLM, SamplingParams, _native
from edge_infer.checkpoint.convert import convert
from edge_infer.engine.kv_blocks import BlockManager, plan_pool
from edge_infer.engine.outputs import RequestOutput
from edge_infer.engine.prefix_cache import BLOCK, BlockChain
from edge_infer.engine.scheduler import divide
from edge_infer.models.values import KvGroup


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """One layer with a sliding window of 48, one that sees everything."""
    root = tmp_path_factory.mktemp("prefix")
    return convert(write_model(root / "hf"), root / "packed", bits=4)


@pytest.fixture(scope="module")
def cold(model) -> LLM:
    return LLM(model, threads=2, enable_prefix_caching=False)


@pytest.fixture
def llm(model) -> LLM:
    plan = LLM(model, threads=1).runner.plan
    return LLM(model, threads=2, prefix_cache_memory_bytes=plan.bytes)


PARAMS = SamplingParams(
    temperature=1.0, seed=4, max_tokens=60, ignore_eos=True, logprobs=3, detokenize=False
)


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(256) for _ in range(count)]


def same(a: RequestOutput, b: RequestOutput) -> bool:
    return [(c.token_ids, c.logprobs) for c in a.outputs] == [
        (c.token_ids, c.logprobs) for c in b.outputs
    ]


def test_generated_tokens_are_not_taken_for_a_prompt(llm, cold) -> None:
    """What turn one generated is prompt in turn two: other numerics, so other bits."""
    prompt = tokens(random.Random(0), 70)
    (first,) = llm.generate([prompt], PARAMS)
    assert same(first, cold.generate([prompt], PARAMS)[0]) and first.cached_tokens == 0
    prompt = prompt + first.outputs[0].token_ids + tokens(random.Random(1), 30)
    (second,) = llm.generate([prompt], PARAMS)
    assert second.cached_tokens == 2 * BLOCK  # the blocks that are prompt alone
    (want,) = cold.generate([prompt], PARAMS)
    assert want.cached_tokens == 0 and same(second, want)
    (again,) = llm.generate([prompt], PARAMS)
    assert again.cached_tokens == (len(prompt) - 1) // BLOCK * BLOCK and same(again, want)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_other_kinds_of_keys_and_values(model, dtype) -> None:
    rng = random.Random(9)
    warm, cold = (
        LLM(model, threads=2, kv_cache_dtype=dtype, enable_prefix_caching=on)
        for on in (True, False)
    )
    prompt = tokens(rng, 150)
    for more, cached in ((0, 0), (10, 4 * BLOCK), (40, 5 * BLOCK)):
        (got,), (want,) = (e.generate([prompt + [5] * more], PARAMS) for e in (warm, cold))
        assert same(got, want) and got.cached_tokens == cached


def test_the_last_prompt_token_is_always_computed(llm, cold) -> None:
    prompt = tokens(random.Random(2), 4 * BLOCK)
    (want,) = cold.generate([prompt], PARAMS)
    assert same(llm.generate([prompt], PARAMS)[0], want)
    (again,) = llm.generate([prompt], PARAMS)
    assert again.cached_tokens == 3 * BLOCK and same(again, want)
    (longer,) = llm.generate([[*prompt, 9]], PARAMS)
    assert longer.cached_tokens == 4 * BLOCK
    assert same(longer, cold.generate([[*prompt, 9]], PARAMS)[0])


def test_several_prefixes_at_once(llm, cold) -> None:
    rng = random.Random(3)
    systems = [tokens(rng, n) for n in (40, 100, 200)]
    short = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2)
    for turn in range(3):
        prompts = [s + tokens(rng, 20) for s in systems]
        outputs = llm.generate(prompts, short)
        for system, got, want in zip(systems, outputs, cold.generate(prompts, short), strict=True):
            assert same(got, want)
            assert got.cached_tokens == (len(system) // BLOCK * BLOCK if turn else 0)


def test_a_burst_computes_its_common_beginning_once(model, cold) -> None:
    llm = LLM(model, threads=2, chunk_size=64)
    rng = random.Random(8)
    system = tokens(rng, 260)
    prompts = [system + tokens(rng, 20) for _ in range(6)]
    short = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2)
    outputs = llm.generate(prompts, short)
    assert all(same(a, b) for a, b in zip(outputs, cold.generate(prompts, short), strict=True))
    assert [o.cached_tokens for o in outputs] == [0] + [8 * BLOCK] * 5
    assert llm.counters.cached_tokens == 5 * 8 * BLOCK


def test_random_conversations_in_a_small_pool(model, cold) -> None:
    """Branching conversations, evictions and preemptions, against an engine without a cache."""
    rng = random.Random(4)
    per_block = cold.runner.plan.bytes // sum(cold.runner.plan.blocks)
    small = LLM(
        model,
        threads=2,
        chunk_size=64,
        max_num_seqs=4,
        kv_cache_memory_bytes=per_block * 30,
        prefix_cache_memory_bytes=per_block * 30,
    )
    seen: list[list[int]] = [tokens(rng, 50)]
    for _ in range(8):
        prompts = []
        for _ in range(4):
            base = rng.choice(seen)
            base = base[: rng.randint(1, len(base))] if rng.random() < 0.5 else base
            prompts.append((base + tokens(rng, rng.randint(1, 60)))[-300:])
        params = [
            SamplingParams(
                temperature=1.0,
                seed=rng.randrange(1000),
                max_tokens=rng.randint(1, 40),
                ignore_eos=True,
                logprobs=1,
                n=rng.choice([1, 1, 2]),
            )
            for _ in prompts
        ]
        outputs = small.generate(prompts, params)
        wanted = cold.generate(prompts, params)
        assert all(same(a, b) for a, b in zip(outputs, wanted, strict=True))
        seen += [p + o.outputs[0].token_ids for p, o in zip(prompts, outputs, strict=True)]
        blocks = small.runner.blocks
        assert blocks.used_blocks() == 0 and blocks.cache.idle_bytes() <= per_block * 30
    counters = small.scheduler.counters
    assert counters.cached_tokens > 300 and counters.preemptions > 0


def test_a_preempted_request_takes_its_blocks_up_again(llm, cold) -> None:
    prompt = tokens(random.Random(5), 100)
    (request,) = llm.new_requests(prompt, PARAMS)
    llm.scheduler.add(request)
    while len(request.generated) < 40:
        llm.scheduler.step()
    llm.scheduler._preempt(request)
    assert llm.runner.blocks.used_blocks() == 0
    llm.scheduler.step()
    assert request.computed == len(request.tokens) - 1 and len(request.generated) == 41
    while llm.scheduler.busy:
        llm.scheduler.step()
    (want,) = cold.generate([prompt], PARAMS)
    assert request.generated == want.outputs[0].token_ids
    assert request.logprobs == want.outputs[0].logprobs


@pytest.mark.parametrize("caching", [True, False])
def test_choices_share_the_blocks_of_their_prompt(model, cold, caching) -> None:
    llm = LLM(model, threads=2, enable_prefix_caching=caching)
    prompt = tokens(random.Random(6), 100)
    many = SamplingParams(**{**vars(PARAMS), "n": 4, "max_tokens": 10})
    requests = llm.new_requests(prompt, many)
    for r in requests:
        llm.scheduler.add(r)
    while not all(r.generated for r in requests):
        llm.scheduler.step()
    # Of the group that sees all: three shared blocks, and one of its own for each choice.
    tables = [r.blocks.tables[1] for r in requests if r.blocks]
    assert len({t[i] for t in tables for i in range(3)}) == 3
    assert len({t[3] for t in tables}) == 4
    while llm.scheduler.busy:
        llm.scheduler.step()
    for i, r in enumerate(requests):
        alone = SamplingParams(**{**vars(many), "n": 1, "seed": 4 + i})
        (want,) = cold.generate([prompt], alone)
        assert r.generated == want.outputs[0].token_ids and r.logprobs == want.outputs[0].logprobs
    assert llm.runner.blocks.used_blocks() == 0
    assert (llm.runner.blocks.cached_blocks() > 0) == caching


def test_cached_blocks_go_before_anyone_is_preempted(model) -> None:
    llm = LLM(model, threads=2, max_num_seqs=1)
    assert llm.runner.blocks.cache.capacity == llm.runner.plan.bytes // 2
    short = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    for seed in range(8):
        llm.generate([tokens(random.Random(seed), 500)], short)
        blocks = llm.runner.blocks
        assert 0 < blocks.cache.idle_bytes() <= blocks.cache.capacity
    assert llm.scheduler.counters.preemptions == 0


def test_a_short_prompt_does_not_wait_for_a_long_one(model) -> None:
    llm = LLM(model, threads=2, chunk_size=32)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    (long,), (short,) = (llm.new_requests([t] * n, params) for t, n in ((1, 400), (2, 30)))
    llm.scheduler.add(long)
    llm.scheduler.step()
    llm.scheduler.add(short)
    steps = 0
    while not short.generated:
        llm.scheduler.step()
        steps += 1
    assert steps == 2 and long.computed == 32 + 16 + 18
    while not long.generated:  # other short prompts come all the time
        llm.scheduler.add(llm.new_requests([steps % 256] * 30, params)[0])
        llm.scheduler.step()
        steps += 1
    assert steps < 40
    while llm.scheduler.busy:
        llm.scheduler.step()


@pytest.mark.parametrize(
    ("rows", "left", "want"),
    [
        (64, [], []),
        (64, [10], [10]),
        (64, [500], [64]),
        (64, [500, 30], [34, 30]),
        (64, [500, 100], [32, 32]),
        (64, [100, 100, 100], [64, 0, 0]),
        (64, [20, 100, 3], [20, 41, 3]),
        (1, [5, 1], [1, 0]),
        (0, [5], [0]),
    ],
)
def test_rows_are_divided(rows: int, left: list[int], want: list[int]) -> None:
    assert divide(rows, left) == want


GROUPS = [(KvGroup(1, 32), 1), (KvGroup(1, 32, window=70), 2)]


def test_adopted_blocks_hold_what_their_keys_say() -> None:
    """Against a model of the pool's contents, over random sequences with common beginnings."""
    rng = random.Random(7)
    plan = plan_pool(GROUPS, tokens=640, max_num_seqs=4, chunk=64, budget=None)
    pool = _native.KvPool(
        [(n, g.kv_heads, g.head_dim, b) for (g, n), b in zip(plan.groups, plan.blocks, strict=True)]
    )
    m = BlockManager(pool, plan, cache_bytes=plan.bytes // 2)
    content: dict[tuple[int, int], tuple] = {}
    live: list[dict] = []
    hits = 0
    for _ in range(3000):
        if (live and rng.random() < 0.1) or len(live) == 4:
            m.free(live.pop(rng.randrange(len(live)))["blocks"])
        elif rng.random() < 0.15:
            ids = [rng.randrange(2) for _ in range(3)] * 100
            ids = ids[: rng.randint(1, 300)]
            prompt = rng.choice([len(ids), max(1, len(ids) - 40)])
            s = {"ids": ids, "prompt": prompt, "chain": BlockChain(prompt)}
            s["blocks"] = m.new_sequence()
            s["done"] = m.adopt(s["blocks"], s["chain"], ids)
            assert s["done"] < len(ids)
            hits += s["done"]
            live.append(s)
        elif live:
            s = rng.choice(live)
            end = min(len(s["ids"]), s["done"] + rng.randint(1, 64))
            if not m.reserve(s["blocks"], end):
                continue
            for i in range(s["done"] // BLOCK, -(-end // BLOCK)):
                for g in range(2):
                    block = s["blocks"].tables[g][i]
                    assert m._users[g][block] == 1  # nobody writes what others read
                    content[g, block] = wanted(s, i, end)
            m.commit(s["blocks"], s["chain"], s["ids"], end)
            m.drop_unseen(s["blocks"], end)
            s["done"] = end
        for s in live:
            for g, (group, _) in enumerate(GROUPS):
                first = max(0, s["done"] + 1 - group.window) // BLOCK if group.window else 0
                for i in range(first, -(-s["done"] // BLOCK)):
                    assert content[g, s["blocks"].tables[g][i]] == wanted(s, i, s["done"])
        for g in range(2):
            held = {b for s in live for b in s["blocks"].tables[g] if b >= 0}
            idle = set(m.cache._idle[g])
            assert not held & idle and not (held | idle) & set(m._free[g])
            assert len(held) + len(idle) + len(m._free[g]) == plan.blocks[g]
        assert m.cache.idle_bytes() <= plan.bytes // 2
    assert hits > 5000
    for s in live:
        m.free(s["blocks"])
    assert m.used_blocks() == 0 and m.used_bytes() == 0


def wanted(s: dict, block: int, end: int) -> tuple:
    """What block ``block`` holds when ``end`` tokens are computed: everything it depends on."""
    stop = min(end, (block + 1) * BLOCK)
    return tuple((t, i < s["prompt"]) for i, t in enumerate(s["ids"][:stop]))


def test_int8_keys_survive_sharing_and_preemption(model) -> None:
    """Everything at once: int8 keys and values, common beginnings, guesses, and a pool that is too
    small for all."""
    begin = "a beginning that all of the prompts share, two blocks and more of it; " * 2
    prompts = [begin + c * 20 for c in "abcd"]
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=120, ignore_eos=True)
    large = LLM(model, threads=1, kv_cache_dtype="int8")
    want = [o.outputs[0].token_ids for o in large.generate(prompts, params)]
    per_block = large.runner.plan.bytes // sum(large.runner.plan.blocks)
    small = LLM(
        model,
        threads=1,
        kv_cache_dtype="int8",
        kv_cache_memory_bytes=per_block * 30,
        max_num_seqs=4,
        chunk_size=64,
        speculative="ngram",
    )
    preemptions = 0
    for _ in range(2):
        outputs = small.generate(prompts, params)
        assert [o.outputs[0].token_ids for o in outputs] == want
        preemptions += sum(o.metrics.preemptions for o in outputs)
        assert small.runner.blocks.used_blocks() == 0
    assert preemptions > 0
