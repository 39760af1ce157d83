"""Which model a measurement was made on: files, digests, formats and bits of its tensors."""

from __future__ import annotations

from pathlib import Path

from edge_infer.harness.provenance import file_identity
from edge_infer.harness.schema import CheckpointIdentity, TensorGroup


def checkpoint_identity(path: Path) -> CheckpointIdentity:
    """Identity of a folder or GGUF file, with the formats of its tensor groups."""
    from edge_infer.checkpoint.inspect import inspect

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
        }
    )
