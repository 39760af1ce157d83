"""The files that loaded tensors are views of, and what happens when one is truncated in use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from edge_infer import _native
from edge_infer.device.mappings import Mapping, parse_smaps

if TYPE_CHECKING:
    import torch

MAPS = Path("/proc/self/maps")  # the lines of smaps without its counters
_guards: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()


def guard(tensor: torch.Tensor) -> Any:
    """The guard of the mapped file in which a tensor lies, one a file; None for other memory. The
    first one of a file also asks for large pages.

    While it lives, reading a page that the file no longer has gives zeros, and ``guard.check()``
    raises WeightsLostError, instead of the process ending by SIGBUS. Keep it no longer than the
    tensor.
    """
    begin = tensor.data_ptr()
    end = begin + tensor.nbytes
    for (first, last), known in _guards.items():
        if first <= begin and end <= last:
            return known
    found = mapped_range(begin, parse_smaps(MAPS.read_text(errors="replace")))
    if found is None or end > found[1]:
        return None
    first, last, path = found
    made = _native.MapGuard(first, last - first, path)
    # Of the whole file: advice on each tensor would divide the map within a large page.
    _native.ask_for_large_pages(first, last - first)
    _guards[first, last] = made
    return made


def mapped_range(address: int, mappings: list[Mapping]) -> tuple[int, int, str] | None:
    """(begin, end, path) of the mapped file around an address; None where no file is mapped.

    Advice on parts of a map splits it into several lines, which are joined again.
    """
    at = next((i for i, m in enumerate(mappings) if m.start <= address < m.end), None)
    if at is None or mappings[at].file is None:
        return None

    def joins(a: Mapping, b: Mapping) -> bool:
        return a.end == b.start and a.path == b.path and a.offset + a.end - a.start == b.offset

    first = last = at
    while first > 0 and joins(mappings[first - 1], mappings[first]):
        first -= 1
    while last + 1 < len(mappings) and joins(mappings[last], mappings[last + 1]):
        last += 1
    return mappings[first].start, mappings[last].end, str(mappings[at].file)


def check(guards: Iterable[Any]) -> None:
    """Raises WeightsLostError when a page of one of these files could not be read."""
    for one in guards:
        one.check()
