"""Which model a measurement was made on: files, digests, formats and bits of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from edge_infer.errors import EdgeInferError
from edge_infer.harness.provenance import file_identity
from edge_infer.harness.schema import CheckpointIdentity, TensorFormat, TensorGroup


def checkpoint_identity(path: Path) -> CheckpointIdentity:
    """Identity of a folder or GGUF file, with the formats of its tensor groups."""
    from edge_infer.checkpoint.inspect import inspect, tensor_formats

    identity = file_identity(path)
    report = inspect(path)
    groups = [
        TensorGroup(
            group=group.role,
            format=group.format,
            tensors=group.tensors,
            parameters=group.parameters,
            bytes=group.bytes,
            bits_per_weight=group.bits_per_weight,
        )
        for group in report.groups
    ]
    return identity.model_copy(
        update={
            "architecture": report.architecture,
            "parameters": report.parameters,
            "groups": groups,
            "tensors": collapse(tensor_formats(path)),
        }
    )


_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def collapse(formats: dict[str, str]) -> list[TensorFormat]:
    """Per-tensor formats, those that differ in their layer alone in one entry.

    Every number of the name but the first (experts, blocks of a stage) stays as it is.
    """
    found: dict[tuple[str, str], list[int]] = {}
    single: list[TensorFormat] = []
    for name, form in formats.items():
        layer = _LAYER.search(name)
        if layer is None:
            single.append(TensorFormat(name=name, format=form, tensors=1))
        else:
            pattern = f"{name[: layer.start()]}*{name[layer.end() :]}"
            found.setdefault((pattern, form), []).append(int(layer.group()))
    return single + [
        TensorFormat(name=name, layers=_ranges(layers), format=form, tensors=len(layers))
        for (name, form), layers in found.items()
    ]


def _ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as "0-3,5"."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def peer_identity(path: Path) -> CheckpointIdentity:
    """Identity of a peer's model: only its files where the format is the peer's own."""
    try:
        return checkpoint_identity(path)
    except EdgeInferError:
        return file_identity(path)
