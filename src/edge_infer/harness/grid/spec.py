"""What a grid measures: arms, metrics, passes. Unknown fields are refused."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from edge_infer.harness.files import missing_package
from edge_infer.harness.grid.documents import expand, read_document
from edge_infer.harness.record import Scalar

MEMORY = ("peak_anonymous", "peak_file_backed", "peak_pss")
_MAPPED_COUNTED = re.compile(r"vm_?rss|ru_?maxrss|vm_?hwm", re.IGNORECASE)


class Part(BaseModel):
    """Base of every part of a spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _words(value: Any) -> Any:
    """A command as a list of words; a string is split as a shell would, without running one."""
    if isinstance(value, str):
        return shlex.split(value)
    if isinstance(value, list):
        return [str(v) if isinstance(v, int | float) and v is not True else v for v in value]
    return value


def _environment(value: Any) -> Any:
    """Numbers become text; true and false are refused, since programs disagree on their names."""
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, bool) or item is None:
                raise ValueError(f"{name}: write the value in quotes")
        return {str(k): str(v) for k, v in value.items()}
    return value


Command = Annotated[list[str], BeforeValidator(_words), Field(min_length=1)]


def _jmespath(expression: str | None) -> str | None:
    if expression is None:
        return None
    try:
        import jmespath
    except ImportError:
        raise missing_package("jmespath") from None
    try:
        jmespath.compile(expression)
    except jmespath.exceptions.JMESPathError as error:
        raise ValueError(f"{expression!r} is no JMESPath: {error}") from None
    return expression


def _pattern(expression: str | None) -> str | None:
    if expression is None:
        return None
    try:
        groups = re.compile(expression).groups
    except re.error as error:
        raise ValueError(f"{expression!r} is no regular expression: {error}") from None
    if groups > 1:
        raise ValueError(f"{expression!r} has {groups} groups; one holds the value")
    return expression


class Reading(Part):
    """Where a value stands in what a command writes: a JMESPath or a regular expression."""

    json_path: str | None = Field(default=None, alias="json")
    """Into the JSON document on stdout."""
    regex: str | None = None
    """Its group, or the whole match; the last match counts."""
    stream: Literal["stdout", "stderr"] = "stdout"

    _check_path = field_validator("json_path")(_jmespath)
    _check_regex = field_validator("regex")(_pattern)

    @property
    def where(self) -> str:
        """In words, for failures and artifacts."""
        return f"json {self.json_path}" if self.json_path else f"{self.stream} /{self.regex}/"


class Probe(Reading):
    """A value that the running engine reports, and what it must be.

    Without ``command`` it is read from what the arm wrote; with one, from that command, which is
    run beside the arm (``ARM_PID`` in its environment) until it holds or the arm ends.
    """

    command: Command | None = None
    equals: Scalar = None
    matches: str | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Probe:
        if (self.json_path is None) == (self.regex is None):
            raise ValueError("a probe reads one value: give json or regex")
        if ("equals" in self.model_fields_set) == (self.matches is not None):
            raise ValueError("a probe states what it must find: give equals or matches")
        if self.matches is not None:
            _pattern(self.matches)
        return self

    @property
    def expected(self) -> str:
        """In words."""
        return f"/{self.matches}/" if self.matches is not None else repr(self.equals)


class Expectation(Part):
    """What the checkpoint must be, tensor by tensor; anything else voids the arm."""

    formats: dict[str, str] = {}
    """Shell patterns of tensor names to shell patterns of formats, as `edge-infer inspect` says."""
    sha256: dict[str, str] = {}
    """File names to digests."""

    def violations(self, tensors: dict[str, str], digests: dict[str, str | None]) -> list[str]:
        """What the checkpoint has against this, in words; empty where it is as expected."""
        found = []
        for pattern, wanted in self.formats.items():
            names = fnmatch.filter(tensors, pattern)
            if not names:
                found.append(f"no tensor is called {pattern}")
            wrong = [n for n in names if not fnmatch.fnmatchcase(tensors[n], wanted)]
            if wrong:
                more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
                found.append(f"{wrong[0]}{more}: {tensors[wrong[0]]}, expected {wanted}")
        for name, digest in self.sha256.items():
            if digests.get(name) != digest.lower():
                found.append(f"{name} has sha256 {digests.get(name)}, expected {digest}")
        return found


class ArmSpec(Part):
    """One setting: a command and its environment, with the proof that the setting is on."""

    name: str = Field(min_length=1, max_length=100)
    command: Command
    env: Annotated[dict[str, str], BeforeValidator(_environment)] = {}
    model: str | None = None
    """Folder or file whose formats and hashes go into the artifact."""
    expect: Expectation | None = None
    probes: list[Probe] = []
    no_probe: str = ""
    """Why there is nothing to prove, for an arm without probes."""
    version: Command | None = None
    """Prints the program's version in its first line."""

    @model_validator(mode="after")
    def _is_proved(self) -> ArmSpec:
        if bool(self.probes) == bool(self.no_probe):
            raise ValueError(
                f"arm {self.name!r} needs either probes, values that prove its setting is on, "
                "or no_probe with the reason why there is nothing to prove"
            )
        if self.expect is not None and self.model is None:
            raise ValueError(f"arm {self.name!r} expects something of a model, but names none")
        return self


