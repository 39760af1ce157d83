"""One packed matrix as torch tensors: what vLLM's loader delivers and every weight path reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from edge_infer.checkpoint import layout
from edge_infer.checkpoint.reader import StoredForm
from edge_infer.errors import CheckpointError

if TYPE_CHECKING:
    from typing_extensions import Self

KINDS = ("codes", "scales", "minimums")
PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Form(StoredForm):
    """How one module of the checkpoint is stored, and what its tensors have to be."""

    plain: ClassVar[bool] = False
    """Not quantized: rows of floats."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of tensors that the module consists of."""
        return KINDS[:2] if self.symmetric else KINDS

    def output_dim(self, kind: str) -> int | None:
        """The dimension of ``<name>.<kind>`` along which channels lie (here in blocks of 16)."""
        return 0

    def segment(self, parts: dict[str, torch.Tensor]) -> Segment:
        """The matrix from the module's loaded and checked tensors."""
        return Segment.of(self, parts)

    def expected(self, kind: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and shape of the tensor ``<name>.<kind>``."""
        lead = () if self.experts is None else (self.experts,)
        if kind == "codes":
            dtype = torch.int8 if self.bits == 8 else torch.uint8
            return dtype, lead + layout.codes_shape(self.n, self.k, self.bits, self.group_size)
        return torch.float16, lead + layout.scales_shape(self.n, self.k, self.group_size)

    def check(self, kind: str, tensor: torch.Tensor) -> None:
        """Raises CheckpointError unless `tensor` is what ``<name>.<kind>`` has to be."""
        if kind == "minimums" and self.symmetric:
            raise CheckpointError(f"module {self.name} is symmetric, yet has minimums.")
        dtype, shape = self.expected(kind)
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {self.name}.{kind} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"n={self.n}, k={self.k}, {self.bits} bits in groups of {self.group_size} "
                f"need {dtype} {shape}.",
                remedy="Convert the model again.",
            )


@dataclass(frozen=True)
class PlainForm(Form):
    """An unquantized module among packed ones that vLLM merges: one tensor of floats [n, k]."""

    plain: ClassVar[bool] = True

    @classmethod
    def named(cls, name: str) -> Self:
        """A module of which nothing else is known yet."""
        return cls(name, n=0, k=0, bits=16, group_size=0, symmetric=True)

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("weight",)

    def check(self, kind: str, tensor: torch.Tensor) -> None:
        """Raises CheckpointError unless `tensor` is f32, bf16 or f16 [n, k]."""
        if tensor.dtype not in PLAIN_DTYPES or tuple(tensor.shape) != (self.n, self.k):
            raise CheckpointError(
                f"tensor {self.name}.{kind} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"beside packed modules it has to be float32, bfloat16 or float16 "
                f"{(self.n, self.k)}."
            )

    def segment(self, parts: dict[str, torch.Tensor]) -> Segment:
        """The rows as they are; raises CheckpointError when they are missing."""
        if "weight" not in parts:
            raise CheckpointError(f"tensor {self.name}.weight is missing.")
        weight = parts["weight"]
        return Segment(
            self.name, weight, torch.empty(0), None, self.n, self.k, 8 * weight.itemsize, 0
        )


@dataclass(frozen=True)
class Segment:
    """One matrix [n, k] in the packed layout (docs/edge/architecture.md), or of plain floats.

    codes: [N/16, lines, 64], uint8 for 4 and 6 bits, int8 for 8; scales and minimums: fp16
    [N/16, K/group_size, 16]; N and K padded to 16 and the group. Contiguous, on the CPU, and
    normally a view of the mapped checkpoint: nobody writes to them. Plain floats are `codes` [N, K]
    f32, bf16 or f16 with group_size 0, the bits of their dtype and no scales.
    """

    name: str
    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None
    n: int
    k: int
    bits: int
    group_size: int
    guards: tuple[Any, ...] = ()
    """Of the mapped files that the tensors are views of (mapped_files.py)."""

    @classmethod
    def of(cls, form: Form, parts: dict[str, torch.Tensor]) -> Segment:
        """From the loaded tensors of one module; raises CheckpointError when one is missing."""
        for kind in KINDS:
            if kind not in parts and not (kind == "minimums" and form.symmetric):
                raise CheckpointError(f"tensor {form.name}.{kind} is missing.")
        return cls(
            form.name,
            parts["codes"],
            parts["scales"],
            parts.get("minimums"),
            form.n,
            form.k,
            form.bits,
            form.group_size,
        )

    @property
    def plain(self) -> bool:
        """Whether the matrix is rows of floats."""
        return self.group_size == 0

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and minimums."""
        return sum(t.nbytes for t in (self.codes, self.scales, self.minimums) if t is not None)

    def dequantize(self, begin: int = 0, end: int | None = None) -> torch.Tensor:
        """Channels [begin, end) as f32 [channels, k]; `begin` is a multiple of 16."""
        import numpy as np

        end = self.n if end is None else min(end, self.n)
        if self.plain:
            return self.codes[begin:end].float()
        blocks = slice(begin // layout.BLOCK_N, -(-end // layout.BLOCK_N))
        minimums = None if self.minimums is None else self.minimums[blocks].numpy()
        values = layout.dequantize(
            self.codes[blocks].numpy(),
            self.scales[blocks].numpy(),
            minimums,
            n=end - begin,
            k=self.k,
            bits=self.bits,
        )
        return torch.from_numpy(np.ascontiguousarray(values))
