"""Measured processes: events, errors, time limits, CPU masks, and no process left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from edge_infer.errors import CapacityError, ExecutionError
from edge_infer.harness.processes import Child, confined, run_program

PROGRAM = """
import json, os, sys, time
from edge_infer.errors import CapacityError
from edge_infer.harness.child_events import ChildEvents, error_document
options = json.loads(sys.argv[1])

events = ChildEvents()
print("library noise on stdout")
do = options["do"]
if do == "work":
    events.send("before", mask=sorted(os.sched_getaffinity(0)), pid=os.getpid())
    heap = b"x" * (50 << 20)
    events.send("after")
    events.send("end")
elif do == "error":
    error = CapacityError("9 bytes, 4 free", remedy="less", code="context_length_exceeded")
    events.send("error", **error_document(error))
elif do == "die":
    events.send("before")
    sys.exit("out of luck")
elif do == "hang":
    events.send("before", pid=os.getpid())
    time.sleep(600)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "measured.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(do: str, cpus: tuple[int, ...] = (), timeout: float = 60) -> Child:
        return Child("measured", {"do": do}, cpus, timeout)

    return make


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.02)
    return False


def test_memory_is_read_while_the_child_waits(child) -> None:
    with child("work") as running:
        memory = {}
        for event in running.events():
            if event["event"] != "end":
                memory[event["event"]] = running.sampler.snapshot(event["event"]).anonymous
            assert event["time"] >= running.started
    grown = memory["after"] - memory["before"]
    assert 50 << 20 <= grown < 60 << 20
    report = running.sampler.report()
    assert [s.moment for s in report.snapshots] == ["before", "after"]
    assert report.peak_anonymous >= memory["after"]


def test_child_is_confined_and_the_parent_is_not(child) -> None:
    mine = os.sched_getaffinity(0)
    cpu = min(mine)
    with child("work", cpus=(cpu,)) as running:
        masks = [e["mask"] for e in running.events() if e["event"] == "before"]
    assert masks == [[cpu]]
    assert os.sched_getaffinity(0) == mine


def test_confinement_ends_with_an_error() -> None:
    mine = os.sched_getaffinity(0)
    with pytest.raises(RuntimeError), confined([min(mine)]):
        raise RuntimeError
    assert os.sched_getaffinity(0) == mine


def test_the_childs_own_error_arrives(child) -> None:
    with child("error") as running, pytest.raises(CapacityError, match="9 bytes") as caught:
        list(running.events())
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.remedy == "less"


def test_death_is_an_error_with_its_last_words(child) -> None:
    with child("die") as running, pytest.raises(ExecutionError, match="out of luck") as caught:
        list(running.events())
    assert "exit status 1" in caught.value.message


def test_time_limit_ends_the_child(child) -> None:
    pids = []
    with child("hang", timeout=1.5) as running, pytest.raises(ExecutionError, match=r"1\.5 s"):
        for event in running.events():
            pids.append(event["pid"])
    assert gone(pids[0])


def test_leaving_early_ends_the_child(child) -> None:
    with child("hang") as running:
        pid = next(running.events())["pid"]
    assert gone(pid)


def test_program_output_and_peak() -> None:
    script = "x = b'x' * (60 << 20); import time; time.sleep(0.3); print('done')"
    out, memory = run_program([sys.executable, "-c", script], (), 60)
    assert out == "done\n"
    assert memory.peak_anonymous >= 60 << 20


def test_program_failure_and_time_limit() -> None:
    failing = "import sys; print('boom', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ExecutionError, match="exit status 3: boom"):
        run_program([sys.executable, "-c", failing], (), 60)
    with pytest.raises(ExecutionError, match=r"longer than 0\.5 s"):
        run_program([sys.executable, "-c", "import time; time.sleep(600)"], (), 0.5)


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    # The worker ignores its parent's end, and SIGTERM.
    worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    program = (
        "import pathlib, subprocess, sys, time\n"
        f"worker = subprocess.Popen([sys.executable, '-c', {worker!r}], start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(worker.pid))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(ExecutionError, match="longer than"):
        run_program([sys.executable, "-c", program], (), 5)
    pid = int((tmp_path / "pid").read_text())

    def alive() -> bool:
        try:  # a zombie has ended, whether or not somebody waits for it
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    deadline = time.monotonic() + 10
    while alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive()
