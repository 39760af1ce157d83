"""Torch operations over the native kernels: traceable, and run on torch's own threads.

A layer's matrices are named by a handle, an int64 tensor [1] on the layer. So a compiled graph
takes it as an input like any weight: layers of one shape share one graph, and what a compile cache
keeps is valid in the next process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm import forward_context

from edge_infer import _native
from edge_infer.vllm_plugin.segments import Segment

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
# Where the level has matrix hardware, prompt rows have numerics of their own.
_PREFILL = bool(_native.kernels.bf16_prefill(_native.active_level()))
_run, _lookup = _native.linear_run, _native.linear_lookup
_run_experts = _native.experts_run

_LIBRARY = torch.library.Library("edge_infer", "DEF")
_LIBRARY.define("linear(Tensor x, Tensor handle, int n, bool bias) -> Tensor")
_LIBRARY.define("lookup(Tensor ids, Tensor handle, int k, ScalarType dtype) -> Tensor")
_LIBRARY.define(
    "experts(Tensor x, Tensor handle, Tensor ids, Tensor weights, bool first) -> Tensor"
)


def matrix(segment: Segment) -> Any:
    """The segment as a native matrix, which keeps its tensors alive."""
    if segment.plain:
        values = segment.codes.contiguous()
        kind = _NAMES[values.dtype]
        return _native.kernels.Matrix.rows(
            values.view(-1).view(torch.uint8), n=segment.n, k=segment.k, type=kind
        )
    minimums = segment.minimums
    return _native.kernels.Matrix.packed(
        segment.codes.view(torch.uint8),
        segment.scales.view(torch.uint16),
        None if minimums is None else minimums.view(torch.uint16),
        n=segment.n,
        k=segment.k,
        group=segment.group_size,
        bits=segment.bits,
    )


def linear(segments: Sequence[Segment], bias: torch.Tensor | None) -> tuple[Any, torch.Tensor]:
    """(native linear, its handle); the linear must live as long as the handle is used.

    bias: [sum of n], any float dtype.
    """
    values = None if bias is None else bias.detach().to(torch.float32)
    native = _linear_of(segments, values)
    return native, torch.tensor([native.handle], dtype=torch.int64)


def _linear_of(segments: Sequence[Segment], bias: torch.Tensor | None) -> Any:
    guards = {guard for segment in segments for guard in segment.guards}
    return _native.Linear([matrix(s) for s in segments], bias, list(guards))


def experts(
    gate_up: Sequence[Sequence[Segment]], down: Sequence[Sequence[Segment]], activation: str
) -> tuple[Any, torch.Tensor]:
    """(native experts, their handle): each expert's gate and up [I, H] (or one [2*I, H]), and
    down [H, I]."""
    native = _native.Experts(
        [_linear_of(parts, None) for parts in gate_up],
        [_linear_of(parts, None) for parts in down],
        activation,
    )
    return native, torch.tensor([native.handle], dtype=torch.int64)


def numerics(rows: int) -> tuple[int, torch.Tensor | None]:
    """How many of a step's rows have decode numerics: those of sequences of one row.

    Kernels want them in front. vLLM gives a new sequence the place of one that has ended, so they
    may lie anywhere; then the second value, int64 [rows], is the order that brings them to the
    front. All rows are decode rows where the level makes no difference between the kinds, and
    outside of a step's forward pass: rows that the output head reads.
    """
    context = forward_context._forward_context
    if context is None or not _PREFILL:
        return rows, None
    known = context.__dict__.get("edge_infer_numerics")
    if known is None:
        known = context.__dict__["edge_infer_numerics"] = _of_step(context.attn_metadata)
    decode, order = known
    if decode < 0:
        return rows, None
    if order is None or len(order) > rows:  # more: these rows are not the step's tokens
        return (decode if order is None else 0), None
    if len(order) < rows:  # padding
        order = torch.cat([order, torch.arange(len(order), rows)])
    return decode, order


def _of_step(metadata: Any) -> tuple[int, torch.Tensor | None]:
    """(rows of sequences of one row, order that brings them to the front, None when they are).

    (-1, None) when the step has no sequences.
    """
    if isinstance(metadata, dict):
        for layer in metadata.values():
            starts = getattr(layer, "query_start_loc", None)
            if starts is not None:
                lengths = starts[1:] - starts[:-1]
                one = lengths == 1
                decode = int(one.sum())
                if bool(one[:decode].all()):
                    return decode, None
                rows = torch.repeat_interleave(one, lengths)
                return decode, torch.cat([rows.nonzero(), (~rows).nonzero()]).view(-1)
    return -1, None


def _linear(x: torch.Tensor, handle: torch.Tensor, n: int, bias: bool) -> torch.Tensor:
    shape = x.shape
    if x.dim() != 2:
        x = x.reshape(-1, shape[-1])
    if x.stride(1) != 1 or x.stride(0) < shape[-1]:  # such as one row expanded to several
        x = x.contiguous()
    rows = x.shape[0]
    decode, order = numerics(rows)
    if order is not None:
        x = x[order]
    y = x.new_empty((rows, n))
    kind = _TYPES[x.dtype]
    _run(
        handle.data_ptr(), x.data_ptr(), kind, x.stride(0) if rows > 1 else x.shape[1], rows,
        decode, bias, y.data_ptr(), kind, n,
    )  # fmt: skip
    if order is not None:
        y = torch.empty_like(y).index_copy_(0, order, y)
    return y if len(shape) == 2 else y.view(*shape[:-1], n)


def _linear_fake(x: torch.Tensor, handle: torch.Tensor, n: int, bias: bool) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], n))


def _rows(ids: torch.Tensor, handle: torch.Tensor, k: int, dtype: torch.dtype) -> torch.Tensor:
    ids = ids.contiguous()
    y = torch.empty((*ids.shape, k), dtype=dtype)
    _lookup(handle.data_ptr(), ids.data_ptr(), ids.numel(), y.data_ptr(), _TYPES[dtype])
    return y


def _rows_fake(ids: torch.Tensor, handle: torch.Tensor, k: int, dtype: torch.dtype) -> torch.Tensor:
    return ids.new_empty((*ids.shape, k), dtype=dtype)


def _experts(
    x: torch.Tensor, handle: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, first: bool
) -> torch.Tensor:
    decode, order = numerics(x.shape[0])
    if order is not None:
        x, ids, weights = x[order], ids[order], weights[order]
    x = x.contiguous()
    ids = ids.to(torch.int32).contiguous()
    weights = weights.to(torch.float32).contiguous()
    y = torch.empty_like(x)
    kind, (rows, width) = _TYPES[x.dtype], x.shape
    _run_experts(
        handle.data_ptr(), x.data_ptr(), kind, width, rows, decode, ids.data_ptr(),
        weights.data_ptr(), ids.shape[1], first, y.data_ptr(), kind,
    )  # fmt: skip
    return y if order is None else torch.empty_like(y).index_copy_(0, order, y)


def _experts_fake(
    x: torch.Tensor, handle: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, first: bool
) -> torch.Tensor:
    return torch.empty_like(x)


_LIBRARY.impl("experts", _experts, "CPU")
torch.library.register_fake("edge_infer::experts", _experts_fake, lib=_LIBRARY)
_LIBRARY.impl("linear", _linear, "CPU")
_LIBRARY.impl("lookup", _rows, "CPU")
torch.library.register_fake("edge_infer::linear", _linear_fake, lib=_LIBRARY)
torch.library.register_fake("edge_infer::lookup", _rows_fake, lib=_LIBRARY)
