"""A quantized GGUF as an ordinary Hugging Face folder in bf16, with its rounding undone by noise.

Values that have been quantized lie on a grid, and a second quantizer that happens to meet the grid
looks better than it is. Uniform noise of half a step either way, from each block's own scale, makes
the values look like those that the grid could have come from: a fair reference to quantize again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_infer.checkpoint.convert import tie
from edge_infer.checkpoint.fingerprint import Fingerprints, tool_version
from edge_infer.checkpoint.folder import Progress, write_plain_folder
from edge_infer.checkpoint.gguf_source import GgufSourceTensor, open_gguf
from edge_infer.checkpoint.safetensors_io import TensorSpec
from edge_infer.checkpoint.source import from_f32, panel_rows, to_f32
from edge_infer.errors import ConfigError

STORED = "BF16"


def dequantize(
    source: str | Path,
    destination: str | Path,
    *,
    noise: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Writes the values of a GGUF file as a bf16 folder; returns it.

    ``noise``: uniform noise of up to this many steps of the source's own grid, either way; 0.5 is
    what rounding took away. Tensors that are not quantized in the source get none. The same seed
    gives the same bytes. Raises CheckpointError, UnsupportedError, ConfigError, StorageError.
    """
    if not 0 <= noise <= 0.5:
        raise ConfigError(f"noise is {noise}; it must be between 0 and 0.5 steps.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more.")
    model = open_gguf(source)
    notes = list(model.notes)
    tied = tie(model, notes)

    def pieces(tensor: Any) -> Callable[[], Iterator[npt.NDArray[Any]]]:
        return lambda: _values(tensor, noise, seed)

    tensors = [(TensorSpec(t.name, STORED, t.shape), pieces(t)) for t in model.tensors.values()]

    def documents(names: list[str]) -> dict[str, Any]:
        return {
            "config.json": {
                **model.config,
                "torch_dtype": "bfloat16",
                **({} if tied is None else {"tie_word_embeddings": tied}),
            },
            "provenance.json": {
                "source": {"kind": "gguf", "name": model.path.name, "files": prints.result()},
                "tool": {"name": "edge-infer", "version": tool_version()},
                "options": {"noise": noise, "seed": seed},
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "extras": names,
                "notes": notes,
            },
        }

    with Fingerprints(model.files) as prints:
        return write_plain_folder(
            Path(destination),
            tensors,
            extras=model.copy_extras,
            documents=documents,
            progress=progress,
        )


def _values(tensor: GgufSourceTensor, noise: float, seed: int) -> Iterator[npt.NDArray[Any]]:
    if len(tensor.shape) < 2:
        for values in tensor.carried():  # float vectors, with what the exporter did to them undone
            yield from_f32(values.astype(np.float32, copy=False), STORED)
        return
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(tensor.name.encode())]))
    rows = panel_rows(tensor.k)
    for start in range(0, tensor.rows, rows):
        stop = min(start + rows, tensor.rows)
        values = to_f32(*tensor.floats(start, stop))
        if noise and tensor.quantized:
            shift = rng.random(values.shape, np.float32) * np.float32(2) - np.float32(1)
            values = values + shift * np.float32(noise) * tensor.steps(start, stop)
        yield from_f32(values, STORED)
