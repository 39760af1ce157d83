"""The wna16 path: vLLM's own W4A16 kernel, for comparison.

``cpu_gemm_wna16`` reads blocks of 16 channels, [N/16, K, 8 bytes] seen as int32 [N/16, 2 K]: byte b
of a line holds channel 2b in its low and 2b + 1 in its high nibble. Scales are [K/group, N] in the
activations' dtype (bf16 or f16), zero points int32 [K/group, N/8] with the same order of nibbles,
or absent (8). N is a multiple of 32.
"""

from __future__ import annotations

import torch

from edge_infer.checkpoint.layout import BLOCK_N, pad
from edge_infer.vllm_plugin.paths import repack
from edge_infer.vllm_plugin.paths.repack import Run

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


def _lookup_fake(
    ids: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    return scales.new_empty(ids.shape[0], codes.shape[1] // 2)


PARTS = ("codes", "scales", "zeros")
repack.operations("wna16", PARTS, _multiply, lookup, _lookup_fake)


class Path(repack.RepackedPath):
    """See the module."""

    name, parts = "wna16", PARTS

    def unavailable(self) -> str | None:
        return repack.missing_operation("cpu_gemm_wna16")

    def tile(self) -> int:
        return TILE

    def pack(self, run: Run, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return pack(run, dtype if dtype in DTYPES else torch.bfloat16)
