"""Builds a native program from model code that reads like the paper.

Row operations (norms, activations, gates) are lazy: consumed by a linear, they are fused in
front of it and never stored; consumed by anything else, they are stored first. Buffers share
memory by liveness, at the granularity of the executor's barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_infer import _native
from edge_infer.errors import ExecutionError
from edge_infer.models.rope import RopeTable
from edge_infer.models.values import (
    OUTPUTS,
    ROWS,
    Buffer,
    KvGroup,
    KvLayout,
    Linear,
    Operation,
    Pending,
    Value,
)

_NO_REF = (-1, 0, 0)
_ROW_KINDS = frozenset(
    [
        "embed",
        "rms_norm",
        "layer_norm",
        "rope",
        "kv_store",
        "activation",
        "glu",
        "add",
        "mul",
        "scale",
        "softcap",
        "head_gate",
    ]
)


class ProgramBuilder:
    """Collects operations; :meth:`create` plans memory and makes the native program.

    ``max_rows``: rows (tokens) in one step; ``max_outputs``: rows whose outputs are wanted in one
    step; ``position_axes``: 1, or 3 for multimodal RoPE; ``head`` False: the model ends with its
    hidden states, for embeddings.
    """

    def __init__(
        self,
        *,
        kv: KvLayout | None = None,
        max_rows: int,
        max_outputs: int,
        position_axes: int = 1,
        head: bool = True,
    ) -> None:
        self.kv = kv if kv is not None else KvLayout()
        self.max_rows = max_rows
        self.max_outputs = max_outputs
        self.position_axes = position_axes
        self.head = head
        self.embed_width = 0
        self.outputs: dict[str, int] = {}
        self._buffers: list[Buffer] = []
        self._ops: list[Operation] = []
        self._prologues: list[Any] = []
        self._tables: list[RopeTable] = []
        self._phase = -1
        self._last: tuple[str, int] | None = None  # kind and space of the previous operation

    # --- operations -------------------------------------------------------------------------

    def embed(
        self, table: Linear | None, *, width: int, scale: float = 1.0, rows: bool = False
    ) -> Value:
        """Embedding lookup [rows, width], times ``scale``; ``rows``: embedding rows may be given
        instead of tokens (token id -1). ``table`` None: only such rows."""
        if rows or table is None:
            self.embed_width = width
        out = self._buffer(width, ROWS)
        op = _native.Op("embed")
        op.weights = [table.weight] if table is not None else []
        op.factor = scale
        self._emit("embed", op, out=out, space=ROWS)
        return Value(width, ROWS, out)

    def linear(
        self, x: Value, weights: Linear | Sequence[Linear], *, add_to: Value | None = None
    ) -> Any:
        """x @ W.T + b for each of ``weights``, computed as one operation; a list gives a list of
        values side by side. ``add_to``: a stored value that the (single) result is added to."""
        parts = [weights] if isinstance(weights, Linear) else list(weights)
        total = sum(w.n for w in parts)
        op = _native.Op("linear")
        op.weights = [w.weight for w in parts]
        op.biases = [w.bias if w.bias is not None else _native.Vector() for w in parts]
        reads: tuple[tuple[int, int, int], ...]
        if x.pending is not None:
            op.prologue = len(self._prologues)
            self._prologues.append(x.pending.op)
            reads, source = tuple(x.pending.reads), x.pending.reads[0]
        else:
            source = self._ref(x)
            reads = (source,)
        if add_to is not None:
            op.accumulate = True
            out = self._ref(add_to)
            reads = (*reads, out)
        else:
            out = self._buffer(total, x.space)
        self._emit("linear", op, in_=source, out=out, reads=reads, space=x.space)
        if isinstance(weights, Linear):
            return add_to if add_to is not None else Value(total, x.space, out)
        return self.split(Value(total, x.space, out), [w.n for w in parts])

    def rms_norm(
        self,
        x: Value,
        weight: Any,
        eps: float,
        *,
        offset: float = 0.0,
        heads: int = 1,
        add_to: Value | None = None,
        in_place: bool = False,
    ) -> Value:
        """x / rms(x) * (weight + offset), over each of ``heads`` equal parts of the row."""
        op = _native.Op("rms_norm")
        if weight is not None:
            op.weight = weight
        op.eps, op.weight_offset, op.heads, op.head_dim = eps, offset, heads, x.width // heads
        if add_to is not None:
            op.accumulate = True
            target = self._ref(add_to)
            source = self._ref(x)
            self._emit(
                "rms_norm", op, in_=source, out=target, reads=(source, target), space=x.space
            )
            return add_to
        return self._row_op("rms_norm", op, x, in_place=in_place)

    def layer_norm(self, x: Value, weight: Any, bias: Any, eps: float) -> Value:
        op = _native.Op("layer_norm")
        op.weight, op.bias, op.eps = weight, bias if bias is not None else _native.Vector(), eps
        return self._row_op("layer_norm", op, x)

    def activation(self, x: Value, kind: str) -> Value:
        op = _native.Op("activation")
        op.set_activation(kind)
        return self._row_op("activation", op, x)

    def glu(self, gate: Value, up: Value, kind: str) -> Value:
        """kind(gate) * up."""
        op = _native.Op("glu")
        op.set_activation(kind)
        return self._row_op("glu", op, gate, up)

    def head_gate(self, x: Value, gate: Value, heads: int) -> Value:
        """x[head] * sigmoid(gate[head])."""
        op = _native.Op("head_gate")
        op.heads, op.head_dim = heads, x.width // heads
        return self._row_op("head_gate", op, x, gate)

    def add(self, a: Value, b: Value) -> Value:
        return self._row_op("add", _native.Op("add"), a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self._row_op("mul", _native.Op("mul"), a, b)

    def scale(self, x: Value, factor: float, *, in_place: bool = False) -> Value:
        op = _native.Op("scale")
        op.factor = factor
        return self._row_op("scale", op, x, in_place=in_place)

    def softcap(self, x: Value, cap: float, *, in_place: bool = False) -> Value:
        """cap * tanh(x / cap)."""
        op = _native.Op("softcap")
        op.softcap = cap
        return self._row_op("softcap", op, x, in_place=in_place)

    def rope(self, x: Value, table: RopeTable, heads: int, *, interleaved: bool = False) -> Value:
        """Rotates the first dims of each head in place."""
        if table not in self._tables:
            self._tables.append(table)
        target = self._ref(x)
        op = _native.Op("rope")
        op.table, op.heads, op.head_dim = self._tables.index(table), heads, x.width // heads
        op.interleaved = interleaved
        self._emit("rope", op, out=target, reads=(target,), space=x.space)
        return Value(x.width, x.space, target)

    def kv_store(self, k: Value, v: Value, group: KvGroup) -> tuple[int, int]:
        """Adds a layer to ``group`` and writes its keys and values at the rows' cache positions."""
        index, layer = self.kv.add_layer(group)
        op = _native.Op("kv_store")
        op.group, op.layer = index, layer
        keys, values = self._ref(k), self._ref(v)
        self._emit("kv_store", op, in_=keys, in2=values, reads=(keys, values), space=k.space)
        return index, layer

    def attention(
        self,
        q: Value,
        k: Value | None,
        v: Value | None,
        *,
        heads: int,
        group: KvGroup,
        scale: float,
        softcap: float = 0.0,
        full: bool = False,
        layer: tuple[int, int] | None = None,
    ) -> Value:
        """Scaled dot-product attention over the paged pool, [rows, heads * head_dim].

        With ``k`` and ``v`` the rows are stored first, as a new layer of ``group``; without, an
        existing ``layer`` (what :meth:`kv_store` returned) is read, as cross attention does. A row
        sees positions up to its ``visible_end``, or with ``full`` the whole context.
        """
        if k is not None and v is not None:
            layer = self.kv_store(k, v, group)
        if layer is None:
            raise ExecutionError("Attention needs keys and values, or a stored layer.")
        op = _native.Op("attention")
        op.group, op.layer = layer
        op.heads, op.kv_heads, op.head_dim = heads, group.kv_heads, group.head_dim
        op.factor, op.softcap, op.window, op.full = scale, softcap, group.window, full
        source = self._ref(q)
        out = self._buffer(heads * group.head_dim, q.space)
        self._emit("attention", op, in_=source, out=out, reads=(source,), space=q.space)
        return Value(heads * group.head_dim, q.space, out)

    def split(self, x: Value, widths: Sequence[int]) -> list[Value]:
        """Views of neighbouring columns."""
        buffer, column, width = self._ref(x)
        if sum(widths) != width:
            raise ExecutionError(f"Parts of {list(widths)} columns do not make up {width}.")
        values = []
        for n in widths:
            values.append(Value(n, x.space, (buffer, column, n)))
            column += n
        return values

    def gather(self, x: Value) -> Value:
        """The rows whose outputs are wanted."""
        source = self._ref(x)
        out = self._buffer(x.width, OUTPUTS)
        self._emit(
            "gather", _native.Op("gather"), in_=source, out=out, reads=(source,), space=OUTPUTS
        )
        return Value(x.width, OUTPUTS, out)

    def output(self, name: str, x: Value) -> Value:
        """Stores ``x`` under a name that can be read after the step."""
        ref = self._ref(x)
        buffer = self._buffers[ref[0]]
        if ref[1] != 0 or ref[2] != buffer.width:
            raise ExecutionError(f"Output {name!r} is only a part of a buffer.")
        self.outputs[name] = ref[0]
        return Value(x.width, x.space, ref)

    def store(self, x: Value) -> Value:
        """The value as a buffer of its own, for use by several operations."""
        return Value(x.width, x.space, self._ref(x))

    # --- planning ---------------------------------------------------------------------------

    def create(self, team: Any, pool: Any, maps: Sequence[Any]) -> Any:
        """The native program. Call after every program that shares ``kv`` has been described."""
        arena = self._plan()
        return _native.Program(
            team=team,
            pool=pool,
            maps=list(maps),
            max_rows=self.max_rows,
            max_outputs=self.max_outputs,
            position_axes=self.position_axes,
            embed_width=self.embed_width,
            arena_bytes=arena,
            buffers=[(b.width, b.stride, b.space, b.offset) for b in self._buffers],
            ops=[o.native for o in self._ops],
            prologues=self._prologues,
            tables=[
                (list(t.inverse_frequency), list(t.axes()), t.attention_factor)
                for t in self._tables
            ],
        )

    def operations(self) -> list[Operation]:
        """The operations in order; matches the native program's ``op_times``."""
        return list(self._ops)

    def _plan(self) -> int:
        """Offsets by liveness, largest first; buffers whose phases overlap never share memory."""
        for buffer in self.outputs.values():
            self._buffers[buffer].last = self._phase + 1
        placed: list[tuple[int, int, Buffer]] = []
        total = 64
        for b in sorted(self._buffers, key=self._bytes, reverse=True):
            size = self._bytes(b)
            offset = 0
            for begin, end, other in sorted(placed, key=lambda p: p[0]):
                if other.last < b.first or b.last < other.first:
                    continue
                if offset + size <= begin:
                    break
                offset = max(offset, end)
            b.offset = offset
            placed.append((offset, offset + size, b))
            total = max(total, offset + size)
        return total

    def _bytes(self, b: Buffer) -> int:
        rows = self.max_rows if b.space == ROWS else self.max_outputs
        return int(np.ceil(b.stride * 4 * max(rows, 1) / 64) * 64)

    def _buffer(self, width: int, space: int) -> tuple[int, int, int]:
        self._buffers.append(Buffer(width, space))
        return (len(self._buffers) - 1, 0, width)

    def _row_op(
        self, kind: str, op: Any, a: Value, b: Value | None = None, *, in_place: bool = False
    ) -> Value:
        first = self._ref(a)
        reads = [first] if b is None else [first, self._ref(b)]
        op.set_operands(first, reads[1] if b is not None else _NO_REF, _NO_REF)
        pending = Value(a.width, a.space, None, Pending(kind, op, reads))
        if not in_place:
            return pending
        self._store(pending, first)
        return Value(a.width, a.space, first)

    def _ref(self, x: Value) -> tuple[int, int, int]:
        if x.ref is not None:
            return x.ref
        return self._store(x, self._buffer(x.width, x.space))

    def _store(self, x: Value, out: tuple[int, int, int]) -> tuple[int, int, int]:
        assert x.pending is not None
        kind, op, reads = x.pending.kind, x.pending.op, x.pending.reads
        in2 = reads[-1] if len(reads) == 2 else _NO_REF
        self._emit(kind, op, in_=reads[0], in2=in2, out=out, reads=reads, space=x.space)
        return out

    def _emit(
        self,
        kind: str,
        op: Any,
        *,
        in_: tuple[int, int, int] = _NO_REF,
        in2: tuple[int, int, int] = _NO_REF,
        out: tuple[int, int, int] = _NO_REF,
        reads: Sequence[tuple[int, int, int]] = (),
        space: int,
    ) -> None:
        # The executor puts no barrier between neighbouring row operations of one space.
        row = kind in _ROW_KINDS
        if not (row and self._last == ("row", space)):
            self._phase += 1
        self._last = ("row" if row else "team", space)
        op.set_operands(in_, in2, out)
        for ref in (*reads, out):
            if ref[0] < 0:
                continue
            b = self._buffers[ref[0]]
            b.first = self._phase if b.first < 0 else b.first
            b.last = max(b.last, self._phase)
        prologue = self._prologues[op.prologue] if op.prologue >= 0 else None
        read, written = sum(ref[2] for ref in reads), max(out[2], 0)
        self._ops.append(Operation(kind, op, prologue, space, read, written))
