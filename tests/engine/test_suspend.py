"""An idle engine gives its memory back and is there again when it is asked."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from byte_model import VOCAB, write_model
from serving_client import read, settle, tokens

from edge_infer import LLM, SamplingParams
from edge_infer.checkpoint.convert import convert
from edge_infer.device.usage import own_memory
from edge_infer.engine.serving import ServingEngine
from edge_infer.errors import CapacityError, ConfigError, EngineStoppedError

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("serving")
    return convert(write_model(root / "hf"), root / "packed", bits=4)


def test_suspending_and_coming_back(model) -> None:
    llm = LLM(model, threads=2)
    engine = ServingEngine(llm)
    engine.start()
    plan = llm.kv_plan

    async def main() -> None:
        want = tokens(await read(engine.generate("Hello", GREEDY)))
        busy = engine.generate("Hello", SamplingParams(temperature=0, max_tokens=400))
        assert not await engine.suspend()
        await busy.aclose()
        await settle(engine)
        before = engine.stats()
        assert await engine.suspend() and engine.stats().suspended
        assert await engine.suspend()
        stats = engine.stats()
        assert stats.kv_blocks_cached == 0 and stats.kv_bytes == plan.bytes
        assert stats.generated_tokens_total == before.generated_tokens_total > 0
        with pytest.raises(ConfigError):
            engine.generate([VOCAB], GREEDY)
        assert llm.suspended and engine.stats().idle_seconds > 0
        results = await asyncio.gather(*(read(engine.generate("Hello", GREEDY)) for _ in range(3)))
        assert [tokens(r) for r in results] == [want] * 3
        assert not llm.suspended and llm.kv_plan == llm.runner.plan == plan
        assert await engine.suspend()
        assert len(await engine.embed([[1, 2, 3]])) == 1
        assert await engine.suspend()
        await engine.resume()
        assert not engine.stats().suspended
        await engine.aclose()
        with pytest.raises(EngineStoppedError):
            await engine.suspend()

    asyncio.run(main())


def test_what_cannot_be_loaded_again_is_an_error_of_its_requests(model, monkeypatch) -> None:
    llm = LLM(model, threads=2)
    engine = ServingEngine(llm)
    engine.start()

    async def main() -> None:
        assert await engine.suspend()
        with monkeypatch.context() as m:
            m.setattr("edge_infer.engine.runner.free_memory", lambda: 1000)
            generation = engine.generate("Hello", GREEDY, n=2)
            assert [d.finish_reason for d in await read(generation)] == ["error", "error"]
            assert isinstance(generation.error, CapacityError)
            with pytest.raises(CapacityError):
                await engine.embed(["Hello"])
            with pytest.raises(CapacityError):
                await engine.resume()
        assert len(tokens(await read(engine.generate("Hello", GREEDY)))) == 20
        await engine.aclose()

    asyncio.run(main())


def test_a_suspended_engine_gives_its_memory_back(demo_model, model) -> None:
    def resident() -> int:
        gc.collect()
        use = own_memory()
        return use.anonymous + use.file_backed

    LLM(model, threads=1).generate("Hello", GREEDY)  # imports what any engine imports
    before = resident()
    llm = LLM(demo_model, max_model_len=2048)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    want = llm.generate("The sea is " * 20, params)[0].outputs[0].text
    loaded = resident()
    assert loaded - before > 100e6
    assert llm.suspend()
    assert resident() - before < 0.05 * before
    assert llm.generate("The sea is " * 20, params)[0].outputs[0].text == want
    assert abs(resident() - loaded) < 0.05 * loaded
