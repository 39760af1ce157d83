"""The tinygemm path: torch's W4A16 kernel, and for many rows its layout dequantized block by block.

torch.ops.aten._weight_int4pack_mm_for_cpu reads tiles of channels, uint8 [N/width, K,
width/2], and pairs (scale, zero) [K/group, N, 2] in the activations' dtype; a value is
``scale*(q-8) + zero``. The width of a tile and which channel a nibble holds depend on the
instruction set that torch uses (with AVX512 64 wide, channel d in the low nibble of byte d, d + 32
in the high one), so torch's own converter is asked once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from edge_infer.checkpoint.layout import pad
from edge_infer.vllm_plugin import flags
from edge_infer.vllm_plugin.paths import repack
from edge_infer.vllm_plugin.paths.repack import Run
from edge_infer.vllm_plugin.segments import Segment

ONE_LAYOUT = "EDGE_INFER_VLLM_ONE_LAYOUT"
# From so many rows on, dequantizing a matrix and multiplying with torch is faster than the kernel,
# whose time is proportional to the rows. Both took the same near here on AVX512-BF16, without AMX.
MATMUL_ROWS = 64
# f32 weights of a block while it is dequantized: they stay in the second-level cache.
BLOCK_BYTES = 2 << 20

_buffers = threading.local()

# (first byte, end byte, first channel, channel step): bytes whose channels are evenly spaced.
Stretch = tuple[int, int, int, int]


@dataclass(frozen=True)
class Tiles:
    """Torch's layout: `width` channels a tile, and which of them a line's nibbles hold."""

    width: int
    low: tuple[Stretch, ...]
    high: tuple[Stretch, ...]

    def pack(self, codes: torch.Tensor) -> torch.Tensor:
        """uint8 codes [N, K], N a multiple of the width -> uint8 [N/width, K, width/2]."""
        cells = codes.view(-1, self.width, codes.shape[1]).permute(0, 2, 1)
        tiles = torch.empty(*cells.shape[:2], self.width // 2, dtype=torch.uint8)
        for stretch in self.low:
            tiles[:, :, stretch[0] : stretch[1]] = cells[:, :, _channels(stretch)]
        for stretch in self.high:
            tiles[:, :, stretch[0] : stretch[1]] |= cells[:, :, _channels(stretch)] << 4
        return tiles


def _channels(stretch: Stretch) -> slice:
    begin, end, first, step = stretch
    return slice(first, first + (end - begin) * step, step)


@cache
def layout() -> Tiles:
    """What torch's converter makes in this process.

    Raises RuntimeError when that is not tiles of 64, 32 or 16 channels, K lines each.
    """
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (128, 96), dtype=torch.uint8, generator=generator)
    theirs = _converted(codes)
    for width in (64, 32, 16):
        tiles = _layout_of_width(width)
        if tiles is not None and torch.equal(theirs, tiles.pack(codes).view_as(theirs)):
            return tiles
    raise RuntimeError("torch packs 4-bit weights in a layout that is not known here")


def _converted(codes: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    return packed


def _layout_of_width(width: int) -> Tiles | None:
    """The order of channels in the first line of a tile, if tiles have this width."""
    channels = torch.arange(128, dtype=torch.int32)
    low, high = (torch.zeros(width // 2, dtype=torch.int64) for _ in range(2))
    for shift in (0, 4):
        codes = (channels >> shift & 15)[:, None].expand(128, 32).contiguous()
        line = _converted(codes).view(-1)[: width // 2]
        low += (line & 15).long() << shift
        high += (line >> 4).long() << shift
    if sorted(low.tolist() + high.tolist()) != list(range(width)):
        return None
    return Tiles(width, _stretches(low.tolist()), _stretches(high.tolist()))


def _stretches(channels: list[int]) -> tuple[Stretch, ...]:
    found, begin = [], 0
    while begin < len(channels):
        step = channels[begin + 1] - channels[begin] if begin + 1 < len(channels) else 1
        end = begin + 1
        while end < len(channels) and channels[end] - channels[end - 1] == step:
            end += 1
        found.append((begin, end, channels[begin], step))
        begin = end
    return tuple(found)


def pack(run: Run, dtype: torch.dtype, rows: bool) -> tuple[torch.Tensor, ...]:
    """A run as (tiles uint8, pairs dtype [K/group, N, 2], rows uint8 or empty).

    N is padded to whole tiles with channels of zeros. `rows` asks for the row-major duplicate too,
    [N, K/2] with the code of an even k in the low nibble of byte k/2.
    """
    width = layout().width
    n, k = pad(run.n, width), run.k_padded
    tiles = torch.empty(n // width, k, width // 2, dtype=torch.uint8)
    duplicate = torch.empty(n if rows else 0, k // 2, dtype=torch.uint8)
    for first, codes in repack.code_blocks(run, width):
        end = first + codes.shape[0]
        tiles[first // width : end // width] = layout().pack(codes)
        if rows:
            duplicate[first:end] = codes[:, 0::2] | codes[:, 1::2] << 4
    pairs = torch.zeros(k // run.group_size, n, 2, dtype=dtype)
    first = 0
    for segment in run.segments:
        end = first + segment.n
        scales = repack.columns(segment.scales)[:, : segment.n]
        pairs[:, first:end, 0] = scales
        if segment.minimums is not None:
            minimums = repack.columns(segment.minimums)[:, : segment.n].float()
            pairs[:, first:end, 1] = minimums + 8 * scales.float()
        first = end
    return tiles, pairs, duplicate


def _fill(tiles: torch.Tensor, begin: int, end: int, out: torch.Tensor) -> None:
    """Codes of tiles [begin, end) -> out f32 [K, channels]."""
    cells = out.view(out.shape[0], end - begin, layout().width).permute(1, 0, 2)
    lines = tiles[begin:end]
    low, high = lines & 15, lines >> 4
    for half, stretches in ((low, layout().low), (high, layout().high)):
        for stretch in stretches:
            cells[:, :, _channels(stretch)] = half[:, :, stretch[0] : stretch[1]]


def _fill_rows(rows: torch.Tensor, begin: int, end: int, out: torch.Tensor) -> None:
    """The same from the row-major duplicate."""
    width = layout().width
    lines = rows[begin * width : end * width].t()
    out[0::2] = lines & 15
    out[1::2] = lines >> 4


def dequantize(
    tiles: torch.Tensor,
    pairs: torch.Tensor,
    rows: torch.Tensor,
    begin: int,
    end: int,
    out: torch.Tensor,
) -> None:
    """Tiles [begin, end) -> out [K, channels] in the dtype of `pairs`.

    From the row-major duplicate `rows` when it is not empty; the values are the same bits.
    """
    k, groups, width = tiles.shape[1], pairs.shape[0], layout().width
    values = _scratch("values", torch.float32, k, (end - begin) * width)
    if rows.numel():
        _fill_rows(rows, begin, end, values)
    else:
        _fill(tiles, begin, end, values)
    scales, zeros = pairs[:, None, begin * width : end * width].float().unbind(-1)
    # apart, because torch multiplies faster by scales that lie side by side
    grouped = values.view(groups, k // groups, -1)
    grouped.sub_(8).mul_(scales.contiguous()).add_(zeros.contiguous())
    out.copy_(values)


def _matmul(
    x: torch.Tensor, tiles: torch.Tensor, pairs: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """x [rows, K] -> [rows, N padded]: each block of weights exists for the time of its product."""
    (count, k), width = tiles.shape[:2], layout().width
    step = max(1, BLOCK_BYTES // (k * width * 4))
    out = x.new_empty(x.shape[0], count * width)
    for begin in range(0, count, step):
        end = min(begin + step, count)
        weights = _scratch("weights", pairs.dtype, k, (end - begin) * width)
        dequantize(tiles, pairs, rows, begin, end, weights)
        out[:, begin * width : end * width] = x @ weights
    return out


def _scratch(name: str, dtype: torch.dtype, rows: int, columns: int) -> torch.Tensor:
    """An uninitialized [rows, columns], the same memory each time, so that it stays mapped."""
    count = rows * columns
    flat: torch.Tensor | None = getattr(_buffers, name, None)
    if flat is None or flat.dtype != dtype or flat.numel() < count:
        flat = torch.empty(count, dtype=dtype)
        setattr(_buffers, name, flat)
    return flat[:count].view(rows, columns)


def _multiply(
    x: torch.Tensor, tiles: torch.Tensor, pairs: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    k = tiles.shape[1]
    inputs = repack.padded_columns(x.to(pairs.dtype), k)
    if x.shape[0] >= MATMUL_ROWS:
        return _matmul(inputs, tiles, pairs, rows)
    packed, group = tiles.view(-1, k // 2), k // pairs.shape[0]
    out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(inputs, packed, group, pairs)
    return out


def lookup(
    ids: torch.Tensor, tiles: torch.Tensor, pairs: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Rows `ids` (int64 [rows]) of a matrix -> [rows, K padded] in the dtype of `pairs`."""
    byte, shift = _slots()
    width = layout().width
    channel = ids % width
    codes = tiles[ids // width, :, byte[channel]] >> shift[channel][:, None] & 15
    pair = pairs.permute(1, 0, 2)[ids].float()[:, :, None]
    grouped = codes.float().view(len(ids), pairs.shape[0], tiles.shape[1] // pairs.shape[0])
    values = grouped.sub_(8).mul_(pair[..., 0]).add_(pair[..., 1])
    return values.view(codes.shape).to(pairs.dtype)


@cache
def _slots() -> tuple[torch.Tensor, torch.Tensor]:
    """For each channel of a tile, its byte of a line and the shift of its nibble."""
    width = layout().width
    byte, shift = torch.zeros(width, dtype=torch.int64), torch.zeros(width, dtype=torch.uint8)
    for nibble, stretches in enumerate((layout().low, layout().high)):
        for stretch in stretches:
            byte[_channels(stretch)] = torch.arange(stretch[0], stretch[1])
            shift[_channels(stretch)] = 4 * nibble
    return byte, shift


def _lookup_fake(
    ids: torch.Tensor, tiles: torch.Tensor, pairs: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    return pairs.new_empty(ids.shape[0], tiles.shape[1])


PARTS = ("tiles", "pairs", "rows")
repack.operations("tinygemm", PARTS, _multiply, lookup, _lookup_fake)


class Path(repack.RepackedPath):
    """Takes 4-bit matrices, with and without minimums."""

    name, parts = "tinygemm", PARTS

    @property
    def graph(self) -> str:
        return self.name if flags.enabled(ONE_LAYOUT) else f"{self.name}, two layouts"

    def unavailable(self) -> str | None:
        for name in ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu"):
            if not hasattr(torch.ops.aten, name):
                return f"this torch has no operation {name}"
        try:
            layout()
        except RuntimeError as e:
            return str(e)
        return None

    def refusal(self, segments: Sequence[Segment]) -> str | None:
        return repack.refuse_bits(segments)

    def tile(self) -> int:
        return layout().width

    def pack(self, run: Run, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return pack(run, dtype, not flags.enabled(ONE_LAYOUT))
