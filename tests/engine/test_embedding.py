"""Embeddings: what is pooled, beside generations, and in a pool with little room."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serving_client import read, settle, tokens

from edge_infer import LLM, SamplingParams
from edge_infer.engine.serving import ServingEngine
from edge_infer.errors import CapacityError, ConfigError

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def test_embeddings_are_pooled_hidden_states(llm) -> None:
    from edge_infer.engine.runner import Piece

    prompts = [[1 + i] * n + [9, 8, i] for i, n in enumerate((1, 40, 300, 5, 450))]
    states = []
    for p in prompts:
        blocks = llm.runner.blocks.new_sequence()
        rows = []
        for start in range(0, len(p), 7):
            count = min(7, len(p) - start)
            assert llm.runner.blocks.reserve(blocks, start + count)
            piece = Piece(p, start, count, len(p), blocks, False, every_output=True)
            rows += [row for _, row in llm.runner.hidden_states([piece])]
            llm.runner.blocks.drop_unseen(blocks, start + count)
        llm.runner.blocks.free(blocks)
        states.append(np.array(rows, np.float64))
    for pooling in ("mean", "last"):
        want = [s.mean(0) if pooling == "mean" else s[-1] for s in states]
        got = llm.embed(prompts, pooling)
        for g, w in zip(got, want, strict=True):
            assert g.dtype == np.float32 and abs(np.linalg.norm(g) - 1) < 1e-6
            np.testing.assert_allclose(g, w / np.linalg.norm(w), atol=1e-6)
    assert len({g.tobytes() for g in got}) == len(prompts)
    # The last hidden state is the one that the output head reads.
    out = llm.generate([prompts[1]], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    assert out[0].outputs[0].token_ids
    last = llm.runner.output("hidden_states")[0]
    np.testing.assert_array_equal(
        (last / np.linalg.norm(last.astype(np.float64))).astype(np.float32), got[1]
    )
    with pytest.raises(ConfigError, match="pooling = 'max'"):
        llm.embed(prompts, "max")
    with pytest.raises(CapacityError, match="600 tokens; the context holds 512"):
        llm.embed([[1] * 600])


def test_embeddings_beside_generations(model, engine, llm) -> None:
    prompts = [[3 + i] * (30 * i + 1) for i in range(6)]
    alone = llm.embed(prompts)
    text_alone = llm.generate("Hello", GREEDY)[0].outputs[0].token_ids

    async def main() -> None:
        generations = [engine.generate("Hello", GREEDY) for _ in range(8)]
        jobs = [asyncio.ensure_future(engine.embed(prompts)) for _ in range(3)]
        await asyncio.sleep(0)
        jobs[1].cancel()
        for job in (jobs[0], jobs[2]):
            for got, want in zip(await job, alone, strict=True):
                np.testing.assert_array_equal(got, want)
        for g in generations:
            assert tokens(await read(g)) == text_alone
        await settle(engine)

    asyncio.run(main())
    # A pool that holds one of them at a time.
    per_block = llm.runner.plan.bytes // sum(llm.runner.plan.blocks)
    small = ServingEngine(LLM(model, kv_cache_memory_bytes=per_block * 34, max_num_seqs=2))
    small.start()

    # Two callers beside the service, which would each hold a part of what both need.
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(small.llm.embed, [[[7] * 400]] * 4))) == 4

    async def tight() -> None:
        long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        generations = [small.generate([5] * 60, long) for _ in range(4)]
        vectors = await asyncio.gather(*(small.embed([[7] * 150]) for _ in range(4)))
        assert len({v[0].tobytes() for v in vectors}) == 1
        assert len({tuple(tokens(await read(g))) for g in generations}) == 1
        await settle(small)
        await small.aclose()

    asyncio.run(tight())


def test_embeddings_share_a_chunk_with_prompts(llm, engine, monkeypatch) -> None:
    """Streams wait for one chunk a step, whatever is embedded and prefilled beside them."""
    runner, chunk = llm.runner, llm.runner.builder.max_rows
    steps: list[dict[str, list[int]]] = []

    def watch(name: str, begins: bool) -> None:
        run = getattr(runner, name)

        def watched(pieces):
            if begins or not steps:
                steps.append({"run": [], "hidden_states": []})
            steps[-1][name] += [p.rows for p in pieces]
            return run(pieces)

        monkeypatch.setattr(runner, name, watched)

    watch("run", True)
    watch("hidden_states", False)

    async def main() -> None:
        long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        with llm.lock:  # no step until all of them are there
            streams = [engine.generate([5 + i] * 4, long) for i in range(3)]
            embedded = asyncio.ensure_future(engine.embed([[9, 8, i] * 150 for i in range(6)]))
            while engine.stats().waiting < 4:
                await asyncio.sleep(0.01)
            prompts = [engine.generate([30 + i] * 450, GREEDY) for i in range(3)]
        await embedded
        for s in [*streams, *prompts]:
            await read(s)
        await settle(engine)

    asyncio.run(main())
    both = [s for s in steps if s["hidden_states"] and max(s["run"], default=0) > 1]
    assert sum(s["run"].count(1) == 3 for s in both) >= 3  # the streams among them
    for s in both:
        assert sum(s["run"]) + sum(s["hidden_states"]) <= chunk
        assert sum(s["hidden_states"]) >= chunk // 3
