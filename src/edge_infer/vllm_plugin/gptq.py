"""GPTQ's 4-bit arrays as segments of the packed layout.

A module [N, K] has ``qweight`` int32 [K/8, N] (a word holds eight consecutive k, the first in the
lowest nibble), ``qzeros`` int32 [K/group, N/8] (eight consecutive channels), ``scales``
[K/group, N] and often ``g_idx`` int32 [K], the group of every k. A value is
``scale * (code - zero)``; the format "gptq" stores zero - 1, "gptq_v2" the zero itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from edge_infer.checkpoint.layout import BLOCK_N
from edge_infer.errors import UnsupportedError
from edge_infer.vllm_plugin.foreign_form import CODES_PER_WORD, ForeignForm

_FORMATS = {"gptq": 1, "gptq_v2": 0}  # what is added to a stored zero point


def check_config(config: dict[str, Any]) -> None:
    """Raises UnsupportedError for act-order, another width, or another format."""
    bits = config.get("bits")
    if bits != 4:
        raise UnsupportedError(f"the GPTQ checkpoint has {bits} bits; 4 are read.")
    if config.get("desc_act"):
        raise UnsupportedError(
            "the GPTQ checkpoint has act-order (desc_act): neighbouring inputs belong to different "
            "groups, and the packed layout keeps groups together.",
            remedy="Take a checkpoint with desc_act=false, or convert the unquantized original.",
        )
    zero_offset(config)


def zero_offset(config: dict[str, Any]) -> int:
    """What is added to stored zero points; raises UnsupportedError for an unknown format."""
    name = str(config.get("checkpoint_format") or "gptq").lower()
    if name not in _FORMATS:
        raise UnsupportedError(
            f"the GPTQ checkpoint has checkpoint_format {name[:40]!r}.",
            remedy=f"Known: {', '.join(_FORMATS)}.",
        )
    return _FORMATS[name]


@dataclass(frozen=True)
class GptqForm(ForeignForm):
    """One GPTQ module."""

    offset: int = 1

    def shape_of(self, kind: str) -> tuple[int, ...]:
        if kind == "qweight":
            return self.k // CODES_PER_WORD, self.n
        return super().shape_of(kind)

    def check(self, kind: str, tensor: torch.Tensor) -> None:
        super().check(kind, tensor)
        if kind == "g_idx":
            expected = torch.arange(self.k) // self.group_size
            if not torch.equal(tensor.long(), expected):
                raise UnsupportedError(
                    f"module {self.name} has act-order: its g_idx is not in ascending groups of "
                    f"{self.group_size}.",
                    remedy="Take a checkpoint with desc_act=false.",
                )

    def zeros(self, qzeros: torch.Tensor) -> torch.Tensor:
        parts = qzeros.contiguous().view(torch.uint8)
        codes = torch.stack([parts & 15, parts >> 4], dim=-1)
        return codes.view(qzeros.shape[0], -1) + self.offset

    def lines(self, qweight: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        words = qweight[:, begin:end]
        packed = torch.empty(*words.shape, 4, dtype=torch.uint8)
        for j in range(4):
            packed[:, :, j] = words >> 4 * j & 15 | (words >> 4 * j + 16 & 15) << 4
        cells = packed.view(self.k // 8, -1, BLOCK_N * 4)
        return cells.permute(1, 0, 2)
