"""What the paths with a layout of their own share: reading segments in blocks, and runs of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from edge_infer.checkpoint.layout import BLOCK_N, pad
from edge_infer.device.usage import own_memory
from edge_infer.vllm_plugin import flags
from edge_infer.vllm_plugin.paths import WeightPath
from edge_infer.vllm_plugin.segments import Segment

# Codes of so many channels exist unpacked at one time, as one byte each.
BLOCK_CHANNELS = 64
SYMMETRIC_ZERO = 8


@dataclass(frozen=True)
class Run:
    """Neighbouring segments that one call multiplies: same k and group, no gap between them."""

    segments: tuple[Segment, ...]

    @property
    def n(self) -> int:
        """Channels of all segments."""
        return sum(segment.n for segment in self.segments)

    @property
    def group_size(self) -> int:
        return self.segments[0].group_size

    @property
    def k_padded(self) -> int:
        """K as stored: a multiple of the group."""
        return pad(self.segments[0].k, self.group_size)


def runs(segments: Sequence[Segment], tile: int) -> list[Run]:
    """`segments` joined where they lie without a gap in a layout of `tile` channels a block."""
    found: list[list[Segment]] = []
    for segment in segments:
        last = found[-1][-1] if found else None
        joins = (
            last is not None
            and last.n % tile == 0
            and (last.k, last.group_size) == (segment.k, segment.group_size)
        )
        if joins:
            found[-1].append(segment)
        else:
            found.append([segment])
    return [Run(tuple(run)) for run in found]


def code_rows(segment: Segment, begin: int, end: int) -> torch.Tensor:
    """4-bit codes of channels [begin, end), both multiples of 16: uint8 [end - begin, K padded]."""
    lines = segment.codes[begin // BLOCK_N : end // BLOCK_N]
    blocks, count, _ = lines.shape
    cells = lines.view(blocks, count, BLOCK_N, 4).permute(0, 2, 1, 3)
    codes = torch.empty(blocks, BLOCK_N, count, 2, 4, dtype=torch.uint8)
    torch.bitwise_and(cells, 15, out=codes[:, :, :, 0])
    torch.bitwise_right_shift(cells, 4, out=codes[:, :, :, 1])
    return codes.view(blocks * BLOCK_N, count * 8)


@dataclass(frozen=True)
class RepackPeak:
    """The largest block of codes that this process has unpacked at one time, in bytes."""

    codes: int
    """One byte a code."""
    grown: int
    """By how much the process's anonymous memory grew, as the kernel counts it."""


_peak = RepackPeak(0, 0)


def repack_peak() -> RepackPeak:
    """Of this process until now."""
    return _peak


def _unpacked(segment: Segment, begin: int, end: int) -> torch.Tensor:
    """`code_rows`, watched where the block is larger than any before."""
    global _peak
    size = (end - begin) * pad(segment.k, segment.group_size)
    if size <= _peak.codes:
        return code_rows(segment, begin, end)
    before = own_memory().anonymous
    codes = code_rows(segment, begin, end)
    _peak = RepackPeak(size, max(_peak.grown, own_memory().anonymous - before))
    return codes


def code_blocks(run: Run, tile: int) -> Iterator[tuple[int, torch.Tensor]]:
    """(first channel, uint8 codes [channels, K padded]) of a run, block by block.

    Channels of a block are a multiple of `tile`; those beyond n have the code of zero.
    """
    first = 0
    blocked = flags.enabled("EDGE_INFER_VLLM_BLOCKED_REPACK")
    for segment in run.segments:
        step = BLOCK_CHANNELS if blocked else segment.n
        for begin in range(0, segment.n, step):
            end = min(begin + step, segment.n)
            codes = _unpacked(segment, begin, pad(end, BLOCK_N))
            missing = pad(end - begin, tile) - codes.shape[0]
            if missing > 0:
                codes = torch.nn.functional.pad(codes, (0, 0, 0, missing), value=SYMMETRIC_ZERO)
            yield first + begin, codes
        first += segment.n


