"""Comparisons: order, verdicts, and reading a peer's results."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from edge_infer.errors import CheckpointError, ConfigError, ExecutionError, UnsupportedError
from edge_infer.harness.bench import (
    BenchOptions,
    bench_command,
    speed_metrics,
)
from edge_infer.harness.compare import CompareOptions
from edge_infer.harness.comparison import comparisons, rotation, verdict
from edge_infer.harness.peers import GGUF_PEERS, PeerRun, llamacpp, open_peer
from edge_infer.harness.schema import Arm, EngineBuild, Metric


def arm(name: str, **speeds: list[float]) -> Arm:
    return Arm(
        name=name,
        engine=EngineBuild(name=name, version="0"),
        command=[name],
        threads=1,
        metrics=[Metric.of(key, "tok/s", "higher", value) for key, value in speeds.items()],
    )


def test_every_arm_is_first_equally_often() -> None:
    orders = [rotation(["a", "b", "c"], i) for i in range(6)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert sorted(order[0] for order in orders) == ["a", "a", "b", "b", "c", "c"]


@pytest.mark.parametrize(
    ("better", "ratios", "expected"),
    [
        ("higher", [1.2, 1.15, 1.25], "better"),
        ("higher", [0.8, 0.75, 0.7], "worse"),
        ("higher", [1.5, 1.4, 0.99], "inside the spread"),
        ("lower", [0.8, 0.75, 0.7], "better"),
        ("lower", [1.2, 1.15, 1.25], "worse"),
    ],
)
def test_verdict(better, ratios: list[float], expected: str) -> None:
    assert verdict(Metric.of("x", "ratio", better, ratios)) == expected


def test_comparison_pairs_the_passes() -> None:
    # The machine halved its speed in the second pass; the ratio did not move.
    ours, theirs = arm("a", decode=[40.0, 20.0, 40.0]), arm("b", decode=[20.0, 10.0, 20.0])
    (found,) = comparisons(ours, theirs)
    assert found.ratio.samples == [2.0, 2.0, 2.0]
    assert found.verdict == "better"
    assert found.ratio.min == found.ratio.max == 2.0


def test_metric_that_one_arm_lacks_is_not_compared() -> None:
    assert comparisons(arm("a", decode=[1.0, 1.0]), arm("b", prefill=[1.0, 1.0])) == []


RESULTS = [
    {"n_prompt": 512, "n_gen": 0, "n_threads": 2, "samples_ts": [100.0, 110.0], "type_k": "f16"},
    {"n_prompt": 0, "n_gen": 64, "n_threads": 2, "samples_ts": [20.0, 21.0], "type_k": "f16"},
]


def test_llama_bench_results() -> None:
    samples, fields = llamacpp.parse_results(json.dumps(RESULTS))
    assert samples == {"prefill": [100.0, 110.0], "decode": [20.0, 21.0]}
    assert fields["n_threads"] == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '[{"n_prompt": 1}]', "3"])
def test_other_output_is_an_error(text: str) -> None:
    with pytest.raises(ExecutionError, match="llama-bench"):
        llamacpp.parse_results(text)


BATCHED = [
    "llama_perf: something that is no JSON",
    '{"pp": 64, "tg": 8, "pl": 4, "speed_pp": 1.0, "speed_tg": 80.5}',
    '{"pp": 64, "tg": 8, "pl": 4, "speed_pp": 1.0, "speed_tg": 81.5}',
]


@pytest.fixture
def fake_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """llama-bench and llama-batched-bench that write down their arguments."""
    for name, out in (("llama-bench", [json.dumps(RESULTS)]), (llamacpp.BATCHED, BATCHED)):
        program = tmp_path / name
        lines = "".join(f"echo '{line}'\n" for line in out)
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/args\n{lines}')
        program.chmod(0o755)
    monkeypatch.setenv(llamacpp.VARIABLE, str(tmp_path / "llama-bench"))
    return tmp_path / "llama-bench"


def run_fake(tmp_path: Path, **options) -> tuple[PeerRun, list[dict[str, str]]]:
    """The run, and the options of each program that it started, the name under ``program``."""
    bench = BenchOptions(model="m", repeat=2, timeout=60, **{"starts": 0, **options})
    cpus = sorted(os.sched_getaffinity(0))[:1]
    run = open_peer("llamacpp").run(tmp_path / "m.gguf", bench, cpus)
    started = []
    for line in (tmp_path / "args").read_text().splitlines():
        words = line.split()
        started.append({"program": words[0], **dict(zip(words[1::2], words[2::2], strict=True))})
    return run, started


def test_llama_bench_is_run_with_the_same_measurement(fake_bench: Path, tmp_path: Path) -> None:
    run, started = run_fake(tmp_path)
    assert started == [
        {
            "program": "llama-bench",
            "-m": str(tmp_path / "m.gguf"),
            "-t": "1",
            "-r": "2",
            "-p": "512",
            "-n": "64",
            "-o": "json",
        }
    ]
    assert run.samples == {"prefill": [100.0, 110.0], "decode": [20.0, 21.0]}
    assert run.threads == 2
    assert run.settings == {"type_k": "f16"}


def test_context_belongs_to_the_decode_alone(fake_bench: Path, tmp_path: Path) -> None:
    run, started = run_fake(tmp_path, context=2048)
    assert [(s["-p"], s["-n"], s.get("-d")) for s in started] == [
        ("512", "0", None),
        ("0", "64", "2048"),
    ]
    assert run.command.count("&&") == 1


def test_several_sequences_are_llama_batched_bench(fake_bench: Path, tmp_path: Path) -> None:
    run, started = run_fake(tmp_path, context=2048, prompt_tokens=0, sequences=4)
    assert [s["program"] for s in started] == ["llama-bench", llamacpp.BATCHED]
    batched = started[1]
    assert (batched["-npp"], batched["-ntg"], batched["-npl"]) == ("2048", "64", "4,4")
    assert int(batched["-c"]) >= 4 * (2048 + 64)
    assert run.samples["decode.together"] == [80.5, 81.5]
    (tmp_path / llamacpp.BATCHED).unlink()
    with pytest.raises(UnsupportedError, match="batched"):
        run_fake(tmp_path, sequences=2)


def test_the_leanest_setting_repacks_in_none_of_its_programs(
    fake_bench: Path, tmp_path: Path
) -> None:
    peer = open_peer("llamacpp-no-repack")
    assert peer.name != open_peer("llamacpp").name
    bench = BenchOptions(model="m", repeat=1, timeout=60, starts=2, sequences=4)
    run = peer.run(tmp_path / "m.gguf", bench, sorted(os.sched_getaffinity(0))[:1])
    lines = (tmp_path / "args").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["llama-bench", llamacpp.BATCHED] + [
        "llama-bench"
    ] * 2
    assert all("--repack 0" in line or "--no-repack" in line for line in lines)
    # A start computes one short prompt, once, and nothing before it.
    assert all("--no-warmup" in line and " -n 0" in line and "-r 1" in line for line in lines[2:])
    starts = run.samples["load.start_to_first_token"]
    assert len(starts) == 2 and all(seconds > 0 for seconds in starts)


def test_a_start_is_better_when_it_takes_less_time() -> None:
    (metric,) = speed_metrics({"load.start_to_first_token": [2.0, 1.0]})
    assert (metric.unit, metric.better) == ("s", "lower")


@pytest.mark.parametrize("text", ["", "no JSON", '{"pp": 1}', "{"])
def test_other_output_of_batched_bench_is_an_error(text: str) -> None:
    with pytest.raises(ExecutionError, match="batched"):
        llamacpp.parse_batched(text)


def test_unknown_peer() -> None:
    with pytest.raises(ConfigError, match="llamacpp"):
        open_peer("nobody")


def test_build_description_is_read_from_beside_the_program(fake_bench: Path) -> None:
    assert llamacpp.llama_build(fake_bench).version == "unknown"
    document = {
        "source": "x==1",
        "commit": "abc",
        "compiler": "clang",
        "options": "",
        "sha256": "0",
    }
    (fake_bench.parent / "build.json").write_text(json.dumps(document))
    build = llamacpp.llama_build(fake_bench)
    assert build.commit == "abc"
    assert build.details["program_sha256"] == hashlib.sha256(fake_bench.read_bytes()).hexdigest()


def test_missing_program_says_how_to_build_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv(llamacpp.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(llamacpp, "BUILT", Path("nowhere/llama-bench"))
    with pytest.raises(UnsupportedError) as caught:
        llamacpp.find_program()
    assert "baseline-llamacpp" in caught.value.remedy
    monkeypatch.setenv(llamacpp.VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="absent"):
        llamacpp.find_program()


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": -1},
        {"prompt_tokens": 0, "generate_tokens": 0},
        {"repeat": 0},
        {"threads": 0},
        {"timeout": 0},
        {"starts": -1},
        {"context": -1},
        {"sequences": 0},
        {"context": 5, "generate_tokens": 0},
    ],
)
def test_senseless_bench_options_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        BenchOptions(model="m", **changes)


def test_senseless_compare_options_are_refused(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"")
    with pytest.raises(ConfigError, match="passes = 2"):
        CompareOptions(BenchOptions(model="m"), gguf, passes=2)
    for peer in GGUF_PEERS:
        with pytest.raises(CheckpointError):
            CompareOptions(BenchOptions(model="m"), tmp_path, passes=3, peer=peer)
    with pytest.raises(ConfigError, match="'nobody'"):
        CompareOptions(BenchOptions(model="m"), gguf, passes=3, peer="nobody")
    with pytest.raises(ConfigError, match="starts"):
        CompareOptions(BenchOptions(model="m"), tmp_path, passes=3, peer="openvino", starts=1)


def test_bench_command_repeats_the_measurement() -> None:
    command = bench_command(BenchOptions(model="m", context=9, threads=2, chunk_size=128))
    assert command[:3] == ["edge-infer", "bench", "m"]
    assert command[-6:] == ["--context", "9", "--threads", "2", "--chunk-size", "128"]
