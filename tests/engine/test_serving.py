"""The engine as a service: results under company, cancellation, limits, constraints, stopping."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref

import numpy as np
import pytest
from byte_model import VOCAB
from serving_client import read, settle, text, tokens

from edge_infer import LLM, SamplingParams
from edge_infer.engine.request import Call
from edge_infer.engine.serving import Delta, ServingEngine
from edge_infer.errors import CapacityError, ConfigError, EngineStoppedError, QueueFullError

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
EOS = 257


@pytest.mark.parametrize("sampled", [{"temperature": 0}, {"temperature": 1.0, "seed": 5}])
def test_eight_clients_get_what_they_get_alone(llm, engine, sampled) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=2, **sampled)
    prompts = [f"client {i} says " + "so " * (i * 9) for i in range(8)]
    alone = [llm.generate(p, params)[0].outputs[0] for p in prompts]

    async def main() -> list[list[Delta]]:
        return await asyncio.gather(*(read(engine.generate(p, params)) for p in prompts))

    for deltas, want in zip(asyncio.run(main()), alone, strict=True):
        assert tokens(deltas) == want.token_ids and text(deltas) == want.text
        assert [e for d in deltas for e in d.logprobs or []] == want.logprobs
        assert [d.finish_reason for d in deltas][-1] == "length"
        assert all(d.finish_reason is None for d in deltas[:-1])


def test_choices_equal_requests_with_their_seeds(llm, engine) -> None:
    params = SamplingParams(temperature=1.0, seed=2**64 - 2, max_tokens=30, ignore_eos=True)

    async def main(n: int | None, params: SamplingParams) -> list[Delta]:
        return await read(engine.generate("Hello", params, n=n))

    deltas = asyncio.run(main(4, params))
    want = [
        llm.generate("Hello", SamplingParams(**{**vars(params), "seed": seed}))[0].outputs[0]
        for seed in (2**64 - 2, 2**64 - 1, 0, 1)
    ]
    assert [tokens(deltas, i) for i in range(4)] == [w.token_ids for w in want]
    assert [text(deltas, i) for i in range(4)] == [w.text for w in want]
    assert len({tuple(w.token_ids) for w in want}) == 4
    together = llm.generate("Hello", SamplingParams(**{**vars(params), "n": 4}))[0].outputs
    assert [c.token_ids for c in together] == [w.token_ids for w in want]


def test_errors_come_at_once(llm, engine) -> None:
    async def main() -> None:
        with pytest.raises(CapacityError, match="600 tokens; the context holds 512") as e:
            engine.generate([1] * 600, GREEDY)
        assert e.value.code == "context_length_exceeded"
        with pytest.raises(ConfigError):
            engine.generate([], GREEDY)
        with pytest.raises(ConfigError, match="n = 1000"):
            engine.generate("x", GREEDY, n=1000)
        with pytest.raises(ConfigError, match="ignore_eos"):
            engine.generate("x", GREEDY, constraint=lambda: Letters("a"))
        assert engine.stats().waiting == 0

    asyncio.run(main())


def test_a_full_queue_refuses(llm) -> None:
    engine = ServingEngine(llm, max_waiting=2)  # not started: nothing leaves the queue
    room = llm.runner.options.max_num_seqs + 2

    async def main() -> None:
        held = [engine.generate("x", GREEDY) for _ in range(room)]
        with pytest.raises(QueueFullError, match=f"{room} of at most {room}") as e:
            engine.generate("x", GREEDY)
        assert e.value.code == "queue_full" and 1 <= e.value.retry_after <= 60
        assert engine.stats().waiting == room
        engine.start()
        results = await asyncio.gather(*(read(g) for g in held))
        assert len({tuple(tokens(r)) for r in results}) == 1
        assert len(await read(engine.generate("x", GREEDY))) > 1
        await engine.aclose()
        with pytest.raises(EngineStoppedError):
            engine.generate("x", GREEDY)

    asyncio.run(main())


def test_a_thousand_random_cancels_leave_nothing(llm, engine) -> None:
    rng = random.Random(3)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, detokenize=False)
    late: list[Delta] = []
    references: list[weakref.ref] = []

    async def client(i: int) -> None:
        n = rng.choice([1, 1, 1, 3])
        generation = engine.generate([1 + i % 50] * rng.randint(1, 120), params, n=n)
        references.append(weakref.ref(generation))
        how = rng.randrange(4)
        wanted = rng.randrange(4)
        if how == 0:  # the waiting task is cancelled
            task = asyncio.ensure_future(read(generation))
            await asyncio.sleep(rng.random() * 0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif how == 1:  # forgotten
            return
        else:
            async with generation:
                for _ in range(wanted):
                    await anext(generation)
                if how == 3:
                    await asyncio.to_thread(generation.cancel)
        late.extend([d async for d in generation])

    async def main() -> None:
        for start in range(0, 1000, 50):
            await asyncio.gather(*(client(i) for i in range(start, start + 50)))
        await settle(engine)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    gc.collect()
    assert late == []
    assert engine._live == {} and not engine._commands
    assert [r for r in references if r() is not None] == []
    assert engine.stats().cancelled_total >= 900


def test_cancellation_in_queue_and_prefill(llm, engine) -> None:
    async def main() -> None:
        long = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
        running = [engine.generate([7] * 100, long) for _ in range(8)]
        await asyncio.gather(*(anext(g) for g in running))
        queued = engine.generate("queued", long)
        queued.cancel()
        assert await read(queued) == []
        running[0].cancel()
        prefilling = engine.generate([9] * 500, long)
        prefilling.cancel()
        for g in running[1:]:
            await g.aclose()
        await settle(engine)

    asyncio.run(main())


class Letters:
    """Only ``letters`` in a row, then EOS; None of the vocabulary else."""

    def __init__(self, letters: str, bad: str = "") -> None:
        self.left = list(letters.encode())
        self.bad = bad
        self.seen: list[int] = []

    def mask(self) -> np.ndarray:
        if self.bad == "mask":
            raise ValueError("a broken grammar")
        words = np.zeros(-(-VOCAB // 32), np.uint32)
        token = byte_token(self.left[0]) if self.left else EOS
        if self.bad != "nothing":
            words[token // 32] = 1 << (token % 32)
        return words

    def allows(self, token: int) -> bool:
        if self.bad == "allows":
            raise ValueError("a broken grammar")
        return self.bad not in ("mask", "nothing") and bool(
            self.mask()[token // 32] >> (token % 32) & 1
        )

    def accept(self, token: int) -> None:
        if self.bad == "accept":
            raise ValueError("a broken grammar")
        self.seen.append(token)
        self.left.pop(0)

    def finished(self) -> bool:
        return not self.left and self.bad != "open"


def byte_token(byte: int) -> int:
    from tokenizers import pre_tokenizers

    printable = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(byte))
    return sorted(pre_tokenizers.ByteLevel.alphabet()).index(printable[0][0])


@pytest.mark.parametrize("bad", ["", "open"])
def test_a_constraint_decides(engine, bad) -> None:
    made: list[Letters] = []

    def constraint() -> Letters:
        made.append(Letters("abcab", bad))
        return made[-1]

    async def main() -> list[Delta]:
        params = SamplingParams(temperature=1.0, max_tokens=20, min_tokens=2)
        return await read(engine.generate("Hi", params, n=2, constraint=constraint))

    deltas = asyncio.run(main())
    for i in range(2):
        assert text(deltas, i) == "abcab"
        assert [d.finish_reason for d in deltas if d.index == i][-1] == "stop"
        assert tokens(deltas, i) == made[i].seen + ([EOS] if bad else [])
    assert len(made) == 2


@pytest.mark.parametrize("bad", ["mask", "allows", "accept", "nothing"])
def test_a_constraint_that_fails_ends_only_its_request(llm, engine, bad) -> None:
    want = llm.generate("Hello", GREEDY)[0].outputs[0].token_ids

    async def main() -> None:
        good = engine.generate("Hello", GREEDY)
        params = SamplingParams(temperature=0, max_tokens=20)
        failing = engine.generate("Hi", params, constraint=lambda: Letters("abc", bad))
        deltas = await read(failing)
        assert deltas[-1].finish_reason == "error"
        assert failing.error is not None and failing.error.code == "execution_failed"
        assert tokens(await read(good)) == want

    asyncio.run(main())


def test_a_failing_step_ends_its_requests_with_the_error(llm, engine, monkeypatch) -> None:
    async def main() -> None:
        def broken(pieces: object) -> None:
            raise ValueError("broken")

        with monkeypatch.context() as m:
            m.setattr(llm.runner, "run", broken)
            generations = [engine.generate("x", GREEDY, n=2) for _ in range(6)]
            for g in generations:
                assert [d.finish_reason for d in await read(g)] == ["error", "error"]
                assert g.error is not None and "ValueError: broken" in g.error.message
        assert len(tokens(await read(engine.generate("x", GREEDY)))) == 20

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_dead_engine(model, monkeypatch) -> None:
    llm = LLM(model, threads=2)
    engine = ServingEngine(llm)
    engine.start()

    async def main() -> None:
        other = engine.generate("x", SamplingParams(temperature=0, max_tokens=400))
        await anext(other)
        victim = engine.generate("y", SamplingParams(temperature=0, max_tokens=400))
        await anext(victim)

        def broken(request: object) -> None:
            raise MemoryError("broken")

        monkeypatch.setattr(llm.scheduler, "abort", broken)
        victim.cancel()
        assert (await read(other))[-1].finish_reason == "error"
        assert other.error is not None and "MemoryError" in other.error.message
        with pytest.raises(EngineStoppedError):
            engine.generate("x", GREEDY)
        await engine.aclose()

    asyncio.run(main())


def test_a_preempted_request_keeps_its_constraint(llm, engine) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20)
    letters = Letters("abcdefghij")
    (request,) = llm.new_requests([1] * 40, params, lambda: letters)
    llm.scheduler.add(request)
    while len(request.generated) < 5:
        llm.scheduler.step()
    llm.scheduler._preempt(request)
    while llm.scheduler.busy:
        llm.scheduler.step()
    assert request.completion().text == "abcdefghij" and request.finish_reason == "stop"
    assert letters.seen == request.generated and request.metrics.preemptions == 1


def test_closing_drains_then_aborts(llm) -> None:
    async def main(drain: float) -> list[str | None]:
        engine = ServingEngine(llm)
        engine.start()
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        generations = [engine.generate([3, 4], params) for _ in range(2)]
        await asyncio.gather(*(anext(g) for g in generations))
        await engine.aclose(drain)
        return [(await read(g))[-1].finish_reason for g in generations]

    assert asyncio.run(main(0.0)) == ["abort", "abort"]
    assert asyncio.run(main(120.0)) == ["length", "length"]
    assert not llm.scheduler.busy and llm.runner.blocks.used_blocks() == 0


def test_calls_take_turns(model) -> None:
    """One with many choices does not keep another out until all of them are done."""

    async def main() -> None:
        llm = LLM(model, threads=1, max_num_seqs=2)
        engine = ServingEngine(llm, stream_gap=None)
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        order: list[str] = []  # in which the engine ends them; a reader may see several at once
        step = llm.scheduler.step

        def watched(**options):
            touched = step(**options)
            order.extend(r.prompt.split()[0] for r in touched if r.finished)
            return touched

        llm.scheduler.step = watched
        many = engine.generate("many", params, n=12)
        call = Call()
        lists = [engine.generate(f"list {i}", params, call=call) for i in range(6)]
        one = engine.generate("one", params)
        engine.start()
        await asyncio.gather(*(read(g) for g in (many, *lists, one)))
        assert len(order) == 12 + 6 + 1
        assert order.index("one") <= 4
        # The rest take turns too: the list is done long before all choices of the first are.
        last = len(order) - 1 - order[::-1].index("list")
        assert 9 <= last <= 15
        await engine.aclose()

    asyncio.run(main())
