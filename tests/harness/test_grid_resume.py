"""A grid killed in the middle and resumed: nothing lost, nothing twice, nothing mixed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from grids import SPEED, arm, run, spec

from edge_infer.errors import ConfigError, StorageError
from edge_infer.harness.grid.journal import Journal
from edge_infer.harness.grid.run import journal_path, run_grid, schedule
from edge_infer.harness.grid.spec import GridSpec
from edge_infer.harness.schema import Artifact

# Writes down that it ran, and holds until the test lets it go on.
COUNTED = """
import os, time
name = {name!r}
with open({folder!r} + "/ran", "a") as file:
    file.write(f"{{name}} {{os.getpid()}}\\n")
deadline = time.monotonic() + 60
while os.path.exists({folder!r} + "/hold") and time.monotonic() < deadline:
    time.sleep(0.01)
print('{{"speed": 10}}')
"""


def counted(folder: Path) -> list[dict[str, Any]]:
    return [arm(n, COUNTED.format(name=n, folder=str(folder))) for n in ("a", "b", "c")]


def ran(folder: Path) -> list[tuple[str, int]]:
    file = folder / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def stop_in_a_run(tmp_path: Path, sign: signal.Signals) -> tuple[Path, Path, int]:
    """(spec, output, exit status) of a grid that a signal ended in its fifth run or later."""
    document = spec(counted(tmp_path), warmup=1).model_dump(by_alias=True, exclude_unset=True)
    file, output = tmp_path / "spec.yaml", tmp_path / "out.json"
    file.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "edge_infer.cli", "grid", str(file), "-o", str(output)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as grid:
        until(lambda: len(ran(tmp_path)) >= 4)
        (tmp_path / "hold").touch()
        seen = len(ran(tmp_path))
        until(lambda: len(ran(tmp_path)) > seen or grid.poll() is not None)
        grid.send_signal(sign)
        grid.wait(60)
    assert not output.exists() and journal_path(output).exists()
    return file, output, grid.returncode


@pytest.fixture
def interrupted(tmp_path: Path) -> tuple[GridSpec, Path]:
    """(spec, output) of a grid that ended in its fifth run, in this process."""
    document, output = spec(counted(tmp_path), warmup=1), tmp_path / "out.json"

    def stop(step: Any) -> None:
        if step.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(document, output, progress=stop)
    return document, output


def read(path: Path) -> GridSpec:
    return GridSpec.model_validate(yaml.safe_load(path.read_text()))


def test_killed_grid_goes_on_where_it_was(tmp_path: Path) -> None:
    file, output, _ = stop_in_a_run(tmp_path, signal.SIGKILL)
    finished = [
        (line["run"]["arm"], line["run"]["index"], line["run"]["warmup"])
        for line in map(json.loads, journal_path(output).read_text().splitlines())
        if line["type"] == "pass"
    ]
    cut = ran(tmp_path)[-1]
    assert running(cut[1])  # SIGKILL of the grid left its run alive
    (tmp_path / "hold").unlink()
    command = [sys.executable, "-m", "edge_infer.cli", "grid", str(file), "-o", str(output)]
    done = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not running(cut[1])
    artifact = Artifact.model_validate_json(output.read_text())
    assert artifact.grid is not None
    runs = [(p.arm, p.index, p.warmup) for p in artifact.grid.passes]
    assert runs == [(r.arm, r.index, r.warmup) for r in schedule(read(file))]
    assert runs[: len(finished)] == finished
    assert [p.session for p in artifact.grid.passes] == [0] * len(finished) + [1] * (
        len(runs) - len(finished)
    )
    # What was finished did not run again; what was cut short did, once.
    assert len(ran(tmp_path)) == len(runs) + 1
    assert all(len(a.metrics[0].samples) == 3 for a in artifact.arms)
    assert len(artifact.grid.sessions) == 2
    assert not journal_path(output).exists()


def test_grid_that_is_asked_to_end_takes_its_arm_along(tmp_path: Path) -> None:
    file, output, status = stop_in_a_run(tmp_path, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert not running(ran(tmp_path)[-1][1])
    (tmp_path / "hold").unlink()
    found = run_grid(read(file), output, resume=True)
    assert all(a.status == "result" for a in found.arms)


def test_line_that_the_kill_cut_in_two_is_dropped(interrupted: tuple[GridSpec, Path]) -> None:
    document, output = interrupted
    journal = journal_path(output)
    lines = journal.read_bytes().splitlines(keepends=True)
    last_pass = max(i for i, line in enumerate(lines) if b'"type":"pass"' in line)
    journal.write_bytes(b"".join(lines[:last_pass]) + lines[last_pass][:40])
    artifact = run_grid(document, output, resume=True)
    assert all(len(a.metrics[0].samples) == 3 for a in artifact.arms)


def test_passes_under_other_conditions_are_not_mixed(interrupted: tuple[GridSpec, Path]) -> None:
    document, output = interrupted
    changed = document.model_copy(update={"timeout": 61.0})
    with pytest.raises(ConfigError, match=r"not be comparable \(spec: "):
        run_grid(changed, output, resume=True)
    journal = journal_path(output)
    before = journal.read_text().splitlines()
    for key in ("edge_infer", "machine", "program of b"):
        header = json.loads(before[0])
        header["binding"][key] = "another"
        journal.write_text("\n".join([json.dumps(header), *before[1:]]) + "\n")
        with pytest.raises(ConfigError, match=f"{key}: another, now "):
            run_grid(document, output, resume=True)
    assert not output.exists()


def test_damaged_journal_is_refused(interrupted: tuple[GridSpec, Path]) -> None:
    document, output = interrupted
    journal = journal_path(output)
    lines = journal.read_text().splitlines()
    for bad in ("nonsense", "{}", '{"type": "pass"}', "[]"):
        journal.write_text("\n".join([lines[0], bad, *lines[1:]]) + "\n")
        with pytest.raises(StorageError, match="Line 2"):
            run_grid(document, output, resume=True)


def test_grid_that_was_left_is_not_overwritten(interrupted: tuple[GridSpec, Path]) -> None:
    with pytest.raises(ConfigError, match="left from a grid") as caught:
        run_grid(*interrupted)
    assert "--resume" in caught.value.remedy


def test_two_grids_do_not_write_one_journal(interrupted: tuple[GridSpec, Path]) -> None:
    document, output = interrupted
    header = json.loads(journal_path(output).read_text().splitlines()[0])
    held = Journal.resume(journal_path(output), header["binding"])
    try:
        with pytest.raises(ConfigError, match="Another grid"):
            run_grid(document, output, resume=True)
    finally:
        held.close()


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no journal"):
        run_grid(spec([arm("a")]), tmp_path / "out.json", resume=True)


def test_artifact_is_never_overwritten(tmp_path: Path) -> None:
    run(tmp_path, [arm("a")])
    before = (tmp_path / "artifact.json").read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        run(tmp_path, [arm("a")])
    assert (tmp_path / "artifact.json").read_bytes() == before


def test_void_arm_stays_void_when_resumed(tmp_path: Path) -> None:
    probe = {"json": "speed", "equals": 11}
    arms = [arm("a"), arm("b", probes=[probe])]
    document = spec(arms, metrics=[SPEED])
    output = tmp_path / "out.json"

    def stop(step: Any) -> None:
        if step.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(document, output, progress=stop)
    found = run_grid(document, output, resume=True)
    assert [a.status for a in found.arms] == ["result", "void"]
    assert found.grid is not None
    assert [p.arm for p in found.grid.passes].count("b") == 1
