"""benchmarks/series.sh: which steps run, and that nothing is overwritten or lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_infer.harness.machine_tag import machine_tag

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def series(tmp_path: Path):
    """Runs the script with an edge-infer that writes down its arguments and makes its output."""
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "log"
    fake = programs / "edge-infer"
    fake.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n'
        'for last; do case "$last" in *broken*) exit 3;; esac; done\n'
        'while [ $# -gt 0 ]; do [ "$1" = --output ] && echo "{}" > "$2"; shift; done\nexit 0\n'
    )
    fake.chmod(0o755)
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for model in ("qwen3-1.7b", "qwen3-1.7b-4bit", "qwen3-0.6b", "qwen3-0.6b-4bit"):
        folder = tmp_path / "models" / model
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    for twin in ("Q4_0", "Q4_K_M"):
        (tmp_path / "models" / f"qwen3-1.7b-{twin}.gguf").write_text("")

    def run(*words: str, **environment: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        log.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", str(ROOT / "benchmarks/series.sh"), *words],
            capture_output=True,
            text=True,
            timeout=120,
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "MODELS": str(tmp_path / "models"),
                "RESULTS": str(tmp_path / "results"),
                **environment,
            },
        )
        return done, log.read_text().splitlines() if log.exists() else []

    return run


def test_the_quick_set_fits_in_its_time_and_has_every_step_of_a_bar(series) -> None:
    done, ran = series("--quick", "--plan")
    assert done.returncode == 0 and ran == []
    plan = dict(line.split()[:2] for line in done.stdout.splitlines())
    assert sum(int(m) for step, m in plan.items() if step != "prepare") <= 40
    assert {"decode", "depth", "prefill", "matmul", "sequences"} < set(plan)
    assert {"levels", "memory", "load", "demo"} < set(plan) and "serve" not in plan


def test_results_carry_the_machine_and_are_never_overwritten(series, tmp_path: Path) -> None:
    for _ in range(2):
        done, ran = series("--quick", "load")
        assert done.returncode == 0, done.stderr
        assert len(ran) == 1 and "--starts 2" in ran[0] and "--passes 3" in ran[0]
    tag = machine_tag()
    names = sorted(file.name for file in (tmp_path / "results").iterdir())
    assert [name.partition("-load")[2] for name in names] == [
        f"-qwen3-1.7b-q4_0-{tag}-2.json",
        f"-qwen3-1.7b-q4_0-{tag}.json",
    ]


def test_steps_measure_the_shape_that_is_asked_for(series, tmp_path: Path) -> None:
    models = tmp_path / "models"
    for kind in ("", "-4bit"):
        (models / f"tiny{kind}").mkdir()
        (models / f"tiny{kind}/config.json").write_text("{}")
    for twin in ("Q4_0", "Q4_K_M"):
        (models / f"tiny-{twin}.gguf").write_text("")
    steps = ("decode", "depth", "prefill", "sequences", "memory", "load", "profile")
    done, ran = series("--quick", *steps, SHAPE="tiny")
    assert done.returncode == 0, done.stderr
    assert len(ran) == 10 and not any("qwen" in line for line in ran)
    assert sum(f"{models}/tiny-Q4_0.gguf" in line for line in ran) == 5
    tag = machine_tag()
    names = {file.name.partition("-")[2][6:] for file in (tmp_path / "results").iterdir()}
    assert {f"prefill-length-tiny-{tag}.json", f"compare-tiny-q4_k_m-d2048-{tag}.json"} < names


def test_an_unfinished_grid_keeps_its_name(series, tmp_path: Path) -> None:
    series("--quick", "matmul")
    (first,) = (tmp_path / "results").iterdir()
    first.rename(first.with_name(first.name + ".journal.jsonl"))
    done, ran = series("--quick", "matmul")
    assert done.returncode == 0 and ran[0].split()[-1].endswith("-2.json")


def test_a_step_that_fails_does_not_take_the_others_along(series, tmp_path: Path) -> None:
    (tmp_path / "models" / "broken").mkdir()
    done, ran = series("--quick", "profile", "load", MODELS=str(tmp_path / "broken"))
    assert done.returncode == 1
    assert "failed (exit status): profile (3) load (3)" in done.stderr
    assert len(ran) == 2


def test_each_peer_has_an_artifact_and_one_that_fails_leaves_the_others(
    series, tmp_path: Path
) -> None:
    for peer, converts in (("openvino", 'mkdir "$3"'), ("onnxruntime-genai", "exit 4")):
        python = tmp_path / "peers" / peer / "venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{converts}\n")
        python.chmod(0o755)
    builds = str(tmp_path / "peers")
    done, ran = series("--quick", "peers", EDGE_INFER_PEERS_BUILD=builds)
    assert done.returncode == 1 and "failed: onnxruntime-genai." in done.stderr
    models = tmp_path / "models"
    assert (models / "qwen3-0.6b-openvino").is_dir()
    assert not (models / "qwen3-0.6b-onnxruntime-genai").exists()  # half a model is none
    twins = [line.split("--peer-model ")[1].split()[0] for line in ran]
    assert twins == [f"{models}/qwen3-0.6b-openvino", *[f"{models}/qwen3-0.6b"] * 2]
    assert ["--peer vllm-cpu-eager " in line for line in ran] == [False, True, False]
    names = {p.name.partition("-compare-")[2] for p in (tmp_path / "results").iterdir()}
    tag = machine_tag()
    assert names == {
        f"qwen3-0.6b-{peer}-{tag}.json" for peer in ("openvino", "vllm-cpu-eager", "vllm-cpu")
    }


def test_unknown_words_are_refused(series) -> None:
    for word in ("nonsense", "--fast"):
        done, ran = series(word)
        assert done.returncode == 2 and word in done.stderr and ran == []


def test_servers_under_load_write_where_the_others_do(series, tmp_path: Path) -> None:
    for _ in range(2):
        done, ran = series("serve", ONLY="qwen")
        assert done.returncode == 0, done.stderr
        assert len(ran) == 1 and ran[0].startswith("grid ")
    tag = machine_tag()
    names = sorted(file.name for file in (tmp_path / "results").iterdir())
    assert [name.partition("-serve")[2] for name in names] == [
        f"-qwen3-1.7b-{tag}-2.json",
        f"-qwen3-1.7b-{tag}.json",
    ]
