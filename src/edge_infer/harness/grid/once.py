"""One run of one arm: started, watched, read, and ended for sure with all it started."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from edge_infer.errors import EdgeInferError, ExecutionError
from edge_infer.harness.grid.contention import ArmSampler, PassWatch
from edge_infer.harness.grid.instructions import counted, wrapped
from edge_infer.harness.grid.readers import Output, hold, read_number
from edge_infer.harness.grid.spec import ArmSpec, GridSpec, MetricSpec, Probe
from edge_infer.harness.memory import process_tree
from edge_infer.harness.processes import confined
from edge_infer.harness.provenance import now, portable_text
from edge_infer.harness.record import Failure
from edge_infer.harness.schema import MemoryReport
from edge_infer.harness.schema_grid import Contention, ProbeResult

OUTPUT_LIMIT = 64 << 20
GRACE = 5.0
"""Seconds between asking and killing."""
Started = Callable[[int], None]


@dataclass
class Outcome:
    """What one run gave."""

    started_at: str
    seconds: float = 0.0
    exit_status: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    output: Output = field(default_factory=lambda: Output("", ""))
    memory: MemoryReport | None = None
    processes: list[str] = field(default_factory=list)
    contention: Contention | None = None
    probes: list[ProbeResult] = field(default_factory=list)
    failure: Failure | None = None


def run_arm(
    arm: ArmSpec,
    spec: GridSpec,
    cpus: Sequence[int],
    metrics: Sequence[MetricSpec],
    started: Started = lambda pid: None,
) -> Outcome:
    """Runs the arm once and reads ``metrics``; every failure is in the outcome.

    ``started`` is called with the id of the process (leader of a session and group of its own).
    """
    counter = next((m.instructions for m in metrics if m.instructions), None)
    outcome = Outcome(started_at=now())
    with tempfile.TemporaryDirectory(prefix="edge-infer-grid-") as name:
        folder = Path(name)
        command = list(arm.command) if counter is None else wrapped(counter, arm.command, folder)
        _run(command, arm, spec, cpus, counter is not None, folder, outcome, started)
        if outcome.failure is None:
            outcome.failure = _read(metrics, folder, outcome)
    if outcome.failure is None:
        # Only a run that worked says something about its settings.
        outcome.probes += [hold(p, outcome.output) for p in arm.probes if p.command is None]
    return outcome


def _run(
    command: list[str],
    arm: ArmSpec,
    spec: GridSpec,
    cpus: Sequence[int],
    wrapper: bool,
    folder: Path,
    outcome: Outcome,
    started: Started,
) -> None:
    own = _child_cpu_seconds()
    watch = PassWatch(cpus, spec.contention)
    begun = time.monotonic()
    with open(folder / "out", "w+b") as out, open(folder / "err", "w+b") as err:
        try:
            with confined(cpus):
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**os.environ, **arm.env},
                    start_new_session=True,
                )
        except OSError as error:
            outcome.failure = Failure(
                stage="start", code="exit", message=f"{command[0]}: {error.strerror}"
            )
            return
        sampler = ArmSampler(process.pid, wrapper=wrapper)
        beside = BesideProbes([p for p in arm.probes if p.command], process.pid)
        timed_out = False
        try:
            started(process.pid)
            with sampler, beside:
                try:
                    process.wait(timeout=spec.timeout)
                except subprocess.TimeoutExpired:
                    timed_out = True
                outcome.seconds = time.monotonic() - begun
        finally:
            end_session(process.pid, process)
        outcome.exit_status = process.returncode
        outcome.output = Output(_text(out), _text(err))
    outcome.memory = sampler.report()
    outcome.processes = list(sampler.names.values())
    outcome.contention = watch.result(_child_cpu_seconds() - own, sampler.wait_seconds)
    outcome.probes += beside.results
    if timed_out:
        message = f"took longer than {spec.timeout:g} s and was ended"
        outcome.failure = Failure(stage="run", code="timeout", message=message)
    elif process.returncode != 0:
        outcome.failure = Failure(
            stage="run", code="exit", message=_last_words(process.returncode, outcome.output)
        )


def _read(metrics: Sequence[MetricSpec], folder: Path, outcome: Outcome) -> Failure | None:
    """Fills in the values; all or none, so that no half of a pass counts."""
    assert outcome.memory is not None
    values: dict[str, float] = {}
    for metric in metrics:
        try:
            if metric.wall:
                values[metric.name] = outcome.seconds
            elif metric.memory is not None:
                found = getattr(outcome.memory, metric.memory)
                if not found:
                    raise ExecutionError(
                        f"{metric.memory}: the command ended before its memory could be read."
                    )
                values[metric.name] = float(found)
            elif metric.instructions is not None:
                values[metric.name] = counted(metric.instructions, folder)
            else:
                values[metric.name] = read_number(metric, outcome.output)
        except EdgeInferError as error:
            return Failure(
                stage="read", code=error.code, message=f"metric {metric.name}: {error.message}"
            )
    outcome.values = values
    return None


def _text(file: IO[bytes]) -> str:
    """What was written, without its middle where it is more than can be wanted."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= OUTPUT_LIMIT:
        return file.read().decode(errors="replace")
    head = file.read(OUTPUT_LIMIT // 2)
    file.seek(size - OUTPUT_LIMIT // 2)
    return (head + b"\n...\n" + file.read()).decode(errors="replace")


def _last_words(status: int, output: Output) -> str:
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    tail = " | ".join((output.stderr.strip() or output.stdout.strip()).splitlines()[-8:])
    return f"{how}: {portable_text(tail)[-2000:] or 'no output'}"


def _child_cpu_seconds() -> float:
    """CPU time of all processes that this one has waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def end_session(pid: int, process: subprocess.Popen[bytes] | None = None) -> None:
    """Ends every process of the session and tree that ``pid`` leads, and waits until they are gone.

    A worker that outlives its arm would hold memory and CPUs of the next one.
    """
    deadline = time.monotonic() + GRACE
    sign = signal.SIGTERM
    while True:
        if process is not None:
            process.poll()
        reaped = process is not None and process.returncode is not None
        # A number that was given back may already be somebody else's.
        alive = [p for p in process_tree(pid) if _running(p) and not (reaped and p == pid)]
        if not alive:
            return
        if time.monotonic() >= deadline:
            sign = signal.SIGKILL
            if time.monotonic() >= deadline + GRACE:
                return  # it hangs in the kernel; the pre-flight and the labels will show it
        for p in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(p, sign)
        time.sleep(0.02)


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot: with the id it names one process for sure."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class BesideProbes:
    """Runs the probes that are commands while the arm runs, each until it holds."""

    INTERVAL, TIMEOUT = 0.3, 10.0

    def __init__(self, probes: Sequence[Probe], pid: int) -> None:
        self._probes, self._pid = list(probes), pid
        self._found: dict[int, ProbeResult] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="probes", daemon=True)

    def __enter__(self) -> BesideProbes:
        if self._probes:
            self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop.set()
        if self._probes:
            self._thread.join()

    @property
    def results(self) -> list[ProbeResult]:
        """One a probe; one that never ran beside a living arm did not hold."""
        return [
            self._found.get(i)
            or ProbeResult(probe=p.where, expected=p.expected, found="never ran", held=False)
            for i, p in enumerate(self._probes)
        ]

    def _work(self) -> None:
        open_ones = dict(enumerate(self._probes))
        while open_ones and not self._stop.is_set():
            for index, probe in list(open_ones.items()):
                found = self._ask(probe)
                if found is not None:
                    self._found[index] = found
                    if found.held:
                        del open_ones[index]
            self._stop.wait(self.INTERVAL)

    def _ask(self, probe: Probe) -> ProbeResult | None:
        assert probe.command is not None
        try:
            done = subprocess.run(
                [word.replace("{pid}", str(self._pid)) for word in probe.command],
                env={**os.environ, "ARM_PID": str(self._pid)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.TIMEOUT,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            found = f"nothing: {error}"
            return ProbeResult(probe=probe.where, expected=probe.expected, found=found, held=False)
        # An answer that came after the arm's end may be about something else.
        if self._stop.is_set():
            return None
        return hold(probe, Output(done.stdout.decode(errors="replace"), ""))
