"""What each operation of a program has to read and compute, from shapes alone.

Bytes are what must come from memory at least once in a step; rereading out of caches is not
counted. They divide measured seconds into rates that can be held against the machine's ceilings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.values import ROWS, KvGroup, Operation

_F32 = 4
_KV_ELEMENT = {"f16": 2, "bf16": 2, "int8": 1}
_KV_SCALE = {"int8": 4}  # of the keys, and of the values, of a token and head


@dataclass(frozen=True)
class StepShape:
    """Rows [start, start + rows) of one sequence, each seeing everything before it; ``outputs``:
    rows whose outputs are wanted. Decoding is one row. ``kv_dtype``: of the KV pool."""

    start: int
    rows: int = 1
    outputs: int = 1
    kv_dtype: str = "f16"


@dataclass(frozen=True)
class Traffic:
    """Bytes and arithmetic of one operation in one step."""

    kind: str
    label: str
    """The kind, and the shape [n, k] of a linear."""
    weight_bytes: int
    kv_bytes: int
    """Read and written in the KV pool."""
    activation_bytes: int
    """Read and written in buffers."""
    operations: int
    """Multiplications and additions of linears and attention; 0 for the rest."""

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


def traffic(builder: ProgramBuilder, *shapes: StepShape) -> list[Traffic]:
    """The operations of ``builder`` in order, for a step of these sequences together: what each
    does to its own cache, and the weights once."""
    return [_of(o, builder, shapes) for o in builder.operations()]


def weights_read(builder: ProgramBuilder) -> int:
    """Bytes of weights that decoding one token reads."""
    return sum(t.weight_bytes for t in traffic(builder, StepShape(start=0)))


def _of(o: Operation, builder: ProgramBuilder, shapes: Sequence[StepShape]) -> Traffic:
    rows = sum(s.rows if o.space == ROWS else s.outputs for s in shapes)
    weights = sum(size for _, size in o.regions())
    kv = operations = 0
    label = o.kind
    if o.kind == "embed":
        weights = sum(size * rows // w.n for w in o.native.weights for _, size in w.regions)
    elif o.kind == "linear":
        n, k = sum(w.n for w in o.native.weights), o.native.weights[0].k
        operations = 2 * rows * n * k
        label = f"linear [{n}, {k}]"
    elif o.kind == "kv_store":
        group = builder.kv.groups()[o.native.group][0]
        kv = sum(s.rows * _kv_token_bytes(group, s.kv_dtype) for s in shapes)
    elif o.kind == "attention":
        group = builder.kv.groups()[o.native.group][0]
        for s in shapes:
            read, done = _attention(o, s, _kv_token_bytes(group, s.kv_dtype))
            kv, operations = kv + read, operations + done
    return Traffic(
        kind=o.kind,
        label=label,
        weight_bytes=weights if rows else 0,
        kv_bytes=kv,
        activation_bytes=rows * (o.read + o.written) * _F32,
        operations=operations,
    )


def _kv_token_bytes(group: KvGroup, dtype: str) -> int:
    """Keys and values of one token in one layer."""
    head = group.head_dim * _KV_ELEMENT[dtype] + _KV_SCALE.get(dtype, 0)
    return 2 * group.kv_heads * head


def _attention(o: Operation, shape: StepShape, token_bytes: int) -> tuple[int, int]:
    """(KV bytes, operations). The positions that any row of the step sees count once as bytes."""
    op = o.native
    end = shape.start + shape.rows
    first = max(0, shape.start + 1 - op.window) if op.window else 0
    seen = (min(t + 1, op.window or t + 1) for t in range(shape.start, end))
    return token_bytes * (end - first), 4 * op.heads * op.head_dim * sum(seen)
