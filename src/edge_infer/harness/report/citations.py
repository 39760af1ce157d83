"""Pages against artifacts: every number of a page must stand in an artifact that its section cites.

A section (from one heading to the next) cites by naming files, ``NAME.json``. A number with a unit
must round from a value of that unit; one without a unit from any number. What stands in code spans,
headings and the targets of links is no claim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge_infer.harness.report.collect import read_artifact
from edge_infer.harness.report.markdown import BLOCK, PLOT

# (unit of a page, kind of value, size of one)
UNITS: dict[str, tuple[str, float]] = {
    "tok/s": ("tok/s", 1.0),
    "GB/s": ("GB/s", 1.0),
    "ms": ("s", 1e-3),
    "s": ("s", 1.0),
    "kB": ("bytes", 1e3),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "MiB": ("bytes", float(1 << 20)),
    "GiB": ("bytes", float(1 << 30)),
    "bytes": ("bytes", 1.0),
    "%": ("share", 0.01),
}
_UNIT = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True))
_NUMBER = re.compile(
    rf"(?<![\w.,/-])(?P<number>\d[\d,]*(?:\.\d+)?)"
    rf"(?:[ \u00a0]?(?P<unit>{_UNIT})(?![\w/])|(?![.,]?\w))"
    # "80.1 to 118.0 tok/s" has its unit once.
    rf"(?=(?: (?:to|and) [\d.,]+[ \u00a0]?(?P<later>{_UNIT})(?![\w/]))?)"
)
_NO_CLAIM = re.compile(
    r"```.*?```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)|https?://\S+|^\s*\d+\. ",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"[\w.+-]+\.json")


@dataclass(frozen=True)
class Claim:
    """A number on a page that no cited artifact has."""

    line: int
    text: str
    cited: tuple[str, ...]

    def __str__(self) -> str:
        cited = ", ".join(self.cited) or "nothing"
        return f"line {self.line}: {self.text} is not in what its section cites ({cited})"


def _leaves(value: Any, key: str = "", unit: str | None = None) -> Iterator[tuple[str, float]]:
    """(kind, value) of every number of an artifact; lengths of lists count, texts give theirs."""
    if isinstance(value, dict):
        own = value.get("unit")
        for name, item in value.items():
            yield from _leaves(item, name, own if isinstance(own, str) else None)
    elif isinstance(value, list):
        yield "", float(len(value))
        for item in value:
            yield from _leaves(item, key, unit)
    elif isinstance(value, str):
        for found in re.findall(r"\d+(?:\.\d+)?", value):
            yield "", float(found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield _kind(key, value, unit), float(value)


def _kind(key: str, value: float, unit: str | None) -> str:
    if unit is not None:
        return "share" if unit == "ratio" else unit
    if "seconds" in key:
        return "s"
    return "share" if isinstance(value, float) and 0 <= value <= 1 else "bytes"


class Pool:
    """The numbers of the cited artifacts, by kind."""

    def __init__(self, documents: list[Any]) -> None:
        self._values: dict[str, list[float]] = {}
        for document in documents:
            for kind, value in _leaves(document):
                self._values.setdefault(kind, []).append(value)

    def has(self, number: str, unit: str | None) -> bool:
        """Whether some value, rounded as ``number`` is, is ``number``."""
        text = number.replace(",", "")
        places = len(text.partition(".")[2])
        wanted = float(text)
        if unit is None:
            candidates, size = [v for vs in self._values.values() for v in vs], 1.0
        else:
            kind, size = UNITS[unit]
            candidates = self._values.get(kind, [])
        # Half a unit of the last digit, and the noise of dividing.
        half = 0.5 * 10.0**-places * (1 + 1e-9)
        return any(abs(v / size - wanted) <= half for v in candidates)


def _blank(match: re.Match[str]) -> str:
    return "".join(c if c == "\n" else " " for c in match.group())


def sections(text: str) -> Iterator[tuple[int, str]]:
    """(first line, text) from each heading to the next; headings are no claims."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r"#{1,6} ", line)]
    bounds = [0, *starts, len(lines)]
    for begin, end in pairwise(bounds):
        body = lines[begin:end]
        if begin in starts:
            body = ["", *body[1:]]
        if body:
            yield begin + 1, "\n".join(body)


def unsupported(text: str, folder: Path) -> list[Claim]:
    """Numbers of a page that the artifacts cited beside them do not have.

    Generated parts count as their section's citation; whether they are up to date is another
    question (:func:`edge_infer.harness.report.markdown.update`). Raises ConfigError and
    StorageError for a cited artifact that is not there or is none.
    """
    found = []
    for first, section in sections(text):
        cited = tuple(dict.fromkeys(_FILE.findall(section)))
        pool = Pool([read_artifact(folder / name).artifact.model_dump() for name in cited])
        prose = _NO_CLAIM.sub(_blank, PLOT.sub(_blank, BLOCK.sub(_blank, section)))
        for number, line in enumerate(prose.splitlines(), first):
            for match in _NUMBER.finditer(line):
                unit = match.group("unit") or match.group("later")
                if not pool.has(match.group("number"), unit):
                    found.append(Claim(number, match.group().strip(), cited))
    return found
