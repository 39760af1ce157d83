"""What the converter reads from: tensors under Hugging Face names, row panel by row panel."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_infer.errors import CheckpointError

PANEL_VALUES = 1 << 21  # values of a row panel: what bounds the memory of a conversion


def panel_rows(k: int) -> int:
    """Rows of a panel of width k: a multiple of 16 holding about `PANEL_VALUES` values."""
    return max(16, PANEL_VALUES // max(k, 1) // 16 * 16)


class KeptForm(NamedTuple):
    """How the codes of a quantized source can be kept: bits, group size, with minimums or not."""

    bits: int
    group_size: int
    symmetric: bool
    exact: bool  # whether scales and minimums survive fp16 unchanged


class Codes(NamedTuple):
    """Codes of rows as the source has them: [rows, K], fp16 scales and minimums [rows, K/group]."""

    codes: npt.NDArray[Any]
    scales: npt.NDArray[np.float16]
    minimums: npt.NDArray[np.float16] | None


class SourceTensor(ABC):
    """A tensor seen as [rows, K] with every leading dimension in the rows."""

    name: str
    shape: tuple[int, ...]
    stored: str  # type in the source: F32, BF16, Q4_K, ...
    nbytes: int
    kept: KeptForm | None = None

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def k(self) -> int:
        return self.shape[-1] if self.shape else 1

    @abstractmethod
    def floats(self, start: int, stop: int) -> tuple[npt.NDArray[Any], str]:
        """Rows [start, stop) as float32 ("F32"), or as uint16 bits ("F16", "BF16")."""

    def codes(self, start: int, stop: int) -> Codes:
        """Rows [start, stop) in the form that `kept` describes."""
        raise NotImplementedError(f"{self.stored} has no codes")

    @property
    @abstractmethod
    def carried_dtype(self) -> str:
        """Safetensors dtype of the tensor when it is carried over unquantized."""

    @abstractmethod
    def carried(self) -> Iterator[npt.NDArray[Any]]:
        """The whole tensor as `carried_dtype`, in pieces of at most a few MB, in order."""


@dataclass
class Source:
    """A model to convert. ``notes`` tells the user what is worth knowing about it."""

    path: Path
    kind: str  # "huggingface" or "gguf"
    config: dict[str, Any]
    tensors: dict[str, SourceTensor]
    files: list[Path]
    copy_extras: Callable[[Path], list[str]]  # tokenizer and the like into a folder: names written
    notes: list[str] = field(default_factory=list)


class FileReader:
    """Positioned reads from one file; short reads are CheckpointErrors, never a signal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e.strerror or e}.") from None

    def read(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """`nbytes` bytes from `offset`."""
        out = np.empty(nbytes, np.uint8)
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fills `out`, which is contiguous, from `offset`."""
        view, done = memoryview(out.data).cast("B"), 0
        while done < len(view):
            try:
                count = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as e:
                raise CheckpointError(f"{self.path} cannot be read: {e.strerror or e}.") from None
            if count == 0:
                raise CheckpointError(
                    f"{self.path} ended at byte {offset + done}, inside a tensor: "
                    "it was truncated while it was read."
                )
            done += count

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


def to_f32(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Rows from `SourceTensor.floats` as float32."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F16":
        return values.view(np.float16).astype(np.float32)
    return values.astype(np.float32, copy=False)


def from_f32(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """float32 rounded to nearest even as "F32", "F16", or the uint16 bits of "BF16"."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