class MetricSpec(Reading):
    """One quantity and how it is read; exactly one way."""

    name: str = Field(min_length=1, max_length=100)
    unit: str = ""
    better: Literal["higher", "lower"] = "lower"
    memory: Literal["peak_anonymous", "peak_file_backed", "peak_pss"] | None = None
    """Of the whole process tree. Resident memory is not offered: it counts mapped files."""
    instructions: Literal["perf", "callgrind"] | None = None
    """User-space instructions of the whole process tree."""
    wall: bool = False
    """Seconds from the start to the end of the command."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, value: Any) -> Any:
        if isinstance(value, dict):
            unit = "bytes" if value.get("memory") else "s" if value.get("wall") else None
            unit = "instructions" if value.get("instructions") else unit
            if unit is not None:
                given = value.get("unit", unit)
                if given != unit:
                    raise ValueError(f"{value.get('name')}: this is measured in {unit}")
                return {**value, "unit": unit}
            if not value.get("unit") or not value.get("better"):
                raise ValueError(f"metric {value.get('name')!r} needs its unit and what is better")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> MetricSpec:
        ways = [self.json_path, self.regex, self.memory, self.instructions, self.wall or None]
        if sum(w is not None for w in ways) != 1:
            raise ValueError(
                f"metric {self.name!r} is read in one way: "
                "json, regex, memory, instructions or wall"
            )
        read = f"{self.json_path or ''}{self.regex or ''}"
        if _MAPPED_COUNTED.search(read):
            raise ValueError(
                f"metric {self.name!r} reads {read!r}: resident memory counts mapped files, so it "
                f"is no measure of a saving; use memory: {', '.join(MEMORY)}"
            )
        return self


class PreflightSpec(Part):
    """How quiet the target CPUs must be before the grid starts."""

    seconds: float = Field(default=1.0, gt=0, le=60)
    busy: float = Field(default=0.1, ge=0, le=1)
    """Share of any one CPU's time in use above which the grid does not start."""
    steal: float = Field(default=0.05, ge=0, le=1)


class GridSpec(Part):
    """The document of ``edge-infer grid``."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")
    arms: list[ArmSpec] = Field(min_length=1)
    metrics: list[MetricSpec] = Field(min_length=1)
    baseline: str = ""
    """The arm that the others are compared with; the first one by default."""
    passes: int = Field(default=5, ge=1, le=1000)
    warmup: int = Field(default=1, ge=0, le=10)
    pin: list[Annotated[int, Field(ge=0)]] = []
    """Logical CPUs that every arm is confined to; empty: what this process may use."""
    timeout: float = Field(default=1800.0, gt=0)
    """Seconds that one run of one arm may take."""
    preflight: PreflightSpec = PreflightSpec()
    contention: float = Field(default=0.1, ge=0, le=1)
    """Share of the target CPUs' time, used by others or stolen, that makes a pass "contended"."""

    @model_validator(mode="after")
    def _fits_together(self) -> GridSpec:
        for what, names in (
            ("arms", [a.name for a in self.arms]),
            ("metrics", [m.name for m in self.metrics]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"two {what} share a name: {', '.join(names)}")
        if self.baseline and self.baseline not in [a.name for a in self.arms]:
            raise ValueError(f"the baseline {self.baseline!r} is no arm")
        counters = {m.instructions for m in self.metrics if m.instructions}
        if len(counters) > 1:
            raise ValueError("instructions are counted by perf or by callgrind, not by both")
        if "callgrind" in counters and any(not m.instructions for m in self.metrics):
            raise ValueError(
                "callgrind slows a program down about fifty times and holds memory of its own: "
                "give it a grid without other metrics"
            )
        return self

    @property
    def counter(self) -> Literal["perf", "callgrind"] | None:
        """What counts instructions, where a metric asks for them."""
        return next((m.instructions for m in self.metrics if m.instructions), None)

    @property
    def baseline_arm(self) -> str:
        return self.baseline or self.arms[0].name


def expanded(spec: GridSpec) -> GridSpec:
    """The spec with the variables of its commands, environments and models filled in."""

    def words(command: list[str] | None) -> list[str] | None:
        return None if command is None else [expand(word) for word in command]

    arms = [
        arm.model_copy(
            update={
                "command": words(arm.command),
                "version": words(arm.version),
                "env": {name: expand(value) for name, value in arm.env.items()},
                "model": None if arm.model is None else expand(arm.model),
                "probes": [p.model_copy(update={"command": words(p.command)}) for p in arm.probes],
            }
        )
        for arm in spec.arms
    ]
    return spec.model_copy(update={"arms": arms})


def read_spec(path: Path) -> GridSpec:
    """Reads and checks a spec, variables filled in. Raises ConfigError in words."""
    return expanded(read_document(path, GridSpec))
