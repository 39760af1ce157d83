"""Peers that are Python packages: what is measured, and how their results are read."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import byte_model
import pytest

from edge_infer.checkpoint.convert import convert
from edge_infer.errors import CheckpointError, ConfigError, ExecutionError, UnsupportedError
from edge_infer.harness.bench import BenchOptions
from edge_infer.harness.compare import CompareOptions, compare
from edge_infer.harness.identity import peer_identity
from edge_infer.harness.peers import GGUF_PEERS, PEERS, open_peer, python_peer
from edge_infer.harness.peers.python_peer import PythonPeer, find_baseline, parse_document
from edge_infer.harness.report.markdown import page_plots, update

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("m", REPOSITORY / "baselines" / "measure.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["m"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class FakeEngine:
    """Takes 1 ms a prompt token and 10 ms a step, whatever else; keeps what it was asked for."""

    vocabulary = 100
    settings: dict[str, object] = {"device": "none"}  # noqa: RUF012

    def __init__(self, timing: type) -> None:
        self.runs: list[tuple[int, int, int]] = []
        self.prompts: list[list[int]] = []
        self._timing = timing

    def run(self, prompts: list[list[int]], tokens: int):
        self.runs.append((len(prompts), len(prompts[0]), tokens))
        self.prompts += prompts
        return self._timing(prefill=len(prompts[0]) / 1000, decode=(tokens - 1) / 100)


def test_the_measurement_is_that_of_our_own_bench(measure, capsys) -> None:
    words = ["--model", "m", "--prompt-tokens", "8", "--generate-tokens", "4", "--threads", "1"]
    options = measure.arguments("x").parse_args([*words, "--repeat", "2", "--sequences", "3"])
    engine = FakeEngine(measure.Timing)
    measure.measure(options, engine, {"thing": "1"})
    document = parse_document("noise\n" + capsys.readouterr().out)
    # A prompt of 8 in 8 ms; 4 steps, not 5, in 40 ms; three sequences make three times as many.
    assert document["samples"] == {
        "prefill": pytest.approx([1000.0] * 2),
        "decode": pytest.approx([100.0] * 2),
        "decode.together": pytest.approx([300.0] * 2),
    }
    assert engine.runs == [(1, 8, 1)] * 3 + [(1, 1, 5)] * 3 + [(3, 1, 5)] * 3
    assert document["versions"] == {"thing": "1"}
    assert len({tuple(p) for p in engine.prompts if len(p) == 8}) == 3  # no cache has seen it
    assert measure.length(options) == 9


def test_decode_at_a_context_has_a_prompt_of_it(measure, capsys) -> None:
    words = ["--model", "m", "--prompt-tokens", "0", "--generate-tokens", "4", "--threads", "1"]
    options = measure.arguments("x").parse_args([*words, "--repeat", "1", "--context", "16"])
    engine = FakeEngine(measure.Timing)
    measure.measure(options, engine, {})
    assert engine.runs == [(1, 16, 5)] * 2
    assert list(parse_document(capsys.readouterr().out)["samples"]) == ["decode"]
    assert measure.length(options) == 21


GOOD = {
    "samples": {"prefill": [10.0], "decode": [2.0]},
    "settings": {"device": "CPU"},
    "versions": {"package": "1.2", "base": "3"},
}


@pytest.fixture
def baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A baseline whose interpreter is ours and whose bench.py repeats its own arguments."""
    folder = tmp_path / "baselines" / "openvino"
    (folder / "build/venv/bin").mkdir(parents=True)
    (folder / "build/venv/bin/python").symlink_to(sys.executable)
    (folder / "bench.py").write_text(
        f"import json, sys\ndocument = {GOOD!r}\n"
        "document['settings']['words'] = ' '.join(sys.argv[1:])\n"
        "print('a library says hello')\nprint(json.dumps(document))\nprint('and goodbye')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(python_peer.VARIABLE, raising=False)
    return folder


def test_a_peer_is_run_with_the_same_measurement(baseline: Path, tmp_path: Path) -> None:
    peer = open_peer("openvino")
    assert isinstance(peer, PythonPeer) and peer.folder == baseline
    options = BenchOptions(model="ours", prompt_tokens=32, generate_tokens=8, repeat=2)
    run = peer.run(tmp_path, options, sorted(os.sched_getaffinity(0))[:1])
    assert run.samples == GOOD["samples"] and run.threads == 1
    assert run.settings["words"] == (
        f"--model {tmp_path} --prompt-tokens 32 --generate-tokens 8 --context 0 --sequences 1 "
        "--repeat 2 --threads 1"
    )
    assert run.memory.peak_rss > 0
    build = peer.build()
    assert (build.name, build.version) == ("OpenVINO GenAI", "1.2")
    assert build.details == {"package": "1.2", "base": "3"}


def test_environments_may_lie_elsewhere(baseline: Path, tmp_path: Path, monkeypatch) -> None:
    elsewhere = tmp_path / "peers"
    (baseline / "build").rename(tmp_path / "moved")
    elsewhere.mkdir()
    (tmp_path / "moved").rename(elsewhere / "openvino")
    monkeypatch.setenv(python_peer.VARIABLE, "peers")
    peer = open_peer("openvino")
    assert isinstance(peer, PythonPeer) and peer.folder == baseline
    run = peer.run(tmp_path, BenchOptions(model="m"), ())
    assert run.command[0] == str(elsewhere / "openvino/venv/bin/python")


def test_a_whole_comparison_is_a_row_of_a_page(baseline: Path, tmp_path: Path) -> None:
    model = convert(byte_model.write_model(tmp_path / "hf"), tmp_path / "tiny-4bit", bits=4)
    bench = BenchOptions(model=str(model), prompt_tokens=8, generate_tokens=2, repeat=1, threads=1)
    found = compare(CompareOptions(bench, tmp_path / "hf", passes=3, peer="openvino"))
    assert [len(c.ratio.samples) for c in found.comparisons] == [3, 3]
    results = tmp_path / "results"
    results.mkdir()
    (results / "2026-01-01-compare-tiny-openvino-x.json").write_text(found.model_dump_json())
    text = "<!-- plot: p.png *-compare-tiny-*.json -->\n<!-- end plot -->\n"
    rows = [line for line in update(text, results).splitlines() if "OpenVINO GenAI" in line]
    assert [row.split("|")[1].strip() for row in rows] == ["decode", "prefill"]
    assert all("tiny-4bit, OpenVINO GenAI hf" in row for row in rows)
    assert ["| 2.00 |" in rows[0], "| 10.0 |" in rows[1]] == [True, True]  # what GOOD says
    ((name, image),) = page_plots(text, results)
    assert name == "p.png" and image.startswith(b"\x89PNG")


def test_a_peer_that_fails_is_an_error_with_its_words(baseline: Path, tmp_path: Path) -> None:
    (baseline / "bench.py").write_text("raise SystemExit('no such device')\n")
    with pytest.raises(ExecutionError, match="no such device"):
        open_peer("openvino").run(tmp_path, BenchOptions(model="m"), ())


@pytest.mark.parametrize(
    "text",
    ["", "hello", "[]", json.dumps({**GOOD, "samples": {}}), json.dumps({"samples": {"x": [1]}}),
     json.dumps({**GOOD, "samples": {"decode": [0.0]}}),
     json.dumps({**GOOD, "samples": {"decode": [float("nan")]}})],
)  # fmt: skip
def test_other_output_is_an_error(text: str) -> None:
    with pytest.raises(ExecutionError, match=r"bench\.py wrote no results"):
        parse_document(text)


def test_peers_that_are_absent_or_unknown_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(python_peer.VARIABLE, "elsewhere")
    with pytest.raises(UnsupportedError) as caught:
        find_baseline("openvino")
    assert "make baseline-openvino" in caught.value.remedy and "elsewhere" in caught.value.message
    with pytest.raises(ConfigError, match="'nobody'"):
        open_peer("nobody")
    assert {*PEERS} == {*GGUF_PEERS, *python_peer.PYTHON_PEERS}
    with pytest.raises(CheckpointError, match="not a folder"):
        CompareOptions(BenchOptions(model="m"), tmp_path / "absent", passes=3, peer="openvino")


def test_each_baseline_has_its_script_requirements_and_page() -> None:
    for _, folder, _ in python_peer.PYTHON_PEERS.values():
        found = REPOSITORY / "baselines" / folder
        assert os.access(found / "build.sh", os.X_OK)
        assert all((found / name).is_file() for name in ("bench.py", "README.md"))
        pins = (found / "requirements.txt").read_text().splitlines()
        assert pins and all("==" in pin for pin in pins)


def test_a_model_in_a_format_of_the_peers_own_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.bin").write_bytes(b"12345")
    identity = peer_identity(tmp_path)
    assert identity.bytes == 5 and identity.files[0].sha256 is not None and not identity.groups
