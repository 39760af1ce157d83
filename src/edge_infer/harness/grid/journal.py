"""The state of a running grid on disk: one JSON line a step, on the disk before the next step.

A killed grid leaves its journal behind; a resumed one reads it, checks that nothing that could
change results has changed, and goes on with the first pass that is missing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import ValidationError

from edge_infer.errors import ConfigError, EdgeInferError, StorageError
from edge_infer.harness.record import Failure, Record, Scalar
from edge_infer.harness.schema import CheckpointIdentity, EngineBuild, MemoryReport, Provenance
from edge_infer.harness.schema_grid import GridPass, GridSession


class Engine(Record):
    """What the arm's program said about itself, where it writes an artifact of ours."""

    build: EngineBuild
    threads: int | None
    isa: str | None = None
    settings: dict[str, Scalar] = {}
    checkpoint: CheckpointIdentity | None = None


class Header(Record):
    """The first line: what every session must have in common."""

    type: Literal["header"] = "header"
    started_at: str
    binding: dict[str, Scalar]
    provenance: Provenance
    failures: list[Failure] = []


class Session(Record):
    """A start of the grid."""

    type: Literal["session"] = "session"
    session: GridSession


class Begin(Record):
    """A run has started; without the pass that follows it, the run was cut short."""

    type: Literal["begin"] = "begin"
    arm: str
    pid: int
    start_ticks: int


class Void(Record):
    """An arm that is out, with the reason."""

    type: Literal["void"] = "void"
    arm: str
    reason: str


class Done(Record):
    """A finished run."""

    type: Literal["pass"] = "pass"
    run: GridPass
    memory: MemoryReport | None = None
    engine: Engine | None = None


Line = Header | Session | Begin | Void | Done
_TYPES: dict[str, type[Line]] = {
    "header": Header,
    "session": Session,
    "begin": Begin,
    "void": Void,
    "pass": Done,
}


class Journal:
    """An open journal, locked against a second grid that would write the same."""

    def __init__(self, path: Path, file: IO[bytes], lines: list[Line]) -> None:
        self.path, self._file, self.lines = path, file, lines

    @classmethod
    def create(cls, path: Path, header: Header) -> Journal:
        """A new journal. Raises ConfigError where one is left from before."""
        try:
            file = path.open("xb+")
        except FileExistsError:
            raise _left(path) from None
        except OSError as error:
            raise StorageError(f"{path} could not be made: {error.strerror}.") from None
        journal = cls(path, file, [])
        journal._lock()
        journal.write(header)
        return journal

    @staticmethod
    def refuse_left(path: Path) -> None:
        """Raises ConfigError where a journal is left from before."""
        if path.exists():
            raise _left(path)

    @classmethod
    def resume(cls, path: Path, binding: Mapping[str, Scalar]) -> Journal:
        """Opens a journal to go on with it.

        A last line that the kill cut in two is dropped. Raises ConfigError where there is no
        journal, or what it is bound to differs from ``binding``; StorageError where it is damaged.
        """
        try:
            file = path.open("rb+")
        except FileNotFoundError:
            raise ConfigError(
                f"There is no journal {path} to resume.", remedy="Start without --resume."
            ) from None
        journal = cls(path, file, [])
        journal._lock()
        try:
            journal._read(binding)
        except EdgeInferError:
            journal.close()
            raise
        return journal

    def _read(self, binding: Mapping[str, Scalar]) -> None:
        """The rest of :meth:`resume`."""
        whole = 0
        for number, raw in enumerate(self._file.read().splitlines(keepends=True), 1):
            if not raw.endswith(b"\n"):
                break
            self.lines.append(_parse(raw, self.path, number))
            whole += len(raw)
        self._file.truncate(whole)
        self._file.seek(whole)
        if not self.lines or not isinstance(self.lines[0], Header):
            raise StorageError(f"{self.path} has no header.", remedy="Remove it and start again.")
        old = self.header.binding
        changed = [k for k in {**old, **binding} if old.get(k) != binding.get(k)]
        if changed:
            words = "; ".join(f"{k}: {old.get(k)}, now {binding.get(k)}" for k in changed)
            raise ConfigError(
                f"Passes of before and after would not be comparable ({words}).",
                remedy=f"Bring back what was, or remove {self.path} and start again.",
            )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(
                f"Another grid is writing {self.path}.", remedy="Wait for it or end it."
            ) from None

    @property
    def header(self) -> Header:
        header = self.lines[0]
        assert isinstance(header, Header)
        return header

    @property
    def sessions(self) -> list[GridSession]:
        return [line.session for line in self.lines if isinstance(line, Session)]

    @property
    def done(self) -> list[Done]:
        return [line for line in self.lines if isinstance(line, Done)]

    @property
    def void(self) -> dict[str, str]:
        """Arms that are out, with the reason."""
        return {line.arm: line.reason for line in self.lines if isinstance(line, Void)}

    @property
    def cut_short(self) -> Begin | None:
        """The run that had begun when the grid was killed."""
        last = next((x for x in reversed(self.lines) if isinstance(x, Begin | Done)), None)
        return last if isinstance(last, Begin) else None

    def has(self, arm: str, index: int, warmup: bool) -> bool:
        """Whether that run is finished."""
        return any(
            (d.run.arm, d.run.index, d.run.warmup) == (arm, index, warmup) for d in self.done
        )

    def write(self, line: Line) -> None:
        """Appends a line and waits until the disk has it. Raises StorageError where it cannot."""
        try:
            self._file.write(line.model_dump_json().encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(
                f"{self.path} could not be written: {error.strerror}.",
                remedy="Make space, then go on with --resume.",
            ) from None
        self.lines.append(line)

    def close(self) -> None:
        """Releases the lock; the file stays."""
        self._file.close()

    def remove(self) -> None:
        """After the artifact is on the disk: everything in here is in there."""
        self.path.unlink()
        self._file.close()


def _left(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is left from a grid that did not end.",
        remedy="Give --resume to go on with it, or remove the file to start again.",
    )


def _parse(raw: bytes, path: Path, number: int) -> Line:
    try:
        document: Any = json.loads(raw)
        return _TYPES[document["type"]].model_validate(document)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise StorageError(
            f"Line {number} of {path} is damaged: {' '.join(str(error).split())[:200]}.",
            remedy="Remove the file and start again.",
        ) from None
