"""What AWQ and GPTQ modules have in common: how a loaded module becomes a segment."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from edge_infer.checkpoint import layout
from edge_infer.errors import CheckpointError
from edge_infer.vllm_plugin.segments import Form, Segment

CODES_PER_WORD = 8
# Channels that are converted at one time.
BLOCK_CHANNELS = 64
SYMMETRIC_ZERO = 8


@dataclass(frozen=True)
class ForeignForm(Form):
    """A 4-bit module of another format; `given` are the kinds of tensors that it has.

    ``scale * (code - zero)`` becomes a symmetric matrix where all zero points are 8, exactly.
    Otherwise minimums are ``-scale * zero`` rounded to fp16: off by at most 2^-11 of themselves,
    under a hundredth of a step between codes.
    """

    given: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.given

    def output_dim(self, kind: str) -> int | None:
        """Channels lie side by side in all tensors but g_idx, in words of eight in some."""
        return None if kind == "g_idx" else 1

    def shape_of(self, kind: str) -> tuple[int, ...]:
        """The shape that a tensor of this kind has to have."""
        groups = self.k // self.group_size
        return {
            "qzeros": (groups, self.n // CODES_PER_WORD),
            "scales": (groups, self.n),
            "g_idx": (self.k,),
        }[kind]

    def check(self, kind: str, tensor: torch.Tensor) -> None:
        """Raises CheckpointError unless `tensor` is what ``<name>.<kind>`` has to be."""
        integer = tensor.dtype == torch.int32
        fits = tensor.is_floating_point() if kind == "scales" else integer
        if not fits or tuple(tensor.shape) != self.shape_of(kind):
            raise CheckpointError(
                f"tensor {self.name}.{kind} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"n={self.n}, k={self.k} in groups of {self.group_size} need "
                f"{'floats' if kind == 'scales' else 'torch.int32'} {self.shape_of(kind)}."
            )

    @abstractmethod
    def zeros(self, qzeros: torch.Tensor) -> torch.Tensor:
        """Zero points, uint8 [K/group, N]."""

    @abstractmethod
    def lines(self, qweight: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """Packed codes of channels [begin, end), multiples of 16: uint8 [blocks, K/8, 64]."""

    def segment(self, parts: dict[str, torch.Tensor]) -> Segment:
        """A new matrix in the packed layout, made block by block.

        Raises CheckpointError for missing tensors and for scales beyond fp16.
        """
        for kind in ("qweight", "scales"):
            if kind not in parts:
                raise CheckpointError(f"tensor {self.name}.{kind} is missing.")
        n, missing = self.n, layout.pad(self.n, layout.BLOCK_N) - self.n
        factors = parts["scales"].to(torch.float16)
        if not bool(factors.isfinite().all()):
            raise CheckpointError(f"tensor {self.name}.scales has values beyond fp16.")
        minimums = None
        if "qzeros" in parts:
            zeros = self.zeros(parts["qzeros"])
            if bool((zeros != SYMMETRIC_ZERO).any()):
                minimums = (-factors.float() * zeros).to(torch.float16)
                if not bool(minimums.isfinite().all()):
                    raise CheckpointError(f"module {self.name} has minimums beyond fp16.")
        blocks, lines, width = layout.codes_shape(n, self.k, 4, self.group_size)
        fill = layout.zero_code(4, minimums is None) * 0x11
        codes = torch.full((blocks, lines, width), fill, dtype=torch.uint8)
        whole = n - n % layout.BLOCK_N
        for begin in range(0, whole, BLOCK_CHANNELS):
            end = min(begin + BLOCK_CHANNELS, whole)
            part = slice(begin // layout.BLOCK_N, end // layout.BLOCK_N)
            codes[part] = self.lines(parts["qweight"], begin, end)
        if missing:
            codes[-1] = self._last(parts["qweight"], codes[-1])
        return Segment(
            self.name,
            codes,
            _packed(factors, missing),
            None if minimums is None else _packed(minimums, missing),
            n,
            self.k,
            4,
            self.group_size,
        )

    def _last(self, qweight: torch.Tensor, filled: torch.Tensor) -> torch.Tensor:
        """The last block, of 8 channels, in a block that is filled with the code of zero."""
        tail = qweight[:, -(qweight.shape[1] % self._columns(layout.BLOCK_N)) :]
        double = torch.cat([tail, tail], dim=1)
        lines = self.lines(double, 0, layout.BLOCK_N)[0]
        half = layout.LINE_BYTES // 2
        return torch.cat([lines[:, :half], filled[:, half:]], dim=1)

    def _columns(self, channels: int) -> int:
        """Columns of qweight that hold so many channels."""
        return channels * self.shape_of("qweight")[1] // self.n


def _packed(values: torch.Tensor, missing: int) -> torch.Tensor:
    """[K/group, N] -> [N/16, K/group, 16], `missing` channels of zeros at the end."""
    values = torch.nn.functional.pad(values, (0, missing))
    return values.view(values.shape[0], -1, layout.BLOCK_N).permute(1, 0, 2).contiguous()
