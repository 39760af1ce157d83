"""A checkpoint's tensors as the native code sees them: mapped files, matrices, vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_infer import _native
from edge_infer.checkpoint.reader import Checkpoint
from edge_infer.checkpoint.safetensors_io import TensorInfo
from edge_infer.errors import CheckpointError, UnsupportedError
from edge_infer.models.values import Linear

FLOAT_DTYPES = ("F32", "F16", "BF16")


class Weights:
    """The weight files of a checkpoint in memory.

    ``mode``: mapped, resident or locked. Lookups raise CheckpointError with the tensor's name
    when it is missing or has another shape than the architecture needs.
    """

    def __init__(self, checkpoint: Checkpoint, mode: str = "mapped") -> None:
        self.checkpoint = checkpoint
        for file in checkpoint.files:
            try:
                str(file).encode()
            except UnicodeEncodeError:
                raise UnsupportedError(
                    f"The path {str(file)!a} is not UTF-8.", remedy="Rename the folder."
                ) from None
        self._by_file: dict[Path, Any] = {
            file: _native.WeightMap(str(file), mode) for file in checkpoint.files
        }

    @property
    def maps(self) -> list[Any]:
        return list(self._by_file.values())

    def has(self, module: str) -> bool:
        """Whether there is a matrix of this module, packed or float."""
        return module in self.checkpoint.matrices or f"{module}.weight" in self.checkpoint.tensors

    def linear(self, module: str, n: int, k: int, *, bias: bool | None = None) -> Linear:
        """The matrix [n, k] of a module and its bias. ``bias`` None: used when present."""
        weight = self._matrix(module, n, k)
        name = f"{module}.bias"
        if bias is False or (bias is None and name not in self.checkpoint.tensors):
            return Linear(weight)
        return Linear(weight, self.vector(name, n))

    def vector(self, name: str, size: int) -> Any:
        """A float tensor as f32 [size]."""
        info = self._tensor(name)
        if info.shape != (size,):
            raise CheckpointError(f"Tensor {name!r} has shape {list(info.shape)}, not [{size}].")
        return self._by_file[info.file].vector(info.offset, size, info.dtype)

    def _matrix(self, module: str, n: int, k: int) -> Any:
        packed = self.checkpoint.matrices.get(module)
        if packed is None:
            info = self._tensor(f"{module}.weight")
            if info.shape != (n, k):
                raise CheckpointError(
                    f"Tensor {info.name!r} has shape {list(info.shape)}, not [{n}, {k}]."
                )
            return self._by_file[info.file].matrix(info.offset, n, k, info.dtype)
        if (packed.n, packed.k) != (n, k) or packed.experts is not None:
            raise CheckpointError(
                f"Module {module!r} has shape [{packed.n}, {packed.k}], not [{n}, {k}]."
            )
        parts = (packed.codes, packed.scales, packed.minimums)
        if len({p.file for p in parts if p is not None}) != 1:
            raise CheckpointError(f"Module {module!r} is spread over several files.")
        return self._by_file[packed.codes.file].packed(
            packed.codes.offset,
            packed.scales.offset,
            packed.minimums.offset if packed.minimums is not None else None,
            n,
            k,
            packed.group_size,
            packed.bits,
        )

    def _tensor(self, name: str) -> TensorInfo:
        info = self.checkpoint.tensors.get(name)
        if info is None:
            raise CheckpointError(
                f"Tensor {name!r} is missing.",
                remedy="The checkpoint is incomplete, or config.json names another architecture.",
            )
        if info.dtype not in FLOAT_DTYPES:
            raise CheckpointError(f"Tensor {name!r} has dtype {info.dtype}, not a float type.")
        return info
