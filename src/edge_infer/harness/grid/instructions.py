"""User-space instructions of a command, counted by perf or by callgrind."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from edge_infer.errors import ExecutionError

Counter = Literal["perf", "callgrind"]


def unavailable(counter: Counter) -> str | None:
    """Why the counter does not work here, or None."""
    program = "perf" if counter == "perf" else "valgrind"
    if shutil.which(program) is None:
        return f"{program} is not installed"
    if counter == "callgrind":
        return None
    # Installed is not enough: virtual machines often have no counters.
    try:
        tried = subprocess.run(
            ["perf", "stat", "-x,", "-e", "instructions:u", "true"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"perf stat does not run: {error}"
    if tried.returncode != 0:
        return f"perf stat fails: {' '.join(tried.stderr.split())[:200]}"
    try:
        parse_perf(tried.stderr)
    except ExecutionError as error:
        return error.message
    return None


def wrapped(counter: Counter, command: Sequence[str], folder: Path) -> list[str]:
    """The command that runs ``command`` and leaves its counts in ``folder``."""
    if counter == "perf":
        return ["perf", "stat", "-x,", "-e", "instructions:u", "-o", str(folder / "perf"), *command]
    # One file a process: %p is its id.
    out = f"--callgrind-out-file={folder}/callgrind.%p"
    return ["valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes", out, *command]


def parse_perf(text: str) -> float:
    """The count in what ``perf stat -x,`` writes. Raises ExecutionError where there is none."""
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2].startswith("instructions"):
            if fields[0].isdigit():
                return float(fields[0])
            raise ExecutionError(f"perf counts no instructions on this machine: {fields[0]}.")
    raise ExecutionError("perf stat wrote no count of instructions.")


def counted(counter: Counter, folder: Path) -> float:
    """Instructions of the whole tree. Raises ExecutionError where none were counted."""
    if counter == "perf":
        try:
            return parse_perf((folder / "perf").read_text())
        except OSError:
            raise ExecutionError("perf stat wrote nothing.") from None
    totals = []
    for file in folder.glob("callgrind.*"):
        found = re.findall(r"^(?:totals|summary): (\d+)", file.read_text(errors="replace"), re.M)
        totals += [float(found[-1])] if found else []
    if not totals:
        raise ExecutionError("callgrind wrote no count of instructions.")
    return sum(totals)
