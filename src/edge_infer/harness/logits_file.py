"""llama-perplexity's file of log-probabilities (`--kl-divergence-base`): read and written.

Little-endian: the eight bytes ``_logits_``, then int32 context, vocabulary and chunks, the tokens
of every chunk (int32), and for each scored position one row: float32 step and lowest value, then
16 bits a token, log p = lowest + step * code. Logits further than 16 below the best are lifted to
that. Of each chunk the positions from half the context on are scored, except the last. (The format
is that of llama.cpp's tools/perplexity at the version that baselines/llamacpp pins.)
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_infer.checkpoint.safetensors_io import storage_error
from edge_infer.errors import CheckpointError

_MAGIC = b"_logits_"
_HEAD = len(_MAGIC) + 12
_DEPTH = np.float32(16)


def scored(context: int) -> range:
    """The positions of a chunk whose prediction of the next token counts."""
    return range(context // 2, context - 1)


def is_logits_file(path: Path) -> bool:
    """Whether a path is a file that begins like one."""
    if not path.is_file():
        return False
    with open(path, "rb") as f:
        return f.read(len(_MAGIC)) == _MAGIC


def _row_halves(vocabulary: int) -> int:
    return 2 * ((vocabulary + 1) // 2) + 4


class LogitsFile:
    """A file opened for reading, mapped. ``tokens``: int32 [chunks, context].

    Raises CheckpointError for a file that is not one, or whose size is not what its head says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as f:
                head = f.read(_HEAD)
                size = f.seek(0, 2)
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e.strerror or e}.") from None
        if len(head) < _HEAD or not head.startswith(_MAGIC):
            raise CheckpointError(
                f"{path} holds no log-probabilities.",
                remedy="Write it with llama-perplexity --kl-divergence-base FILE.",
            )
        numbers = np.frombuffer(head, "<i4", offset=len(_MAGIC)).tolist()
        self.context, self.vocab_size, self.chunks = numbers
        if min(numbers) < 1 or self.context < 4:
            raise CheckpointError(f"{path} claims context, vocabulary and chunks of {numbers}.")
        tokens = self.chunks * self.context
        rows = self.chunks * len(scored(self.context))
        width = _row_halves(self.vocab_size)
        needed = _HEAD + 4 * tokens + 2 * rows * width
        if size != needed:
            raise CheckpointError(
                f"{path} has {size} bytes; {needed} are needed for {self.chunks} chunks of "
                f"{self.context} tokens over {self.vocab_size}.",
                remedy="It is incomplete, or of another version of llama.cpp; write it again.",
            )
        flat = np.memmap(path, np.uint8, "r")
        after = _HEAD + 4 * tokens
        self.tokens: npt.NDArray[np.int32] = (
            flat[_HEAD:after].view("<i4").reshape(self.chunks, self.context)
        )
        if self.tokens.min() < 0 or self.tokens.max() >= self.vocab_size:
            raise CheckpointError(f"{path} has tokens outside its vocabulary.")
        self._rows = flat[after:].view("<u2").reshape(self.chunks, -1, width)

    def log_probabilities(self, chunk: int, first: int, last: int) -> npt.NDArray[np.float32]:
        """Rows [first, last) of a chunk's scored positions: f32 [rows, vocabulary]."""
        rows = self._rows[chunk, first:last]
        factors = np.ascontiguousarray(rows[:, :4]).view("<f4")
        values = rows[:, 4 : 4 + self.vocab_size].astype(np.float32)
        values *= factors[:, :1]
        values += factors[:, 1:]
        return values


class LogitsWriter:
    """Writes such a file: tokens first, then rows of logits in order. Raises StorageError."""

    def __init__(self, path: Path, tokens: npt.NDArray[np.int32], vocab_size: int) -> None:
        self.path, self._vocab_size = path, vocab_size
        chunks, context = tokens.shape
        try:
            self._file = open(path, "wb")  # noqa: SIM115
        except OSError as e:
            raise storage_error(e, path) from None
        head = np.array([context, vocab_size, chunks], "<i4").tobytes()
        self._write([_MAGIC, head, tokens.astype("<i4").tobytes()])

    def add(self, logits: npt.NDArray[np.float32]) -> None:
        """Rows of logits or log-probabilities [rows, vocabulary]."""
        best = logits.max(axis=1, keepdims=True)
        lowest = np.maximum(logits.min(axis=1, keepdims=True), best - _DEPTH)
        sums = np.exp(logits - best).sum(axis=1, keepdims=True, dtype=np.float64)
        step = (best - lowest) / np.float32(65535)
        rows = np.zeros((len(logits), _row_halves(self._vocab_size)), "<u2")
        factors = np.concatenate([step, lowest - best - np.log(sums)], axis=1)
        rows[:, :4] = np.ascontiguousarray(factors, "<f4").view("<u2")
        scale = np.where(step > 0, step, 1)
        rows[:, 4 : 4 + self._vocab_size] = np.rint((np.maximum(logits, lowest) - lowest) / scale)
        self._write([rows.tobytes()])

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as e:
            raise storage_error(e, self.path) from None

    def _write(self, parts: Iterable[bytes]) -> None:
        try:
            for part in parts:
                self._file.write(part)
        except OSError as e:
            raise storage_error(e, self.path) from None
