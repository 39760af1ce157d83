"""Reading values out of what a command wrote, and holding probes against them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from edge_infer.errors import ExecutionError
from edge_infer.harness.grid.spec import Probe, Reading
from edge_infer.harness.provenance import portable_text
from edge_infer.harness.record import Scalar
from edge_infer.harness.schema_grid import ProbeResult


@dataclass(frozen=True)
class Output:
    """What a command wrote."""

    stdout: str
    stderr: str

    def document(self) -> Any:
        """The JSON document on stdout. Raises ExecutionError where there is none."""
        try:
            return json.loads(self.stdout)
        except (ValueError, RecursionError):
            head = portable_text(self.stdout.strip()[:200])[:60]
            raise ExecutionError(
                f"stdout is no JSON document; it starts with {head!r}.",
                remedy="Give the command its --json option, or read the value with a regex.",
            ) from None


def read_value(reading: Reading, output: Output) -> Scalar:
    """The value at that place. Raises ExecutionError where there is none, or no single one."""
    if reading.json_path is not None:
        import jmespath

        try:
            value = jmespath.search(reading.json_path, output.document())
        except jmespath.exceptions.JMESPathError as error:
            raise ExecutionError(f"json {reading.json_path}: {error}.") from None
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None or isinstance(value, dict | list):
            raise ExecutionError(f"json {reading.json_path} gives {_short(value)}, not one value.")
        return value
    assert reading.regex is not None
    text = output.stdout if reading.stream == "stdout" else output.stderr
    matches = list(re.finditer(reading.regex, text, re.MULTILINE))
    if not matches:
        raise ExecutionError(f"{reading.where} matches nothing.")
    last = matches[-1]
    return last.group(1) if last.re.groups else last.group(0)


def read_number(reading: Reading, output: Output) -> float:
    """The value as a finite number. Raises ExecutionError where it is none."""
    value = read_value(reading, output)
    try:
        number = math.nan if isinstance(value, bool | None) else float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ExecutionError(f"{reading.where} gives {value!r}, not a finite number.")
    return number


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _equal(found: Scalar, wanted: Scalar) -> bool:
    """Equal in value and kind; a number read from text counts as that number."""
    if isinstance(wanted, bool) or isinstance(found, bool) or wanted is None:
        return found is wanted
    if isinstance(wanted, int | float):
        try:
            return float(found) == float(wanted)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False
    return found == wanted


def hold(probe: Probe, output: Output) -> ProbeResult:
    """Whether the probe's value in ``output`` is what it must be; a missing value is not."""
    where = probe.where if probe.command is None else f"{probe.command[0]}: {probe.where}"
    try:
        found = read_value(probe, output)
    except ExecutionError as error:
        missing = f"nothing: {error.message}"
        return ProbeResult(probe=where, expected=probe.expected, found=missing, held=False)
    if probe.matches is not None:
        held = re.search(probe.matches, str(found)) is not None
    else:
        held = _equal(found, probe.equals)
    return ProbeResult(probe=where, expected=probe.expected, found=found, held=held)
