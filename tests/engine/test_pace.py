"""Rows of prompts beside running streams: as many as fit the time."""

from __future__ import annotations

import asyncio

import pytest

from edge_infer import LLM, SamplingParams
from edge_infer.engine.pace import FIRST_ROWS, MIN_ROWS, Pace
from edge_infer.engine.request import Request
from edge_infer.engine.serving import ServingEngine


def steps(pace: Pace, row: float, decode: float, count: int = 20) -> int:
    """Runs steps of a machine on which a row costs `row` and decoding `decode` seconds."""
    for _ in range(count):
        pace.learn(decode, 0, 3)
        rows = pace.room(256, 3)
        pace.learn(decode + rows * row, rows, 3)
    return pace.room(256, 3)


def test_whole_chunks_without_a_target_or_without_streams() -> None:
    for pace, decodes in ((Pace(None), 3), (Pace(0.0), 3), (Pace(0.2), 0)):
        pace.learn(10.0, 100, decodes)
        assert pace.room(256, decodes) == 256 - decodes
    assert Pace(0.2).room(256, 0) == 256


def test_rows_fit_the_time() -> None:
    assert steps(Pace(0.2), 0.0055, 0.03) == 30  # (0.2 - 0.03) / 0.0055 = 30.9
    assert steps(Pace(0.2), 0.002, 0.03) == 85
    assert steps(Pace(0.2), 0.0001, 0.03) == 253  # the chunk
    assert steps(Pace(0.2), 0.0, 0.03) == 253


def test_prompts_go_on_whatever_a_step_takes() -> None:
    assert steps(Pace(0.2), 1.0, 0.5) == MIN_ROWS
    assert Pace(0.2).room(4, 8) == 0  # decodes fill the chunk


def test_the_first_step_beside_streams_is_careful() -> None:
    assert Pace(0.2).room(256, 1) == FIRST_ROWS
    known = Pace(0.2)
    known.learn(0.256, 256, 0)  # a prompt alone: 1 ms a row
    assert known.room(256, 1) == 200


def test_one_slow_step_is_forgotten() -> None:
    pace = Pace(0.2)
    usual = steps(pace, 0.001, 0.02)
    pace.learn(5.0, usual, 3)
    assert pace.room(256, 3) < usual
    assert steps(pace, 0.001, 0.02) == pytest.approx(usual, abs=16)


@pytest.mark.parametrize(("gap", "most"), [(1e-6, MIN_ROWS), (None, 63)])
def test_the_engine_keeps_the_pace(model, monkeypatch, gap: float | None, most: int) -> None:
    llm = LLM(model, threads=2, chunk_size=64, enable_prefix_caching=False)
    engine = ServingEngine(llm, stream_gap=gap)
    seen: list[tuple[int, int]] = []
    step = llm.scheduler.step

    def noting(**options: object) -> list[Request]:
        decodes = llm.scheduler.decoding
        touched = step(**options)
        seen.append((decodes, llm.scheduler.prompt_rows))
        return touched

    async def main() -> None:
        stream = engine.generate("x", SamplingParams(temperature=0, max_tokens=400))
        await anext(stream)
        prompt = engine.generate([7] * 200, SamplingParams(temperature=0, max_tokens=1))
        async for _ in prompt:
            pass
        stream.cancel()

    monkeypatch.setattr(llm.scheduler, "step", noting)
    engine.start()
    asyncio.run(main())
    engine.close()
    beside = [rows for decodes, rows in seen if decodes == 1 and rows]
    assert sum(beside) >= 190
    first = FIRST_ROWS if gap else most  # nothing is known of the first
    assert max(beside[:1]) <= first and max(beside[1:]) == most
