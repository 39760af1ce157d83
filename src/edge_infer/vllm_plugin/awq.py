"""AWQ's 4-bit arrays ("gemm" version) as segments of the packed layout.

A module [N, K] has ``qweight`` int32 [K, N/8], ``qzeros`` int32 [K/group, N/8] and ``scales``
[K/group, N]. The nibbles of a word, from the lowest, are channels 0, 2, 4, 6, 1, 3, 5, 7 of its
eight. A value is ``scale * (code - zero)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from edge_infer.checkpoint.layout import BLOCK_N
from edge_infer.errors import UnsupportedError
from edge_infer.vllm_plugin.foreign_form import CODES_PER_WORD, ForeignForm

# Channels in the low and in the high nibbles of a word's four bytes.
_LOW, _HIGH = [0, 4, 1, 5], [2, 6, 3, 7]


def check_config(config: dict[str, Any]) -> None:
    """Raises UnsupportedError for an AWQ checkpoint of another version or width."""
    bits = config.get("bits", config.get("w_bit"))
    if bits != 4:
        raise UnsupportedError(f"the AWQ checkpoint has {bits} bits; 4 are read.")
    version = str(config.get("version", "gemm")).lower()
    if version != "gemm":
        raise UnsupportedError(
            f"the AWQ checkpoint has version {version[:40]!r}, whose arrays are ordered otherwise.",
            remedy="Take one of version 'gemm'.",
        )


def unpack_words(words: torch.Tensor) -> torch.Tensor:
    """int32 [rows, N/8] -> uint8 codes [rows, N]."""
    parts = words.contiguous().view(torch.uint8).view(words.shape[0], -1, 4)
    codes = torch.empty(words.shape[0], words.shape[1], CODES_PER_WORD, dtype=torch.uint8)
    codes[:, :, _LOW] = parts & 15
    codes[:, :, _HIGH] = parts >> 4
    return codes.view(words.shape[0], -1)


@dataclass(frozen=True)
class AwqForm(ForeignForm):
    """One AWQ module."""

    def shape_of(self, kind: str) -> tuple[int, ...]:
        if kind == "qweight":
            return self.k, self.n // CODES_PER_WORD
        return super().shape_of(kind)

    def zeros(self, qzeros: torch.Tensor) -> torch.Tensor:
        return unpack_words(qzeros)

    def lines(self, qweight: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        words = qweight[:, begin // CODES_PER_WORD : end // CODES_PER_WORD]
        codes = unpack_words(words).view(self.k // 8, 2, 4, (end - begin) // BLOCK_N, BLOCK_N)
        packed = codes[:, 0] | codes[:, 1] << 4  # [K/8, 4, blocks, 16]
        return packed.permute(2, 0, 3, 1).reshape(packed.shape[2], self.k // 8, -1)
