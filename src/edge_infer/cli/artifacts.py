"""What the measuring commands share: progress on stderr, and the artifact's file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edge_infer.errors import StorageError

if TYPE_CHECKING:
    from edge_infer.harness.schema import Artifact


def say(text: str) -> None:
    """A line about what goes on."""
    print(f"... {text}", file=sys.stderr)


def write_artifact(artifact: Artifact, path: Path) -> None:
    """Writes one JSON document. Raises StorageError."""
    try:
        path.write_text(artifact.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} could not be written: {error.strerror}.",
            remedy="Name a file in a folder that exists and has space.",
        ) from None
