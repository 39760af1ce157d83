"""Specs: what is read, what is refused, and in which words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from grids import SPEED, arm, spec
from pydantic import ValidationError

from edge_infer.errors import ConfigError, ExecutionError
from edge_infer.harness.grid.documents import expand
from edge_infer.harness.grid.readers import Output, hold, read_number, read_value
from edge_infer.harness.grid.run import schedule
from edge_infer.harness.grid.spec import MetricSpec, Probe, Reading, read_spec

GRIDS = Path(__file__).resolve().parents[2] / "benchmarks/grids"
SPEC = """
name: chunks
arms:
  - name: small
    command: edge-infer bench "$MODEL" --chunk-size 64 --json
    env: {EDGE_INFER_ISA: avx2, N: 3}
    probes: [{json: "arms[0].settings.chunk_size", equals: 64}]
  - name: large
    command: [edge-infer, bench, $MODEL, --chunk-size, 512, --json]
    no_probe: the default
metrics:
  - {name: decode, unit: tok/s, better: higher, json: "arms[0].metrics[0].median"}
  - {name: anonymous, memory: peak_anonymous}
"""


def test_spec_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    monkeypatch.setenv("MODEL", "a folder")
    found = read_spec(file)
    small, large = found.arms
    assert small.command == ["edge-infer", "bench", "a folder", "--chunk-size", "64", "--json"]
    assert large.command[3:5] == ["--chunk-size", "512"]
    assert small.env == {"EDGE_INFER_ISA": "avx2", "N": "3"}
    assert (found.passes, found.warmup, found.baseline_arm) == (5, 1, "small")
    assert (found.metrics[1].unit, found.metrics[1].better) == ("bytes", "lower")
    monkeypatch.delenv("MODEL")
    with pytest.raises(ConfigError, match="needs the environment variable MODEL"):
        read_spec(file)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: [", "is no YAML"),
        ("!!python/object/apply:os.system [echo]", "is no YAML"),
        ("", "valid dictionary"),
        ("- 1", "valid dictionary"),
        (SPEC + "passses: 5\n", "passses: Extra inputs are not permitted"),
        (SPEC + "passes: 0\n", "passes: Input should be greater than or equal to 1"),
        (SPEC + "baseline: nobody\n", "the baseline 'nobody' is no arm"),
        (SPEC.replace("large", "small"), "two arms share a name"),
        (SPEC.replace("N: 3", "N: yes"), "N: write the value in quotes"),
        (SPEC.replace("equals: 64", "equal: 64"), "equal: Extra inputs"),
        (SPEC.replace(", equals: 64", ""), "give equals or matches"),
        (SPEC.replace("unit: tok/s, ", ""), "needs its unit"),
        (SPEC.replace("memory: peak_anonymous", "wall: true, memory: peak_pss"), "in one way"),
        (SPEC.replace("memory: peak_anonymous", "unit: MB, memory: peak_pss"), "in bytes"),
        (SPEC.replace("arms[0].metrics[0].median", "arms[0"), "is no JMESPath"),
        (SPEC.replace("--json\n", '--json "\n', 1), "No closing quotation"),
    ],
)
def test_senseless_specs_are_refused(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"spec\.yaml") as caught:
        read_spec(file)
    assert complaint in caught.value.message


@pytest.mark.parametrize("path", sorted(GRIDS.glob("*.yaml")), ids=lambda p: p.name)
def test_committed_specs_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$([A-Z_]+)", path.read_text()):
        monkeypatch.setenv(name, "a value")
    assert len(read_spec(path).arms) >= 2


@pytest.mark.parametrize(
    ("anonymous", "locked", "mode"),
    [(30, 0, "mapped"), (1030, 0, "resident"), (30, 1000, "locked")],
)
def test_a_way_to_keep_weights_is_proved_by_memory(
    anonymous: int, locked: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", "a value")
    settings = {"weights": "whatever it says", "weight_bytes": 1000, "locked_bytes": locked}
    snapshots = [{"moment": "loaded", "anonymous": 10}, {"moment": "d", "anonymous": anonymous}]
    document = {"arms": [{"settings": settings, "memory": {"snapshots": snapshots}}]}
    output = Output(json.dumps(document), "")
    found = {
        arm.name: all(hold(probe, output).held for probe in arm.probes)
        for arm in read_spec(GRIDS / "weights-mode.yaml").arms
    }
    assert found == {name: name == mode for name in ("mapped", "resident", "locked")}


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_spec(tmp_path / "absent.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="at most 1048576"):
        read_spec(tmp_path / "large.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no YAML"):
        read_spec(tmp_path / "binary.yaml")


def test_callgrind_stands_alone() -> None:
    count = {"name": "n", "instructions": "callgrind"}
    assert spec([arm("a")], metrics=[count]).counter == "callgrind"
    with pytest.raises(ValidationError, match="grid without other metrics"):
        spec([arm("a")], metrics=[count, SPEED])


def test_variables() -> None:
    values = {"A": "x y", "B": ""}
    assert expand("$A/${A}1$B$$A 5$", values) == "x y/x y1$A 5$"
    with pytest.raises(ConfigError, match="variable C"):
        expand("$C", values)


def test_every_arm_runs_in_every_pass_and_the_first_one_rotates() -> None:
    runs = list(schedule(spec([arm("a"), arm("b")], passes=4, warmup=1)))
    assert [r.arm for r in runs if r.warmup] == ["a", "b"]
    orders = [[r.arm for r in runs if not r.warmup and r.index == i] for i in range(4)]
    assert orders == [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
    assert [r.position for r in runs] == [0, 1] * 5


OUTPUT = Output('{"a": {"b": [1, 2.5]}, "s": "64", "t": true}', "n 1\nn 22\n")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ({"json": "a.b[1]"}, 2.5),
        ({"json": "a.b[:1]"}, 1),
        ({"json": "s"}, "64"),
        ({"regex": r"n (\d+)", "stream": "stderr"}, "22"),
        ({"regex": r"^n 1$", "stream": "stderr"}, "n 1"),
    ],
)
def test_values_are_read(place: dict[str, str], value: Any) -> None:
    assert read_value(Reading.model_validate(place), OUTPUT) == value


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ({"json": "a.c"}, "gives null"),
        ({"json": "a"}, "not one value"),
        ({"json": "a.b"}, "not one value"),
        ({"json": "abs(s)"}, "abs"),
        ({"json": "t"}, "not a finite number"),
        ({"regex": "absent"}, "matches nothing"),
    ],
)
def test_what_is_no_number(place: dict[str, str], complaint: str) -> None:
    with pytest.raises(ExecutionError, match=complaint):
        read_number(Reading.model_validate(place), OUTPUT)


@pytest.mark.parametrize(
    ("probe", "held"),
    [
        ({"json": "a.b[0]", "equals": 1}, True),
        ({"json": "a.b[0]", "equals": 1.5}, False),
        ({"json": "s", "equals": 64}, True),  # read from text, a number is that number
        ({"json": "s", "equals": "64"}, True),
        ({"json": "a.b[0]", "equals": "1"}, False),
        ({"json": "t", "equals": True}, True),
        ({"json": "t", "equals": 1}, False),
        ({"json": "a.b[0]", "equals": True}, False),
        ({"json": "s", "matches": "^6"}, True),
        ({"json": "s", "matches": "^4"}, False),
        ({"json": "absent", "equals": None}, False),
    ],
)
def test_probes(probe: dict[str, Any], held: bool) -> None:
    assert hold(Probe.model_validate(probe), OUTPUT).held is held


def test_metrics_fill_in_their_unit() -> None:
    metric = MetricSpec.model_validate({"name": "time", "wall": True})
    assert (metric.unit, metric.better) == ("s", "lower")


def test_program_that_is_not_there(tmp_path: Path) -> None:
    from edge_infer.harness.grid.run import run_grid

    absent = {"name": "a", "command": ["no-such-program"], "no_probe": "x"}
    with pytest.raises(ConfigError, match="no-such-program is not a program"):
        run_grid(spec([absent]), tmp_path / "out.json")