def columns(tensor: torch.Tensor) -> torch.Tensor:
    """Scales or minimums [N/16, groups, 16] as [groups, N padded to 16], a copy."""
    return tensor.permute(1, 0, 2).reshape(tensor.shape[1], -1)


def zero_points(segment: Segment) -> torch.Tensor | None:
    """Zero points, uint8 [groups, N padded to 16], with which s*(q - z) are the segment's values.

    None when the minimums are no whole multiples of the scales within 0..15 (up to the rounding of
    a minimum to fp16), so that no zero points say the same.
    """
    scales = columns(segment.scales)
    if segment.minimums is None:
        return torch.full(scales.shape, SYMMETRIC_ZERO, dtype=torch.uint8)
    scales, minimums = scales.float(), columns(segment.minimums).float()
    zeros = torch.where(scales == 0, 0.0, -minimums / scales).round()
    inside = (zeros >= 0) & (zeros <= 15)
    near = (minimums + scales * zeros).abs() <= minimums.abs() * 2**-10 + 2**-24
    return zeros.to(torch.uint8) if bool((inside & near).all()) else None


def model_dtype(layer: torch.nn.Module) -> torch.dtype:
    """The dtype in which vLLM runs a layer."""
    for name in ("edge_infer_dtype", "params_dtype"):
        dtype = getattr(layer, name, None)
        if isinstance(dtype, torch.dtype):
            return dtype
    return torch.bfloat16


