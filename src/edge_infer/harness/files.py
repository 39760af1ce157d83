"""Small things that every writer of artifacts and reports needs."""

from __future__ import annotations

import os
from pathlib import Path

from edge_infer.errors import StorageError, UnsupportedError


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and waits for the disk. Raises StorageError."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise StorageError(
            f"{path} could not be written: {error.strerror}.",
            remedy="Name a file in a folder that exists and has space.",
        ) from None


def missing_package(name: str) -> UnsupportedError:
    """What a command says where a package of the extra is not installed."""
    return UnsupportedError(
        f"The package {name} is not installed.",
        remedy="Install the extra: pip install 'edge-infer[bench]'.",
    )
