"""A GGUF file as a source for conversion, under Hugging Face names and conventions.

What the GGUF exporter changed is undone: Llama's query and key rows are stored interleaved for its
rotary form and come back in halves (a permutation of whole rows, so codes are untouched), and
Gemma's norm weights, stored with 1 added, lose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_infer.checkpoint import gguf_blocks
from edge_infer.checkpoint.gguf_config import build_config
from edge_infer.checkpoint.gguf_header import GgufHeader, GgufTensor, read_header
from edge_infer.checkpoint.gguf_names import expected_shapes, hf_name
from edge_infer.checkpoint.source import Codes, FileReader, Source, SourceTensor, panel_rows
from edge_infer.errors import CheckpointError, UnsupportedError

_FLOATS = {"F32", "F16", "BF16"}


class GgufSourceTensor(SourceTensor):
    """A GGUF tensor under its Hugging Face name.

    ``head_rows`` is the rows of a head when rows are interleaved and must come back in halves;
    ``offset`` is added to every value.
    """

    def __init__(
        self,
        name: str,
        info: GgufTensor,
        reader: FileReader,
        *,
        head_rows: int = 0,
        offset: float = 0.0,
    ) -> None:
        self.name, self.shape, self.stored, self.nbytes = name, info.shape, info.type, info.nbytes
        self.kept = gguf_blocks.KEPT.get(info.type)
        self._info, self._reader = info, reader
        self._head_rows, self._offset = head_rows, np.float32(offset)
        self._row_bytes = info.nbytes // self.rows

    def _raw(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes [rows, row bytes] of rows in Hugging Face order."""
        first, last = start, stop
        if self._head_rows:
            first = start // self._head_rows * self._head_rows
            last = -(-stop // self._head_rows) * self._head_rows
        raw: npt.NDArray[np.uint8] = self._reader.read(
            self._info.offset + first * self._row_bytes, (last - first) * self._row_bytes
        ).reshape(last - first, self._row_bytes)
        if self._head_rows:
            heads = raw.reshape(-1, self._head_rows // 2, 2, self._row_bytes).swapaxes(1, 2)
            raw = heads.reshape(last - first, self._row_bytes)[start - first : stop - first]
        return raw

    def floats(self, start: int, stop: int) -> tuple[npt.NDArray[Any], str]:
        raw = self._raw(start, stop)
        if self._offset:
            return self._values(raw) + self._offset, "F32"
        if self.stored in ("F16", "BF16"):
            return raw.view(np.uint16), self.stored
        return self._values(raw), "F32"

    def _values(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        raw = np.ascontiguousarray(raw)
        values: npt.NDArray[np.float32] = dequantize(raw, GGMLQuantizationType[self.stored])
        return values

    @property
    def quantized(self) -> bool:
        """Whether the values are codes times a scale."""
        return self.stored not in _FLOATS

    def steps(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows [start, stop): how far apart neighbouring codes are at each value, f32 [rows, K]."""
        raw = np.ascontiguousarray(self._raw(start, stop))
        blocks = 256 if self.stored.endswith("_K") else 32
        flat = raw.reshape((stop - start) * self.k // blocks, -1)
        return gguf_blocks.steps_of(self.stored, flat).reshape(stop - start, self.k)

    def codes(self, start: int, stop: int) -> Codes:
        raw = np.ascontiguousarray(self._raw(start, stop))
        assert self.kept is not None
        blocks = 256 if self.stored.endswith("_K") else 32
        count = stop - start
        c = gguf_blocks.codes_of(self.stored, raw.reshape(count * self.k // blocks, -1))
        for factors in (c.scales, c.minimums):
            if factors is not None and not np.isfinite(factors).all():
                raise CheckpointError(
                    f"tensor {self.name} ({self._info.name}) has a scale that is no finite fp16 "
                    f"number in rows {start} to {stop}."
                )
        minimums = None if c.minimums is None else c.minimums.reshape(count, -1)
        return Codes(c.codes.reshape(count, -1), c.scales.reshape(count, -1), minimums)

    @property
    def carried_dtype(self) -> str:
        keeps = self.stored in _FLOATS and not self._offset and len(self.shape) > 1
        return self.stored if keeps else "F32"

    def carried(self) -> Iterator[npt.NDArray[Any]]:
        step = panel_rows(self.k)
        for start in range(0, self.rows, step):
            raw = self._raw(start, min(start + step, self.rows))
            if self.carried_dtype != "F32":
                yield raw.view(np.uint16)
            else:
                values = self._values(raw)
                yield values + self._offset if self._offset else values


def open_gguf(path: str | Path) -> Source:
    """Opens a GGUF file; its header is checked within bounds before anything else reads it.

    Raises CheckpointError for a damaged or inconsistent file, UnsupportedError for architectures,
    types and features that this build does not read.
    """
    header = read_header(path)
    if header.fields.get("split.count", 0) not in (0, 1):
        raise UnsupportedError(
            f"{header.path} is one part of {str(header.fields['split.count'])[:20]}.",
            remedy="Join the parts with `llama-gguf-split --merge` first.",
        )
    reader = FileReader(header.path)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{header.path} has no token_embd.weight matrix.")
    config = build_config(
        header.fields,
        vocab_size=embedding.shape[0],
        names=header.tensors,
        rope_factors=_rope_factors(header, reader),
    )
    tensors = _tensors(header, reader, config)
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > config["vocab_size"]:
        raise CheckpointError(
            f"{header.path} has {len(tokens)} tokens and {config['vocab_size']} embedding rows."
        )

    def copy_extras(folder: Path) -> list[str]:
        from edge_infer.checkpoint import tokenizer_gguf

        return tokenizer_gguf.export(header.fields, folder)

    return Source(header.path, "gguf", config, tensors, [header.path], copy_extras)


def _rope_factors(header: GgufHeader, reader: FileReader) -> list[float] | None:
    info = header.tensors.get("rope_freqs.weight")
    if info is None:
        return None
    if info.type != "F32" or len(info.shape) != 1 or info.nbytes > 1 << 16:
        raise CheckpointError(f"rope_freqs.weight is {info.type} {info.shape}.")
    factors: list[float] = reader.read(info.offset, info.nbytes).view(np.float32).tolist()
    return factors


def _tensors(
    header: GgufHeader, reader: FileReader, config: dict[str, Any]
) -> dict[str, SourceTensor]:
    arch = header.fields["general.architecture"]
    layers = config["num_hidden_layers"]
    if layers > len(header.tensors):
        raise CheckpointError(
            f"{header.path} claims {layers} layers but holds {len(header.tensors)} tensors."
        )
    shapes, optional = expected_shapes(config)
    out: dict[str, SourceTensor] = {}
    for info in header.tensors.values():
        if info.name == "rope_freqs.weight":
            continue
        name = hf_name(arch, info.name)
        if name is None or name not in shapes:
            raise UnsupportedError(
                f"{header.path} has the tensor {info.name!r}, which {arch} does not use here."
            )
        if info.shape != shapes[name]:
            raise CheckpointError(
                f"{header.path}: tensor {info.name!r} has shape {info.shape}, "
                f"its metadata calls for {shapes[name]}."
            )
        interleaved = arch == "llama" and name.rpartition(".")[0].endswith(("q_proj", "k_proj"))
        gemma_norm = arch == "gemma3" and len(info.shape) == 1
        out[name] = (_Vector if len(info.shape) == 1 else GgufSourceTensor)(
            name,
            info,
            reader,
            head_rows=config["head_dim"] if interleaved else 0,
            offset=-1.0 if gemma_norm else 0.0,
        )
    missing = [n for n in shapes if n not in out and n not in optional]
    if missing:
        raise CheckpointError(
            f"{header.path} lacks {len(missing)} tensors that its metadata calls for, "
            f"the first is {missing[0]}."
        )
    return out


class _Vector(GgufSourceTensor):
    """A 1-D tensor: one row, read whole; a bias of interleaved rows is reordered like them."""

    def __init__(
        self,
        name: str,
        info: GgufTensor,
        reader: FileReader,
        *,
        head_rows: int = 0,
        offset: float = 0.0,
    ) -> None:
        super().__init__(name, info, reader, offset=offset)
        self._interleaved = head_rows

    def carried(self) -> Iterator[npt.NDArray[Any]]:
        for values in super().carried():
            if self._interleaved:
                halves = values.reshape(-1, self._interleaved // 2, 2).swapaxes(1, 2)
                values = halves.reshape(1, -1)
            yield values
