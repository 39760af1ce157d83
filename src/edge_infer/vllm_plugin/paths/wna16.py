"""The wna16 path: vLLM's own W4A16 kernel, for comparison.

``cpu_gemm_wna16`` reads blocks of 16 channels, [N/16, K, 8 bytes] seen as int32 [N/16, 2 K]: byte b
of a line holds channel 2b in its low and 2b + 1 in its high nibble. Scales are [K/group, N] in the
activations' dtype (bf16 or f16), zero points int32 [K/group, N/8] with the same order of nibbles,
or absent (8). N is a multiple of 32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edge_infer.checkpoint.layout import BLOCK_N, pad
from edge_infer.vllm_plugin.paths import WeightPath, repack
from edge_infer.vllm_plugin.paths.repack import Run
from edge_infer.vllm_plugin.segments import Segment

TILE = 32
DTYPES = (torch.bfloat16, torch.float16)


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes [..., N] -> [..., N/2] bytes, even channels in the low nibbles."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def pack(run: Run, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A run as (codes int32 [N/16, 2 K], scales dtype [K/group, N], zeros int32 [K/group, N/8]).

    N is padded to 32; zeros are empty when all of them are 8.
    """
    n, k = pad(run.n, TILE), run.k_padded
    codes = torch.empty(n // BLOCK_N, k, 8, dtype=torch.uint8)
    for first, block in repack.code_blocks(run, TILE):
        cells = block.view(-1, BLOCK_N, k).permute(0, 2, 1)
        begin = first // BLOCK_N
        codes[begin : begin + cells.shape[0]] = _pairs(cells)
    scales, zeros = repack.scales_and_zeros(run, n)
    asymmetric = any(segment.minimums is not None for segment in run.segments)
    packed = _pairs(zeros).contiguous().view(torch.int32)
    return (
        codes.view(codes.shape[0], -1).view(torch.int32),
        scales.to(dtype),
        packed if asymmetric else packed[:0],
    )


def linear(
    x: torch.Tensor,
    codes: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    zeros: Sequence[torch.Tensor],
    n: Sequence[int],
) -> torch.Tensor:
    """x [rows, K] times all runs of a layer -> [rows, sum of n], in the dtype of x."""
    return repack.products(x, n, _multiply, codes, scales, zeros)


def _multiply(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    inputs = repack.padded_columns(x.to(scales.dtype), codes.shape[1] // 2)
    out = inputs.new_empty(x.shape[0], scales.shape[1])
    points = zeros if zeros.numel() else None
    hint = _isa_hint(scales.dtype)
    torch.ops._C.cpu_gemm_wna16(inputs, codes, out, scales, points, None, 8, hint)
    return out


def _isa_hint(dtype: torch.dtype) -> str:
    """The kernel's variant; "amx" on a machine without AMX would be an illegal instruction."""
    amx = dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return "amx" if amx else "vec"


def lookup(
    ids: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Rows `ids` (int64 [rows]) of a matrix -> [rows, K padded] in the dtype of `scales`."""
    lines = codes.view(torch.uint8).view(codes.shape[0], -1, 8)
    shift = (4 * (ids % 2)).to(torch.uint8)
    cells = lines[ids // BLOCK_N, :, ids % BLOCK_N // 2] >> shift[:, None] & 15
    groups = scales.shape[0]
    values = cells.float().view(len(ids), groups, cells.shape[1] // groups)
    if zeros.numel():
        points = zeros.view(torch.uint8)[:, ids // 2].t() >> shift[:, None] & 15
        values -= points[:, :, None]
    else:
        values -= repack.SYMMETRIC_ZERO
    values *= scales[:, ids].t()[:, :, None]
    return values.view(cells.shape).to(scales.dtype)


def _linear_fake(
    x: torch.Tensor,
    codes: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    zeros: Sequence[torch.Tensor],
    n: Sequence[int],
) -> torch.Tensor:
    return x.new_empty(x.shape[0], sum(n))


def _lookup_fake(
    ids: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    return scales.new_empty(ids.shape[0], codes.shape[1] // 2)


repack.operation(
    "wna16_linear(Tensor x, Tensor[] codes, Tensor[] scales, Tensor[] zeros, int[] n) -> Tensor",
    linear,
    _linear_fake,
)
repack.operation(
    "wna16_lookup(Tensor ids, Tensor codes, Tensor scales, Tensor zeros) -> Tensor",
    lookup,
    _lookup_fake,
)


class Path(WeightPath):
    """Takes 4-bit matrices, symmetric or with minimums that are zero points."""

    name = "wna16"

    def unavailable(self) -> str | None:
        return repack.missing_operation("cpu_gemm_wna16")

    def refusal(self, segments: Sequence[Segment]) -> str | None:
        return repack.refuse_bits(segments) or repack.refuse_minimums(segments)

    def prepare(self, layer: torch.nn.Module, segments: list[Segment]) -> None:
        dtype = repack.model_dtype(layer)
        runs = repack.runs(segments, TILE)
        packed = [pack(run, dtype if dtype in DTYPES else torch.bfloat16) for run in runs]
        repack.keep_all(layer, ("codes", "scales", "zeros"), packed, runs)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        weights = repack.kept(layer, ("codes", "scales", "zeros"))
        flat = x.reshape(-1, x.shape[-1])
        out = torch.ops.edge_infer.wna16_linear(flat, *weights, layer.edge_infer_n)
        return repack.finished(out, x, bias)

    def embedding(
        self, layer: torch.nn.Module, ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        weights = [part[0] for part in repack.kept(layer, ("codes", "scales", "zeros"))]
        rows = torch.ops.edge_infer.wna16_lookup(ids.reshape(-1), *weights)
        return repack.as_embedding(layer, rows, ids, dtype)
