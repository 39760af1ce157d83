"""Weight files as owners of memory: tensors by group, and which of them programs read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_infer.checkpoint.inspect import role_of
from edge_infer.checkpoint.reader import Checkpoint
from edge_infer.device.mappings import Mapping
from edge_infer.errors import EdgeInferError

if TYPE_CHECKING:
    from edge_infer.models.builder import ProgramBuilder

PADDING = "weights: headers and padding"


def parts(checkpoint: Checkpoint, file: Path) -> list[tuple[str, int, int]]:
    """(line, begin, end) of every tensor in a file, as offsets into it."""
    return [
        (f"weights: {role_of(t.name)}", t.offset, t.offset + t.nbytes)
        for t in checkpoint.tensors.values()
        if t.file == file
    ]


def planned(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes of each line of the weights when all of them are resident."""
    sizes: dict[str, int] = {}
    for file in checkpoint.files:
        found = parts(checkpoint, file)
        for name, begin, end in found:
            sizes[name] = sizes.get(name, 0) + end - begin
        rest = file.stat().st_size - sum(end - begin for _, begin, end in found)
        sizes[PADDING] = sizes.get(PADDING, 0) + rest
    return sizes


def mapped_model(mappings: Iterable[Mapping]) -> Checkpoint | None:
    """The first checkpoint folder of which a weight file is mapped."""
    tried = set()
    for m in mappings:
        if m.file is None or m.file.suffix != ".safetensors" or m.file.parent in tried:
            continue
        tried.add(m.file.parent)
        try:
            return Checkpoint.open(m.file.parent)
        except (EdgeInferError, OSError):
            continue  # no checkpoint that we can read: its files keep their names
    return None


def unread(
    checkpoint: Checkpoint, maps: Sequence[Any], builders: Iterable[ProgramBuilder]
) -> list[tuple[str, int]]:
    """(tensor, bytes) of what no operation of the programs reads, largest first."""
    read = _merged(r for b in builders for o in b.operations() for r in o.regions())
    begins = [begin for begin, _ in read]
    address = {Path(m.path): m.address for m in maps}
    found = []
    for t in checkpoint.tensors.values():
        begin = address[t.file] + t.offset
        end = begin + t.nbytes
        covered, i = 0, max(0, bisect_right(begins, begin) - 1)
        while i < len(read) and read[i][0] < end:
            covered += max(0, min(end, read[i][1]) - max(begin, read[i][0]))
            i += 1
        if covered < t.nbytes:
            found.append((t.name, t.nbytes - covered))
    return sorted(found, key=lambda one: -one[1])


def _merged(regions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(begin, end) of (address, bytes) regions, ascending and without overlaps."""
    out: list[tuple[int, int]] = []
    for begin, end in sorted((a, a + n) for a, n in regions):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
