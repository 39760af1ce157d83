"""Measurements of a server of ours: on the tiny model, whose times mean nothing."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
import time
from pathlib import Path

import pytest
from byte_model import write_model

from edge_infer.checkpoint.convert import convert
from edge_infer.errors import ConfigError, ExecutionError
from edge_infer.harness.load import gap, served, speculation, start
from edge_infer.harness.report.collect import read_artifact

pytest.importorskip("fastapi", reason="extra [serve] is not installed")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The tiny model, said to have been made for long texts."""
    root = tmp_path_factory.mktemp("measured")
    folder = write_model(root / "hf")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 16384
    (folder / "config.json").write_text(json.dumps(config))
    return convert(folder, root / "packed", bits=4)


def test_a_window_tells_steps_from_gaps_that_reach_into_it() -> None:
    found = gap.window(10.0, 20.0, [[8.0, 9.0, 11.0, 13.0, 16.0, 19.0, 24.0], [9.5, 9.9]])
    assert found.prefill == 10.0
    assert found.steps == [2.0, 3.0, 3.0]
    assert found.gaps == [2.0, 2.0, 3.0, 3.0, 5.0]
    assert found.steady == [1.0, pytest.approx(0.4)]
    with pytest.raises(ExecutionError, match="longer prompt"):
        gap.window(10.0, 12.0, [[9.0, 11.0, 13.0]])


def test_every_token_is_an_arrival() -> None:
    answer = served.TokenAnswer(time.monotonic())
    answer.take({"choices": [{"text": "", "logprobs": {"tokens": ["\ufffd"]}}]})
    answer.take({"choices": [{"text": "ab", "logprobs": {"tokens": ["a", "b"]}}]})
    answer.take({"choices": [{"text": "", "logprobs": None, "finish_reason": "length"}]})
    assert (len(answer.arrivals), answer.tokens) == (2, ["\ufffd", "a", "b"])
    assert answer.reason


def script(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_gaps_of_streams(model, tmp_path, monkeypatch) -> None:
    output = tmp_path / "gap.json"
    options = ["--repeat", "2", "--streams", "2", "--prompt-tokens", "4000"]
    script(monkeypatch, "gap", str(model), *options, "--output", str(output), "--", "--threads=1")
    found = read_artifact(output).artifact
    (arm,) = found.arms
    worst, step, ratio = (
        arm.metric(n).samples for n in ("gap.worst", "step.full_chunk", "gap.ratio")
    )
    assert len(ratio) == 2
    for w, s, r in zip(worst, step, ratio, strict=True):
        assert w >= s > 0 and r == pytest.approx(w / s)
    assert arm.metric("prefill.beside_streams").median > max(step)
    assert found.parameters["serve"] == "--threads=1"


def test_gaps_of_streams_beside_embeddings(model, tmp_path, monkeypatch) -> None:
    output = tmp_path / "gap.json"
    options = ["--repeat", "1", "--streams", "2", "--prompt-tokens", "4000", "--embeddings", "500"]
    script(monkeypatch, "gap", str(model), *options, "--output", str(output), "--", "--threads=1")
    found = read_artifact(output).artifact
    assert found.parameters["embeddings"] == 500
    assert found.arms[0].metric("gap.worst").median > 0
    with pytest.raises(ConfigError, match="embeddings = 5000"):
        gap.GapOptions("m", embeddings=5000)


def test_speculation_keeps_the_answers(model, tmp_path, monkeypatch) -> None:
    output = tmp_path / "speculation.json"
    options = ["--repeat", "3", "--generate-tokens", "24", "--output", str(output)]
    script(monkeypatch, "speculation", str(model), *options)
    found = read_artifact(output).artifact
    assert [a.name for a in found.arms] == ["plain", "ngram"]
    assert [c.metric for c in found.comparisons] == ["decode.copy", "decode.other"]
    assert not any(a.failures for a in found.arms)
    assert len({str(speculation.prompt(k, i)) for k in speculation.KINDS for i in range(9)}) == 18


def test_a_start_ends_with_its_first_token(model) -> None:
    health, cpu, token = asyncio.run(start.measure(start.StartOptions(str(model), 1)))
    assert 0 < health.median < token.median
    assert cpu.name == "start.health_cpu" and cpu.median > 0.05


def test_a_server_that_cannot_start_says_why(tmp_path) -> None:
    with pytest.raises(ExecutionError, match="ended"):
        asyncio.run(start.measure(start.StartOptions(str(tmp_path / "nothing"), 1)))
    for make in (
        lambda: gap.GapOptions("m", streams=0),
        lambda: speculation.SpeculationOptions("m", passes=2),
        lambda: start.StartOptions("m", repeat=0),
    ):
        with pytest.raises(ConfigError):
            make()
