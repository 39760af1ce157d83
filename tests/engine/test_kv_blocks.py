"""Block bookkeeping: what a budget holds, what a sequence takes, and that all of it comes back."""

from __future__ import annotations

import random

import pytest

from edge_infer import LLM, SamplingParams, _native
from edge_infer.engine.kv_blocks import BLOCK, BlockManager, blocks_needed, plan_pool
from edge_infer.errors import CapacityError
from edge_infer.models.values import KvGroup

FULL, SLIDING = KvGroup(2, 64), KvGroup(2, 64, window=100)
GROUPS = [(FULL, 2), (SLIDING, 6)]


def manager(tokens: int, *, seqs: int = 2, chunk: int = 64, budget: int | None = None):
    plan = plan_pool(GROUPS, tokens=tokens, max_num_seqs=seqs, chunk=chunk, budget=budget)
    pool = _native.KvPool(
        [(n, g.kv_heads, g.head_dim, b) for (g, n), b in zip(plan.groups, plan.blocks, strict=True)]
    )
    return BlockManager(pool, plan)


def test_plan_respects_the_budget() -> None:
    whole = plan_pool(GROUPS, tokens=4096, max_num_seqs=2, chunk=64, budget=None)
    assert whole.tokens == 4096
    for budget in (whole.bytes // 2, whole.bytes // 3, whole.bytes - 1, whole.bytes):
        plan = plan_pool(GROUPS, tokens=4096, max_num_seqs=2, chunk=64, budget=budget)
        assert plan.bytes <= budget
        assert plan.bytes == manager(4096, budget=budget).pool.bytes
        more = plan_pool(GROUPS, tokens=plan.tokens + BLOCK, max_num_seqs=2, chunk=64, budget=None)
        assert plan.tokens == 4096 or more.bytes > budget
    with pytest.raises(CapacityError, match=str(BLOCK)):
        plan_pool(GROUPS, tokens=4096, max_num_seqs=2, chunk=64, budget=1000)


def test_sliding_groups_need_a_window_and_a_chunk() -> None:
    assert blocks_needed(FULL, 4096, 64) == 128
    assert blocks_needed(SLIDING, 4096, 64) == 7
    assert blocks_needed(SLIDING, 33, 64) == 2


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_a_sequence_of_the_planned_length_fits(chunk: int) -> None:
    m = manager(3000, seqs=1, chunk=64)
    seq = m.new_sequence()
    position = 0
    while position < 3000:
        end = min(3000, position + chunk)
        assert m.reserve(seq, end)
        # what the next rows see is still there
        first = max(0, position + 1 - SLIDING.window) // BLOCK
        assert all(b >= 0 for b in seq.tables[1][first:])
        assert all(b >= 0 for b in seq.tables[0])
        position = end
        m.drop_unseen(seq, position)
    m.free(seq)
    assert m.used_blocks() == 0 and m.used_bytes() == 0


def test_random_traffic_leaves_nothing_behind() -> None:
    rng = random.Random(5)
    m = manager(640, seqs=4)
    running: list[list] = []
    refused = 0
    for _ in range(2000):
        if running and rng.random() < 0.2:
            m.free(running.pop(rng.randrange(len(running)))[0])
            continue
        if len(running) < 4:
            running.append([m.new_sequence(), 0])
        entry = rng.choice(running)
        wanted = entry[1] + rng.randint(1, 64)
        before = m.used_blocks()
        if m.reserve(entry[0], wanted):
            entry[1] = wanted
            m.drop_unseen(entry[0], wanted)
        else:
            refused += 1
            assert m.used_blocks() == before
        for g in range(2):
            held = [b for e in running for b in e[0].tables[g] if b >= 0]
            assert len(held) == len(set(held))
    assert refused > 0
    for seq, _ in running:
        m.free(seq)
    assert m.used_blocks() == 0


def test_never_is_an_error() -> None:
    m = manager(640)
    m.plan.check_possible(640)
    with pytest.raises(CapacityError, match="640"):
        m.plan.check_possible(100_000)


def test_a_budget_serves_as_many_contexts_as_run(model) -> None:
    """It was cut to what one context takes, and several sequences threw each other out."""
    one = LLM(model, max_model_len=64, max_num_seqs=4)
    assert one.kv_plan.tokens == 64
    for budget, tokens in ((1 << 30, 4 * 64), (one.kv_plan.bytes * 2, None), (10**9, 4 * 64)):
        plan = LLM(model, max_model_len=64, max_num_seqs=4, kv_cache_memory_bytes=budget).kv_plan
        assert plan.bytes <= budget
        assert plan.tokens == tokens or (tokens is None and 64 < plan.tokens < 256)
    llm = LLM(model, max_model_len=64, max_num_seqs=4, kv_cache_memory_bytes=1 << 30)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    outputs = llm.generate([[i + 1] * 20 for i in range(4)], params)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [40] * 4
    assert llm.counters.preemptions == 0
