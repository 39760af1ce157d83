"""Reports as Markdown, and the generated parts of hand-written pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edge_infer.errors import ConfigError
from edge_infer.harness.report.collect import Loaded, current, read_artifact, read_artifacts
from edge_infer.harness.report.peers_plot import peers_table
from edge_infer.harness.report.tables import ALL, Table, facts, tables
from edge_infer.harness.schema import Artifact

BLOCK = re.compile(
    r"^<!-- report: (?P<file>\S+\.json)(?P<names>[ \w]*) -->\n(?P<body>.*?)^<!-- end report -->$",
    re.MULTILINE | re.DOTALL,
)

PLOT = re.compile(
    r"^<!-- plot: (?P<image>[\w.-]+\.png)(?P<files>(?: \S+\.json)+) -->\n"
    r"(?P<body>.*?)^<!-- end plot -->$",
    re.MULTILINE | re.DOTALL,
)


def cell(text: str) -> str:
    """Text that is one cell of a table, whatever it holds."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def table_text(table: Table) -> str:
    """A table and its notes."""
    lines = ["| " + " | ".join(map(cell, table.columns)) + " |"]
    lines.append("|" + "---|" * len(table.columns))
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in table.rows]
    lines += [f"\n{cell(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def artifact_text(artifact: Artifact, names: Sequence[str] = tuple(ALL)) -> str:
    """The named tables of one artifact."""
    return "\n".join(table_text(table) for table in tables(artifact, names))


def report_text(loaded: Sequence[Loaded]) -> str:
    """All artifacts: those that count in full, the retracted ones by name and reason."""
    parts = ["# Results\n"]
    for one in loaded:
        if one.artifact.retracted is not None:
            continue
        lines = [f"## {one.name}\n", f"{one.artifact.kind}\n"]
        lines += [f"- {name}: {cell(text)}" for name, text in facts(one.artifact)]
        parts.append("\n".join(lines) + "\n\n" + artifact_text(one.artifact))
    gone = [(one.name, one.artifact.retracted) for one in loaded if one.artifact.retracted]
    if gone:
        lines = ["## Retracted\n"]
        for name, mark in gone:
            instead = "" if mark.successor is None else f" Replaced by {mark.successor}."
            lines.append(f"- {name}: {cell(mark.reason)}{instead}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _block(match: re.Match[str], folder: Path) -> str:
    name = match.group("file")
    names = match.group("names").split() or list(ALL)
    unknown = [n for n in names if n not in ALL]
    if unknown:
        raise ConfigError(f"{name}: there is no table {unknown[0]!r}; there are {', '.join(ALL)}.")
    found = read_artifact(folder / name).artifact
    if found.retracted is not None:
        raise ConfigError(
            f"{name} is retracted: {found.retracted.reason}",
            remedy=f"Cite {found.retracted.successor or 'another artifact'}.",
        )
    head = f"<!-- report: {name}{match.group('names').rstrip()} -->\n"
    return head + "\n" + artifact_text(found, names) + "\n<!-- end report -->"


def update(text: str, folder: Path) -> str:
    """A page with its generated parts made again from the artifacts of ``folder``.

    A part stands between ``<!-- report: FILE.json [TABLE ...] -->`` and ``<!-- end report -->``, or
    between ``<!-- plot: IMAGE.png FILE.json ... -->`` and ``<!-- end plot -->``, where files may be
    patterns and :func:`page_plots` makes the image. Raises ConfigError for an artifact that is not
    there, does not count, or has no such table.
    """
    render: Callable[[re.Match[str]], str] = lambda match: _block(match, folder)  # noqa: E731
    draw: Callable[[re.Match[str]], str] = lambda match: _plot(match, folder)  # noqa: E731
    return PLOT.sub(draw, BLOCK.sub(render, text))


def _plotted(match: re.Match[str], folder: Path) -> list[Loaded]:
    """The comparisons of one plot, in the order of its patterns."""
    files: dict[Path, None] = {}
    for pattern in match.group("files").split():
        found = sorted(folder.glob(pattern))
        if not found:
            raise ConfigError(f"{match.group('image')}: there is no artifact {pattern}.")
        files.update(dict.fromkeys(found))
    return current(read_artifacts(files))


def _plot(match: re.Match[str], folder: Path) -> str:
    image = match.group("image")
    table = table_text(peers_table(_plotted(match, folder)))
    head = f"<!-- plot: {image}{match.group('files')} -->\n"
    return f"{head}\n![{image}]({image})\n\n{table}\n<!-- end plot -->"


def page_plots(text: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    """(file name, PNG) of each plot of a page. Raises as :func:`update`, and UnsupportedError
    without matplotlib."""
    from edge_infer.harness.report.peers_plot import peers_plot

    for match in PLOT.finditer(text):
        yield match.group("image"), peers_plot(_plotted(match, folder))