def scales_and_zeros(run: Run, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales fp16 and zero points uint8, [K/group, n]: `n` is the run's padded channels."""
    groups = run.k_padded // run.group_size
    scales = torch.zeros(groups, n, dtype=torch.float16)
    zeros = torch.full((groups, n), SYMMETRIC_ZERO, dtype=torch.uint8)
    first = 0
    for segment in run.segments:
        end = first + segment.n
        points = zero_points(segment)
        assert points is not None, "refuse_minimums has passed these segments"
        scales[:, first:end] = columns(segment.scales)[:, : segment.n]
        zeros[:, first:end] = points[:, : segment.n]
        first = end
    return scales, zeros


def products(
    x: torch.Tensor,
    n: Sequence[int],
    multiply: Callable[..., torch.Tensor],
    *weights: Sequence[torch.Tensor],
) -> torch.Tensor:
    """`multiply` of x and the weights of each run, its first n channels: [rows, sum of n]."""
    if x.shape[0] == 0:  # not every kernel takes no rows
        return x.new_empty(0, sum(n))
    outs = [
        multiply(x, *tensors)[:, :channels] for channels, *tensors in zip(n, *weights, strict=True)
    ]
    out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
    return out.to(x.dtype).contiguous()


def padded_columns(x: torch.Tensor, k: int) -> torch.Tensor:
    """x [rows, K] with zeros up to `k` columns, contiguous."""
    if x.shape[1] != k:
        x = torch.nn.functional.pad(x, (0, k - x.shape[1]))
    return x.contiguous()


def refuse_bits(segments: Sequence[Segment]) -> str | None:
    """The reason of a path that reads 4-bit codes only; None when all segments have them."""
    others = sorted({segment.bits for segment in segments} - {4})
    return f"{', '.join(map(str, others))} bits" if others else None


def refuse_minimums(segments: Sequence[Segment]) -> str | None:
    """The reason of a path that knows zero points only; None when it can take all segments."""
    if all(zero_points(segment) is not None for segment in segments):
        return None
    return "minimums that are no zero points"


def missing_operation(name: str) -> str | None:
    """The reason when this process has no ``torch.ops._C.<name>``; None when it has."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    if hasattr(torch.ops._C, name):
        return None
    return f"vLLM's build for this CPU has no operation {name}"


_LIBRARY = torch.library.Library("edge_infer", "FRAGMENT")


def operation(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Defines torch.ops.edge_infer.<name of schema>; torch.compile calls it without tracing in."""
    name = schema.partition("(")[0]
    if not hasattr(torch.ops.edge_infer, name):
        _LIBRARY.define(schema)
        _LIBRARY.impl(name, run, "CPU")
        _LIBRARY._register_fake(name, fake)


def operations(
    path: str,
    parts: Sequence[str],
    multiply: Callable[..., torch.Tensor],
    lookup: Callable[..., torch.Tensor],
    lookup_fake: Callable[..., torch.Tensor],
) -> None:
    """Defines ``<path>_linear`` and ``<path>_lookup`` over a run's three tensors, named `parts`.

    multiply(x [rows, K], *tensors) -> [rows, N padded]; lookup(ids int64 [rows], *tensors) ->
    [rows, K padded]. The linear takes the tensors of all runs and gives [rows, sum of n].
    """

    def linear(x: Any, first: Any, second: Any, third: Any, n: Any) -> torch.Tensor:
        return products(x, n, multiply, first, second, third)

    def linear_fake(x: Any, first: Any, second: Any, third: Any, n: Any) -> torch.Tensor:
        empty: torch.Tensor = x.new_empty(x.shape[0], sum(n))
        return empty

    lists, tensors = (", ".join(f"{kind} {part}" for part in parts) for kind in _KINDS)
    operation(f"{path}_linear(Tensor x, {lists}, int[] n) -> Tensor", linear, linear_fake)
    operation(f"{path}_lookup(Tensor ids, {tensors}) -> Tensor", lookup, lookup_fake)


_KINDS = ("Tensor[]", "Tensor")


class RepackedPath(WeightPath):
    """A path with a layout of its own, over what `operations` defined for its name and parts.

    Takes 4-bit matrices, symmetric or with minimums that are zero points.
    """

    parts: tuple[str, str, str]

    @abstractmethod
    def tile(self) -> int:
        """Channels of a block of the layout."""

    @abstractmethod
    def pack(self, run: Run, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """The run's parts; dtype: in which vLLM runs the layer."""

    def refusal(self, segments: Sequence[Segment]) -> str | None:
        return refuse_bits(segments) or refuse_minimums(segments)

    def prepare(self, layer: torch.nn.Module, segments: list[Segment]) -> None:
        dtype, joined = model_dtype(layer), runs(segments, self.tile())
        for i, run in enumerate(joined):
            for part, tensor in zip(self.parts, self.pack(run, dtype), strict=True):
                parameter = torch.nn.Parameter(tensor, requires_grad=False)
                layer.register_parameter(f"edge_infer_{part}_{i}", parameter)
        layer.edge_infer_n = [run.n for run in joined]
        layer.edge_infer_k = segments[0].k

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        linear = getattr(torch.ops.edge_infer, f"{self.name}_linear")
        weights = self._kept(layer)
        out: torch.Tensor = linear(x.reshape(-1, x.shape[-1]), *weights, layer.edge_infer_n)
        if bias is not None:
            out = out + bias.to(out.dtype)
        return out.view(*x.shape[:-1], out.shape[-1])

    def embedding(
        self, layer: torch.nn.Module, ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        lookup = getattr(torch.ops.edge_infer, f"{self.name}_lookup")
        rows: torch.Tensor = lookup(ids.reshape(-1), *(runs[0] for runs in self._kept(layer)))
        return rows[:, : layer.edge_infer_k].to(dtype).reshape(*ids.shape, layer.edge_infer_k)

    def _kept(self, layer: torch.nn.Module) -> list[list[torch.Tensor]]:
        """What `prepare` registered: for each part the tensors of all runs."""
        count = len(layer.edge_infer_n)
        return [[getattr(layer, f"edge_infer_{p}_{i}") for i in range(count)] for p in self.parts]
