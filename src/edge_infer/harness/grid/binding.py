"""What all passes of a grid must have in common: spec, source, programs, models, machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from pathlib import Path

from edge_infer import _native
from edge_infer.errors import CheckpointError, ConfigError
from edge_infer.harness.grid.spec import ArmSpec, GridSpec
from edge_infer.harness.identity import checkpoint_identity
from edge_infer.harness.provenance import sha256
from edge_infer.harness.record import Scalar
from edge_infer.harness.schema import CheckpointIdentity


def spec_hash(spec: GridSpec) -> str:
    """Hash of the spec as it is run: variables filled in, comments left out."""
    text = json.dumps(spec.model_dump(mode="json", by_alias=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def source_hash() -> str:
    """Hash over the code of this edge-infer, compiled module included.

    A commit alone does not tell apart two states of a tree with changes.
    """
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[2]
    files = [f for f in root.rglob("*.py") if f.is_file()] + [Path(_native.__file__)]
    for file in sorted(files):
        digest.update(f"{file.name}\0{sha256(file)}\n".encode())
    return digest.hexdigest()


def program_of(arm: ArmSpec) -> Path:
    """The file that the arm's command starts. Raises ConfigError where there is none."""
    search = arm.env.get("PATH", os.environ.get("PATH"))
    found = shutil.which(arm.command[0], path=search)
    if found is None:
        raise ConfigError(
            f"arm {arm.name!r}: {arm.command[0]} is not a program that can be run.",
            remedy="Write its path, or put its folder on PATH.",
        )
    return Path(found)


def model_identity(arm: ArmSpec) -> CheckpointIdentity | None:
    """Identity of the arm's model with the format of every tensor, or None where it names none."""
    if arm.model is None:
        return None
    path = Path(arm.model)
    if not path.exists():
        raise CheckpointError(f"arm {arm.name!r}: {path} does not exist.")
    return checkpoint_identity(path)


def binding(spec: GridSpec, models: dict[str, CheckpointIdentity | None]) -> dict[str, Scalar]:
    """Everything that a resumed grid must find unchanged, as text."""
    bound: dict[str, Scalar] = {
        "spec": spec_hash(spec),
        "edge_infer": source_hash(),
        "cpu": _native.cpu_brand(),
        "kernel": platform.release(),
        "machine": _machine(),
    }
    for arm in spec.arms:
        bound[f"program of {arm.name}"] = sha256(program_of(arm))
        identity = models[arm.name]
        if identity is not None:
            files = [f"{f.name} {f.bytes} {f.sha256}" for f in identity.files]
            bound[f"model of {arm.name}"] = hashlib.sha256("\n".join(files).encode()).hexdigest()
    return bound


def _machine() -> str:
    """A hash that tells machines apart and names none."""
    name = platform.node()
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            name = Path(path).read_text().strip() or name
            break
        except OSError:
            continue
    return hashlib.sha256(f"edge-infer {name} {os.cpu_count()}".encode()).hexdigest()[:16]
