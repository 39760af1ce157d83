"""What the measuring commands share: progress on stderr, and the artifact's file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from edge_infer.harness.schema import Artifact


def say(text: str) -> None:
    """A line about what goes on."""
    print(f"... {text}", file=sys.stderr)


def new_file(path: Path | None) -> Path | None:
    """An option's callback: a file that is there already is refused before anything is measured."""
    if path is not None and path.exists():
        raise typer.BadParameter(f"{path} exists already; artifacts are never overwritten.")
    return path


def write_artifact(artifact: Artifact, path: Path) -> None:
    """Writes one JSON document. Raises StorageError."""
    from edge_infer.harness.files import write_whole

    write_whole(path, artifact.model_dump_json(indent=2).encode() + b"\n")
