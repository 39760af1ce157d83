"""Busy CPUs: refused before a grid, labelled during it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from grids import arm, run, spec

from edge_infer.errors import DeviceError
from edge_infer.harness.grid.contention import core_loads, cpu_times, preflight, target_cpus
from edge_infer.harness.grid.run import journal_path, run_grid
from edge_infer.harness.grid.spec import PreflightSpec
from edge_infer.harness.schema_grid import CoreLoad

CPU = min(os.sched_getaffinity(0))


@contextmanager
def loaded(cpu: int) -> Iterator[None]:
    """Something that keeps one CPU busy."""
    code = f"import os; os.sched_setaffinity(0, [{cpu}]); print(1, flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def test_run_on_a_loaded_core_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    with loaded(CPU), pytest.raises(DeviceError, match=f"CPU {CPU} is busy") as caught:
        limits = {"seconds": 0.3, "busy": 0.1, "steal": 1}
        run_grid(spec([arm("a")], pin=[CPU], preflight=limits), output)
    assert caught.value.code == "machine_busy"
    assert "--wait" in caught.value.remedy
    assert not output.exists() and not journal_path(output).exists()


def test_load_is_that_of_the_core() -> None:
    with loaded(CPU):
        (load,) = core_loads([CPU], 0.5)
    assert load.cpu == CPU
    assert load.busy + load.steal > 0.8


class Machine:
    """A machine that is busy for a while."""

    def __init__(self, *loads: tuple[float, float]) -> None:
        self.loads, self.asked = list(loads), 0

    def __call__(self, cpus: Sequence[int], seconds: float) -> list[CoreLoad]:
        busy, steal = self.loads[min(self.asked, len(self.loads) - 1)]
        self.asked += 1
        return [CoreLoad(cpu=cpu, busy=busy, steal=steal) for cpu in cpus]


LIMITS = PreflightSpec(busy=0.1, steal=0.05)


def test_both_samples_must_be_quiet() -> None:
    assert preflight(LIMITS, [0, 1], sample=Machine((0.1, 0.05))).samples[1][1].cpu == 1
    for late in ((0.11, 0.0), (0.0, 0.06)):
        with pytest.raises(DeviceError, match="is busy"):
            preflight(LIMITS, [0], sample=Machine((0.0, 0.0), late))


def test_time_that_the_hypervisor_took_counts() -> None:
    with pytest.raises(DeviceError, match=r"30% stolen \(limit 5%\)"):
        preflight(LIMITS, [0], sample=Machine((0.0, 0.3)))


def test_waiting_for_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_infer.harness.grid.contention.RETRY_SECONDS", 0.01)
    machine, said = Machine((0.9, 0.0), (0.9, 0.0), (0.0, 0.0)), list[str]()
    preflight(LIMITS, [0], wait=60, sample=machine, say=said.append)
    assert machine.asked == 4 and "90% used" in said[0]
    with pytest.raises(DeviceError, match="is busy"):
        preflight(LIMITS, [0], wait=0.05, sample=Machine((0.9, 0.0)))


def test_pass_says_who_else_used_the_cpu(tmp_path: Path) -> None:
    code = "import time; time.sleep(1); print('{\"speed\": 1}')"
    with loaded(CPU):
        found = run(tmp_path, [arm("a", code)], pin=[CPU], passes=1)
    assert found.grid is not None
    (contention,) = [p.contention for p in found.grid.passes]
    assert contention is not None
    assert contention.label == "contended"
    assert contention.others + contention.steal > 0.5


def test_an_arms_own_work_is_not_contention(tmp_path: Path) -> None:
    # It and a child of it keep the CPU busy; others may, too, on a machine that is not ours.
    spin = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])\n{spin}"
    before = cpu_times([CPU])[CPU]
    code += "\nprint('{\"speed\": 1}')"
    found = run(tmp_path, [arm("a", code)], pin=[CPU], passes=1)
    after = cpu_times([CPU])[CPU]
    assert found.grid is not None
    (one,) = found.grid.passes
    assert one.contention is not None
    # Everything that was busy there, less the second that the arm used itself.
    most = (after.busy - before.busy - 0.95) / one.seconds
    assert one.contention.others <= most + 0.05


def test_short_pass_gets_no_verdict(tmp_path: Path) -> None:
    found = run(tmp_path, [{**arm("a"), "command": ["echo", '{"speed": 1}']}], passes=1)
    assert found.grid is not None
    (one,) = found.grid.passes
    assert one.contention is not None
    if one.seconds < 0.15:
        assert one.contention.label == "too short to tell"


def test_arms_run_where_the_spec_says(tmp_path: Path) -> None:
    code = "import os; print('{\"speed\": %d}' % sum(os.sched_getaffinity(0)))"
    cpus = sorted(os.sched_getaffinity(0))[-1:]
    found = run(tmp_path, [arm("a", code)], pin=cpus)
    assert found.arms[0].metrics[0].samples == [float(cpus[0])] * 3
    assert found.arms[0].cpus == cpus
    with pytest.raises(DeviceError, match="CPU 4000 may not be used"):
        target_cpus([4000])
