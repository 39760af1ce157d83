"""What every command that makes a model folder shares: the checks before, and the writing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt

from edge_infer.checkpoint.safetensors_io import (
    SafetensorsWriter,
    TensorSpec,
    free_bytes,
    plan_file,
    storage_error,
)
from edge_infer.checkpoint.staging import staged_folder
from edge_infer.errors import StorageError

Progress = Callable[[int, int], None]
Pieces = Callable[[], Iterator[npt.NDArray[Any]]]
_EXTRAS_ALLOWANCE = 64 << 20  # tokenizer and small files, for the check of free space


def require_empty(destination: Path) -> None:
    """StorageError unless the destination is absent or an empty folder."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise StorageError(
            f"{destination} exists and is not an empty folder.",
            remedy="Choose another destination, or remove it.",
        )


def require_space(destination: Path, weights: int) -> None:
    """StorageError with both numbers when `weights` bytes cannot fit."""
    parent = destination.absolute().parent
    while not parent.exists():
        parent = parent.parent
    try:
        free = free_bytes(parent)
    except OSError as e:
        raise storage_error(e, destination) from None
    needed = weights + _EXTRAS_ALLOWANCE
    if free < needed:
        raise StorageError(
            f"no space for {destination}: {needed} bytes are needed and {free} are free.",
            remedy="Free some space or choose another destination.",
        )


def write_json(path: Path, value: Any) -> None:
    """Writes and syncs one JSON document."""
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())


def write_plain_folder(
    destination: Path,
    tensors: list[tuple[TensorSpec, Pieces]],
    *,
    extras: Callable[[Path], list[str]],
    documents: Callable[[list[str]], dict[str, Any]],
    progress: Progress | None = None,
) -> Path:
    """Writes an unquantized Hugging Face folder, streaming: complete or not at all.

    ``tensors``: what is written, and for each a function that yields its values in order in pieces
    of a few MB, already in the stored type. ``extras`` puts the tokenizer and the like into the
    folder and names what it wrote; ``documents`` gives the JSON files by name, from those names.
    ``progress(done, total)`` counts bytes. Raises StorageError.
    """
    require_empty(destination)
    specs = [spec for spec, _ in tensors]
    size = plan_file(specs, {"format": "pt"})[2]
    require_space(destination, size)
    done, total = 0, sum(spec.nbytes for spec in specs)
    with staged_folder(destination) as folder:
        try:
            names = extras(folder)
            with SafetensorsWriter(folder / "model.safetensors", specs, {"format": "pt"}) as writer:
                for spec, pieces in tensors:
                    at = 0
                    for piece in pieces():
                        writer.write(spec.name, at, piece)
                        at += piece.nbytes
                        if progress:
                            progress(done + at, total)
                    done += spec.nbytes
            for name, value in documents(sorted(names)).items():
                write_json(folder / name, value)
        except OSError as e:
            raise storage_error(e, folder, size) from None
    return destination
