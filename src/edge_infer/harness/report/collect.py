"""Reading artifacts, and withdrawing one without deleting it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from edge_infer.errors import ConfigError, StorageError
from edge_infer.harness.files import write_whole
from edge_infer.harness.schema import Artifact, Retraction


@dataclass(frozen=True)
class Loaded:
    """An artifact and the name of its file."""

    name: str
    artifact: Artifact


def read_artifact(path: Path) -> Loaded:
    """Reads one. Raises ConfigError for what is none, StorageError for what cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no artifact: it is no text.") from None
    try:
        return Loaded(path.name, Artifact.model_validate_json(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(p) for p in first["loc"])
        raise ConfigError(f"{path} is no artifact: {place}: {first['msg']}.") from None


def read_artifacts(paths: Iterable[Path]) -> list[Loaded]:
    """Reads files, and the ``*.json`` of folders; by name, each once.

    Raises ConfigError and StorageError as :func:`read_artifact`, and where there is nothing.
    """
    files: dict[Path, None] = {}
    for path in paths:
        found = sorted(path.glob("*.json")) if path.is_dir() else [path]
        files.update(dict.fromkeys(f.resolve() for f in found))
    if not files:
        raise ConfigError("There are no artifacts there.", remedy="Name files or a folder.")
    return [read_artifact(file) for file in files]


def current(loaded: Sequence[Loaded]) -> list[Loaded]:
    """Those that were not retracted."""
    return [one for one in loaded if one.artifact.retracted is None]


def retract(path: Path, reason: str, successor: str | None = None) -> None:
    """Marks an artifact as retracted; everything else in it stays as it was.

    Raises ConfigError where it is retracted already, or the successor is no current artifact
    beside it.
    """
    found = read_artifact(path).artifact
    if found.retracted is not None:
        raise ConfigError(f"{path.name} is retracted already: {found.retracted.reason}")
    if not reason.strip():
        raise ConfigError("A retraction needs its reason.")
    if successor is not None:
        beside = path.with_name(successor)
        if beside == path or read_artifact(beside).artifact.retracted is not None:
            raise ConfigError(f"{successor} cannot succeed {path.name}: it does not count itself.")
    mark = Retraction(reason=reason.strip(), successor=successor)
    document = {**json.loads(path.read_text(encoding="utf-8")), "retracted": mark.model_dump()}
    text = json.dumps(document, indent=2, ensure_ascii=False)
    write_whole(path, text.encode() + b"\n")
