"""A Hugging Face folder as a source for conversion: F32, F16 and BF16, read panel by panel."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_infer.checkpoint.reader import open_tensors, quantization_of, read_config
from edge_infer.checkpoint.safetensors_io import DTYPE_BYTES, TensorInfo
from edge_infer.checkpoint.source import (
    PANEL_VALUES,
    FileReader,
    Source,
    SourceTensor,
    panel_rows,
    to_f32,
)
from edge_infer.errors import CheckpointError

FLOATS = {"F32", "F16", "BF16"}
_WEIGHTS = (
    ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".ckpt",
    ".gguf", ".onnx", ".h5", ".msgpack", ".npz", ".tflite",
)  # fmt: skip
_WRITTEN = {"config.json", "provenance.json"}
_EXTRA_LIMIT = 256 << 20
# classes that store a stacked expert as [E, in, out]
_TRANSPOSED_EXPERTS = {"llama4", "llama4_text", "gpt_oss"}


class HfSourceTensor(SourceTensor):
    """A tensor of a safetensors file. ``widen``: carried over as F32 (norms and biases)."""

    def __init__(self, info: TensorInfo, reader: FileReader, *, widen: bool = False) -> None:
        self.name, self.shape, self.stored, self.nbytes = (
            info.name,
            info.shape,
            info.dtype,
            info.nbytes,
        )
        self._info, self._reader = info, reader
        self._widen = widen and info.dtype in FLOATS

    def _read(self, first: int, count: int) -> npt.NDArray[Any]:
        """`count` values from the flat position `first`, F16 and BF16 as their bits."""
        width = DTYPE_BYTES[self.stored]
        raw = self._reader.read(self._info.offset + first * width, count * width)
        return raw.view({1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.uint64}[width])

    def floats(self, start: int, stop: int) -> tuple[npt.NDArray[Any], str]:
        values = self._read(start * self.k, (stop - start) * self.k)
        return values.reshape(stop - start, self.k), self.stored

    @property
    def carried_dtype(self) -> str:
        return "F32" if self._widen else self.stored

    def carried(self) -> Iterator[npt.NDArray[Any]]:
        total = self.nbytes // DTYPE_BYTES[self.stored]
        for first in range(0, total, PANEL_VALUES):
            values = self._read(first, min(PANEL_VALUES, total - first))
            yield to_f32(values, self.stored) if self._widen else values


class TransposedExperts(HfSourceTensor):
    """Experts stored as [E, K, N], seen as [E, N, K]."""

    def __init__(self, info: TensorInfo, reader: FileReader) -> None:
        super().__init__(info, reader)
        experts, k, n = info.shape
        self.shape = (experts, n, k)

    def floats(self, start: int, stop: int) -> tuple[npt.NDArray[Any], str]:
        _, n, k = self.shape
        expert, first = divmod(start, n)
        count = stop - start
        if first + count > n:
            raise CheckpointError(f"{self.name}: a panel may not cross experts.")
        columns = [self._read((expert * k + row) * n + first, count) for row in range(k)]
        return np.ascontiguousarray(np.stack(columns).T), self.stored

    def carried(self) -> Iterator[npt.NDArray[Any]]:
        _, n, k = self.shape
        step = panel_rows(k)
        for expert in range(self.shape[0]):
            for start in range(0, n, step):
                yield self.floats(expert * n + start, expert * n + min(start + step, n))[0]


def open_folder(path: str | Path) -> Source:
    """Opens an unquantized Hugging Face folder.

    Raises CheckpointError for a damaged or inconsistent folder, UnsupportedError for one that is
    already quantized.
    """
    folder = Path(path)
    config = read_config(folder)
    if quantization_of(config) is not None:
        raise CheckpointError(
            f"{folder} is already in the packed format.",
            remedy="Use it as it is, or convert from the original.",
        )
    files, infos = open_tensors(folder)
    readers = {f: FileReader(f) for f in files}
    transposed = config.get("model_type") in _TRANSPOSED_EXPERTS
    tensors: dict[str, SourceTensor] = {}
    for name, info in infos.items():
        reader = readers[info.file]
        if transposed and len(info.shape) == 3 and ".experts." in name and info.dtype in FLOATS:
            tensors[name] = TransposedExperts(info, reader)
        else:
            tensors[name] = HfSourceTensor(info, reader, widen=is_vector(name, info.shape))
    return Source(folder, "huggingface", config, tensors, files, lambda to: _extras(folder, to))


def is_vector(name: str, shape: tuple[int, ...]) -> bool:
    """Norm weights and biases of the language model: carried over as F32."""
    from edge_infer.checkpoint.selection import in_tower

    return (len(shape) <= 1 or name.endswith("_bias")) and not in_tower(name)


def _extras(folder: Path, to: Path) -> list[str]:
    """Copies tokenizer, templates, processor settings: everything small that is no weight."""
    names = []
    for file in sorted(folder.iterdir()):
        name = file.name
        if file.is_dir() and name in ("chat_templates", "additional_chat_templates"):
            shutil.copytree(file, to / name)
            names.append(name)
        if not file.is_file() or name.startswith(".") or name in _WRITTEN:
            continue
        if name.endswith(_WEIGHTS) or file.stat().st_size > _EXTRA_LIMIT:
            continue
        shutil.copyfile(file, to / name)
        names.append(name)
    return names
