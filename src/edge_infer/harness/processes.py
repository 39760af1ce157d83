"""Runs one arm of a benchmark as its own process: confined to CPUs, watched, and ended for sure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edge_infer.errors import BY_CODE, EdgeInferError, ExecutionError
from edge_infer.harness.memory import PeakSampler, process_tree
from edge_infer.harness.schema import MemoryReport


@contextmanager
def confined(cpus: Sequence[int]) -> Iterator[None]:
    """Processes started inside inherit this CPU mask; the caller gets its own back."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def error_from(document: dict[str, str]) -> EdgeInferError:
    """The error that a child reported, of the same class."""
    known = {cls.__name__: cls for cls in BY_CODE.values()}
    cls = known.get(document["class"], EdgeInferError)
    return cls(document["message"], remedy=document["remedy"], code=document["code"])


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a child that did not end by itself."""
    for stop in (process.terminate, process.kill):
        if process.poll() is not None:
            return
        stop()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue


def _end_tree(process: subprocess.Popen[str]) -> None:
    """Ends a program that did not end by itself, with all that it has started: vLLM's workers
    would outlive it for half a minute, beside the next measurement."""
    if process.poll() is not None:
        return
    handles = []
    for pid in process_tree(process.pid)[1:]:
        with suppress(OSError):  # gone already
            handles.append(os.pidfd_open(pid))
    _end(process)
    for handle in handles:
        with suppress(OSError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def _died(what: str, process: subprocess.Popen[str], stderr: str) -> ExecutionError:
    status = process.returncode
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    tail = " | ".join(stderr.strip().splitlines()[-5:])
    return ExecutionError(
        f"{what} ended with {how}: {tail or 'no output'}", code="execution_failed"
    )


class Child:
    """A Python module of edge-infer that sends JSON lines and waits for an answer to each.

    The pause while the parent answers is when it reads the child's memory: nothing moves then.
    """

    def __init__(
        self,
        module: str,
        options: dict[str, Any],
        cpus: Sequence[int],
        timeout: float,
        interval: float = 0.02,
    ) -> None:
        """``interval``: seconds between two samples of the memory."""
        self._what = module
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.started = time.monotonic()
        with confined(cpus):
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
            )
        self.sampler = PeakSampler(self._process.pid, interval)
        self._timed_out = False
        self._timer = threading.Timer(timeout, self._expire)
        self._timeout = timeout

    def __enter__(self) -> Child:
        self.sampler.start()
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._timer.cancel()
        _end(self._process)
        self.sampler.stop()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # the other end has gone
                    continue

    def _expire(self) -> None:
        self._timed_out = True
        self._process.kill()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields each event; the child goes on when the next one is asked for.

        Raises the child's own EdgeInferError, or ExecutionError where it died or took too long.
        """
        assert self._process.stdout is not None and self._process.stdin is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "error":
                raise error_from(event)
            yield event
            if event["event"] == "end":
                return
            try:
                self._process.stdin.write("go\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                break
        self._process.wait()
        if self._timed_out:
            raise ExecutionError(
                f"{self._what} took longer than {self._timeout:g} s.",
                remedy="Use fewer tokens or repeats, or a longer --timeout.",
            )
        self._stderr.seek(0)
        raise _died(self._what, self._process, self._stderr.read())


def run_program(
    command: Sequence[str], cpus: Sequence[int], timeout: float
) -> tuple[str, MemoryReport]:
    """Runs a peer's program to its end and watches its memory.

    Returns its stdout and the peaks. Raises ExecutionError where it fails or takes too long.
    """
    name = Path(command[0]).name
    with confined(cpus), tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        try:
            with PeakSampler(process.pid) as sampler:
                out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ExecutionError(
                f"{name} took longer than {timeout:g} s.", remedy="Use a longer --timeout."
            ) from None
        finally:
            _end_tree(process)
        if process.returncode != 0:
            stderr.seek(0)
            raise _died(name, process, stderr.read())
    return out, sampler.report()
