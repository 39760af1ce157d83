"""What model code passes around: matrices, values, KV groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ROWS, OUTPUTS = 0, 1  # row spaces: all rows of a step, rows whose outputs are wanted


@dataclass(frozen=True)
class Linear:
    """A weight matrix [n, k] and its bias (f32 [n] or None)."""

    weight: Any
    bias: Any = None

    @property
    def n(self) -> int:
        return int(self.weight.n)


@dataclass(frozen=True)
class KvGroup:
    """Layers that share one block table: ``window`` 0 keeps everything, else that many positions.

    ``cross`` groups hold another program's keys and values and are read in full.
    """

    kv_heads: int
    head_dim: int
    window: int = 0
    cross: bool = False


@dataclass
class KvLayout:
    """The KV groups of a model, shared by its programs: group -> number of layers."""

    layers: dict[KvGroup, int] = field(default_factory=dict)

    def add_layer(self, group: KvGroup) -> tuple[int, int]:
        """Index of the group and of the new layer inside it."""
        layer = self.layers.get(group, 0)
        self.layers[group] = layer + 1
        return list(self.layers).index(group), layer

    def groups(self) -> list[tuple[KvGroup, int]]:
        return list(self.layers.items())


@dataclass
class Buffer:
    width: int
    space: int
    first: int = -1  # phase of the first write
    last: int = -1  # phase of the last use
    offset: int = 0

    @property
    def stride(self) -> int:
        # Whole cache lines; rows a multiple of 4 KiB apart would fall into the same cache sets.
        lines = -(-self.width // 16) * 16
        return lines + 32 if lines % 1024 == 0 else lines


@dataclass(frozen=True)
class Value:
    """Columns of a buffer, or a row operation that has not been stored yet (``pending``)."""

    width: int
    space: int
    ref: tuple[int, int, int] | None
    pending: Pending | None = None


@dataclass(frozen=True, eq=False)
class Pending:
    kind: str
    op: Any
    reads: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a program. ``read`` and ``written``: f32 values of each row, in buffers."""

    kind: str
    native: Any
    prologue: Any
    """The native row operation that is fused in front of a linear, or None."""
    space: int
    read: int
    written: int

    def regions(self) -> list[tuple[int, int]]:
        """(address, bytes) of every weight that the operation reads."""
        found: list[tuple[int, int]] = []
        for op in (self.native, self.prologue):
            if op is None:
                continue
            for part in (*op.weights, *op.biases, op.weight, op.bias):
                found += part.regions
        return found
