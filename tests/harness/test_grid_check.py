"""Gates: what they hold, what they find violated, and what they refuse to judge; instructions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from grids import ANY_LOAD, SPEED, arm, run, spec
from typer.testing import CliRunner

from edge_infer.cli.main import app
from edge_infer.errors import ConfigError, ExecutionError, UnsupportedError
from edge_infer.harness.grid import instructions
from edge_infer.harness.grid.check import Expected, Finding, check, read_expected
from edge_infer.harness.grid.run import run_grid
from edge_infer.harness.schema import Artifact, Metric


def artifact_of(tmp_path: Path, *samples: float, unit: str = "tok/s") -> Artifact:
    """A grid's artifact with these samples in one arm."""
    found = run(tmp_path, [arm("a")])
    metric = Metric.of("speed", unit, "higher", list(samples))
    changed = found.arms[0].model_copy(update={"metrics": [metric]})
    return found.model_copy(update={"arms": [changed]})


def findings(artifact: Artifact, **bound: Any) -> Finding:
    document = {"bounds": [{"metric": "speed", **bound}]}
    (found,) = check(artifact, Expected.model_validate(document))
    return found


def test_bounds_hold_for_the_worst_sample(tmp_path: Path) -> None:
    steady = artifact_of(tmp_path, 100, 101, 102)
    assert findings(steady, min=100, max=102).outcome == "held"
    low = findings(steady, min=100.5)
    assert (low.outcome, low.message) == ("violated", "100 tok/s is below the bound of 100.5")
    high = findings(steady, max=101.9)
    assert (high.outcome, high.message) == ("violated", "102 tok/s is above the bound of 101.9")


def test_wide_spread_is_not_gated(tmp_path: Path) -> None:
    wide = artifact_of(tmp_path, 100, 110, 150)
    for bound in ({"min": 10}, {"min": 120}, {"max": 1000}):
        found = findings(wide, **bound)
        assert found.outcome == "refused"
        assert "45.5% apart" in found.message
    assert findings(wide, min=10, spread=0.5).outcome == "held"


@pytest.mark.parametrize(
    ("bound", "complaint"),
    [({"arm": "nobody", "min": 1}, "no arm"), ({"metric": "absent", "min": 1}, "not measured")],
)
def test_bound_on_nothing_is_no_pass(bound: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    found = findings(artifact_of(tmp_path, 1, 1, 1), **bound)
    assert found.outcome == "refused" and complaint in found.message


def test_what_is_no_result_passes_no_gate(tmp_path: Path) -> None:
    found = findings(run(tmp_path, [arm("a")], passes=2), min=1)
    assert found.outcome == "refused" and "not a result" in found.message


@pytest.mark.parametrize(
    "text", ["bounds: []", "bounds: [{metric: x}]", "bounds: [{metric: x, min: 1, mux: 2}]", "{}"]
)
def test_senseless_bounds_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "expect.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        read_expected(file)


@pytest.mark.parametrize(("bound", "code"), [({"min": 9}, 0), ({"min": 11}, 1)])
def test_command_is_a_gate(bound: dict[str, float], code: int, tmp_path: Path) -> None:
    document = {"name": "gate", "arms": [arm("a")], "metrics": [SPEED], "passes": 3}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**document, "preflight": ANY_LOAD}))
    (tmp_path / "expect.yaml").write_text(
        yaml.safe_dump({"bounds": [{"metric": "speed", **bound}]})
    )
    words = ["grid", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "out.json"), "--json"]
    done = CliRunner().invoke(app, [*words, "--check", str(tmp_path / "expect.yaml")])
    assert done.exit_code == code, done.output
    shown = json.loads(done.stdout)
    assert shown["artifact"]["arms"][0]["metrics"][0]["samples"] == [10.0] * 3
    assert shown["check"][0]["outcome"] == ("held" if code == 0 else "violated")


def test_command_ends_with_1_where_an_arm_failed(tmp_path: Path) -> None:
    document = {"name": "gate", "arms": [arm("a", "raise SystemExit(3)")], "metrics": [SPEED]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**document, "preflight": ANY_LOAD}))
    words = ["grid", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "out.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "NOT A RESULT: 0 good passes; 3 are needed" in done.stdout
    assert "pass 5: exit status 3" in done.stdout


COUNT = [{"name": "count", "instructions": "callgrind"}]


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_callgrind_counts_the_whole_tree(tmp_path: Path) -> None:
    one = {**arm("one"), "command": ["true"]}
    three = {**arm("three"), "command": ["sh", "-c", "/bin/true; /bin/true; :"]}
    found = run(tmp_path, [one, three], metrics=COUNT)
    few, many = (a.metrics[0] for a in found.arms)
    assert few.unit == "instructions"
    assert many.min > 2 * few.max > 0
    # Free of noise, whatever else the machine does.
    assert few.max - few.min < 0.01 * few.median


def fake_perf(folder: Path, monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    """A perf that writes what perf writes where a virtual machine has no counters."""
    program = folder / "perf"
    program.write_text(f"#!/bin/sh\necho '{count},,instructions:u,0,100.00,,' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


PERF = [SPEED, {"name": "count", "instructions": "perf"}]


def test_missing_counter_is_a_failure_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_perf(tmp_path, monkeypatch, "<not supported>")
    found = run(tmp_path, [arm("a")], metrics=PERF)
    assert [m.name for m in found.arms[0].metrics] == ["speed"]
    (failure,) = found.failures
    assert failure.stage == "instructions"
    assert "counts no instructions on this machine: <not supported>" in failure.message
    with pytest.raises(UnsupportedError, match="not supported"):
        run_grid(spec([arm("a")], metrics=PERF[1:]), tmp_path / "other.json")


def test_perf_counts() -> None:
    assert instructions.parse_perf("# started\n\n12345,,instructions:u,1,100.00,,\n") == 12345
    for text in ("", "<not counted>,,instructions:u,0,100.00,,", "12,,cycles:u,0,100,,"):
        with pytest.raises(ExecutionError):
            instructions.parse_perf(text)
    command = instructions.wrapped("perf", ["a", "b"], Path("f"))
    assert command[-2:] == ["a", "b"] and command[command.index("-o") + 1] == "f/perf"
