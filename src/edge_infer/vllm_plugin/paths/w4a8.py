"""The w4a8 path: vLLM's kernel with int8 activations, made for AMX.

``int4_scaled_mm_cpu`` reads what ``convert_weight_packed_scale_zp`` makes of AWQ's arrays: for
blocks of 32 channels and one group of K uint8 [N/32, K/group, 16*group + 128] (codes, then sums
that correct for zero points), zero points int8 and scales f32 [N/32, K/group, 32]. Activations are
bf16; N is a multiple of 32. Only vLLM's build for AVX512 with BF16 has it; it runs
without AMX too.
"""

from __future__ import annotations

from functools import cache

import torch

from edge_infer.checkpoint.layout import pad
from edge_infer.vllm_plugin.paths import repack
from edge_infer.vllm_plugin.paths.repack import Run

TILE = 32
AWQ = 0  # the converter's name for the order of nibbles below
# Channels in AWQ's order of nibbles: 0, 2, 4, 6, 1, 3, 5, 7.
_LOW, _HIGH = [0, 4, 1, 5], [2, 6, 3, 7]


def _awq(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes [rows, N] -> int32 [rows, N/8] in AWQ's order."""
    eights = codes.reshape(codes.shape[0], -1, 8)
    packed = eights[:, :, _LOW] | eights[:, :, _HIGH] << 4
    return packed.view(torch.int32).squeeze(-1)


def convert(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """uint8 codes [K, N], scales [groups, N], uint8 zeros [groups, N] in vLLM's layout."""
    weights, points, factors = torch.ops._C.convert_weight_packed_scale_zp(
        _awq(codes), _awq(zeros), scales, AWQ
    )
    return weights, points, factors


def pack(run: Run) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A run as (weights, zero points, scales) in vLLM's layout, N padded to 32."""
    n, groups = pad(run.n, TILE), run.k_padded // run.group_size
    scales, zeros = repack.scales_and_zeros(run, n)
    weights: torch.Tensor | None = None
    points = torch.empty(n // TILE, groups, TILE, dtype=torch.int8)
    factors = torch.empty(n // TILE, groups, TILE, dtype=torch.float32)
    for first, block in repack.code_blocks(run, TILE):
        columns = slice(first, first + block.shape[0])
        tiles = slice(first // TILE, columns.stop // TILE)
        part, points[tiles], factors[tiles] = convert(
            block.t().contiguous(), scales[:, columns].contiguous(), zeros[:, columns]
        )
        if weights is None:
            weights = part.new_empty(n // TILE, *part.shape[1:])
        weights[tiles] = part
    assert weights is not None
    return weights, points, factors


@cache
def _slots(group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int64 [32, group]: the byte of a block that holds channel c's code k; and its shift, uint8.

    Asked from the converter: the index of every code, four bits at a time.
    """
    count = TILE * group_size
    index = torch.arange(count).view(group_size, TILE)
    found = torch.zeros(2, count // 2, dtype=torch.int64)
    scales, zeros = torch.ones(1, TILE), torch.zeros(1, TILE, dtype=torch.uint8)
    for shift in range(0, count.bit_length(), 4):
        codes = (index >> shift & 15).to(torch.uint8)
        line = convert(codes, scales.bfloat16(), zeros)[0].view(-1)[: count // 2]
        found[0] |= (line & 15).long() << shift
        found[1] |= (line >> 4).long() << shift
    if not torch.equal(found.view(-1).sort().values, index.view(-1)):
        raise RuntimeError("vLLM packs 4-bit weights in a layout that is not known here")
    byte = torch.empty(count, dtype=torch.int64)
    shifts = torch.empty(count, dtype=torch.uint8)
    for nibble in (0, 1):
        byte[found[nibble]] = torch.arange(count // 2)
        shifts[found[nibble]] = 4 * nibble
    return tuple(t.view(group_size, TILE).t().contiguous() for t in (byte, shifts))


def _multiply(
    x: torch.Tensor, weights: torch.Tensor, points: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    k = weights.shape[1] * _group_size(weights)
    inputs = repack.padded_columns(x.to(torch.bfloat16), k)
    out: torch.Tensor = torch.ops._C.int4_scaled_mm_cpu(inputs, weights, points, scales, None)
    return out


def _group_size(weights: torch.Tensor) -> int:
    return (weights.shape[2] - 4 * TILE) * 2 // TILE


def lookup(
    ids: torch.Tensor, weights: torch.Tensor, points: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Rows `ids` (int64 [rows]) of a matrix -> bf16 [rows, K padded]."""
    byte, shift = _slots(_group_size(weights))
    tile, channel = ids // TILE, ids % TILE
    lines = weights[tile]  # [rows, K/group, bytes]
    index = byte[channel][:, None, :].expand(-1, lines.shape[1], -1)
    values = (lines.gather(2, index) >> shift[channel][:, None, :] & 15).float()
    values -= points[tile, :, channel][:, :, None]
    values *= scales[tile, :, channel][:, :, None]
    return values.flatten(1).to(torch.bfloat16)


def _lookup_fake(
    ids: torch.Tensor, weights: torch.Tensor, points: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    k = weights.shape[1] * _group_size(weights)
    return weights.new_empty(ids.shape[0], k, dtype=torch.bfloat16)


PARTS = ("weights", "points", "scales")
repack.operations("w4a8", PARTS, _multiply, lookup, _lookup_fake)


class Path(repack.RepackedPath):
    """See the module."""

    name, parts = "w4a8", PARTS

    def unavailable(self) -> str | None:
        for name in ("convert_weight_packed_scale_zp", "int4_scaled_mm_cpu"):
            reason = repack.missing_operation(name)
            if reason is not None:
                return reason
        return None

    def tile(self) -> int:
        return TILE

    def pack(self, run: Run, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return pack(run)
