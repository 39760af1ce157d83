"""Every resident byte of a process by name: what the plan said, what is there, and the rest.

For its own process the ledger asks the owners: the weight maps, the KV pool, the programs, the
allocators. For another process it has the memory map, in which it finds weight files, and asks it
for its tensors (vLLM's processes answer, where our plugin is loaded in them).
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_infer.checkpoint.reader import Checkpoint
from edge_infer.device import tensor_memory, tensor_owners
from edge_infer.device.mapping_names import is_heap, name_of
from edge_infer.device.mappings import PAGE, Mapping, page_cache, read_mappings, residency
from edge_infer.device.tensor_memory import PADDING
from edge_infer.device.usage import HeapUse, heap_use, own_memory, small_object_bytes

if TYPE_CHECKING:
    from edge_infer.engine.llm import LLM
    from edge_infer.engine.runner import ModelRunner

KV_POOL = "KV pool"
SMALL_OBJECTS = "Python: small objects"
HEAP = "heap: Python's larger objects, libraries"
HEAP_FREE = "heap: free, kept by the allocator"
UNEXPLAINED = "unexplained"


@dataclass
class Line:
    """One owner of memory, in bytes."""

    name: str
    anonymous: int = 0
    """Resident, backed by no file: only this process has it."""
    file_backed: int = 0
    """Resident pages of mapped files, which processes share."""
    planned: int | None = None
    """What the owner was planned to take at most; None where nothing was planned."""
    page_cache: int | None = None
    """Of weight files: what the system holds in memory, whoever read it."""


@dataclass(frozen=True)
class Unread:
    """Bytes of a tensor that no operation of the programs reads."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Tensor:
    """One tensor of another process; resident bytes of it."""

    name: str
    """Its paths in the model, where it has some: tied weights have two."""
    bytes: int
    anonymous: int
    file_backed: int


LARGEST = 10


@dataclass
class Ledger:
    """The memory of one process. The lines add up to what the kernel counts as resident."""

    pid: int
    model: str | None
    lines: list[Line] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    """Empty too for another process, whose programs are out of sight."""
    largest: list[Tensor] = field(default_factory=list)
    """The ten largest tensors of a process that answered."""
    notes: list[str] = field(default_factory=list)
    """What the reader should know about how this was found."""

    @property
    def anonymous(self) -> int:
        return sum(line.anonymous for line in self.lines)

    @property
    def file_backed(self) -> int:
        return sum(line.file_backed for line in self.lines)

    @property
    def unexplained(self) -> int:
        """Anonymous bytes without an owner."""
        return self.line(UNEXPLAINED).anonymous

    def line(self, name: str) -> Line:
        """The line of that name, made where there is none."""
        for line in self.lines:
            if line.name == name:
                return line
        self.lines.append(Line(name))
        return self.lines[-1]

    def as_dict(self) -> dict[str, Any]:
        """As JSON. Sizes in bytes."""
        return {
            "pid": self.pid,
            "model": self.model,
            "anonymous": self.anonymous,
            "file_backed": self.file_backed,
            "unexplained": self.unexplained,
            "lines": [asdict(line) for line in self.lines],
            "unread": [asdict(one) for one in self.unread],
            "largest": [asdict(one) for one in self.largest],
            "notes": self.notes,
        }


class _Book:
    """Fills a ledger from a memory map: owners take their ranges first, mappings get the rest."""

    def __init__(self, found: Ledger, mappings: list[Mapping]) -> None:
        self.found = found
        self.mappings = mappings
        self._starts = [m.start for m in mappings]
        self._heap = [is_heap(mappings, i) for i in range(len(mappings))]
        self._taken = [[0, 0] for _ in mappings]  # anonymous, file-backed
        self.heap_taken = self.mapped_taken = 0  # by owners whose memory is on the C heap

    def take(
        self,
        begin: int,
        end: int,
        parts: list[tuple[str, int, int]],
        rest: str,
        on_heap: bool = False,
    ) -> None:
        """Gives the resident bytes of [begin, end) to the lines of ``parts``, and to ``rest`` what
        lies between them."""
        pages = residency(begin, end, self.found.pid)
        sums = {
            rest: [pages.anonymous.bytes_in(begin, end), pages.file_backed.bytes_in(begin, end)]
        }
        for name, first, last in parts:
            first, last = max(first, begin), min(last, end)
            if first >= last:
                continue
            inside = (
                pages.anonymous.bytes_in(first, last),
                pages.file_backed.bytes_in(first, last),
            )
            for kind, size in enumerate(inside):
                sums.setdefault(name, [0, 0])[kind] += size
                sums[rest][kind] -= size
        for name, (anonymous, backed) in sums.items():
            line = self.found.line(name)
            line.anonymous += anonymous
            line.file_backed += backed
        at = max(0, bisect_right(self._starts, begin) - 1)
        while at < len(self.mappings) and self.mappings[at].start < end:
            first, last = max(begin, self.mappings[at].start), min(end, self.mappings[at].end)
            if first < last:
                anonymous = pages.anonymous.bytes_in(first, last)
                self._taken[at][0] += anonymous
                self._taken[at][1] += pages.file_backed.bytes_in(first, last)
                if on_heap and self._heap[at]:
                    self.heap_taken += anonymous
                elif on_heap:
                    self.mapped_taken += anonymous
            at += 1

    def file_at(self, address: int) -> Path | None:
        """The file that is mapped there."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self.mappings[at].end:
            return None
        return self.mappings[at].file

    def take_file(
        self, checkpoint: Checkpoint, file: Path, begin: int, end: int, base: int
    ) -> None:
        """A weight file, or a part of it, mapped at [begin, end); byte 0 would lie at ``base``."""
        spans = tensor_memory.parts(checkpoint, file)
        moved = [(name, base + first, base + last) for name, first, last in spans]
        self.take(begin, end, moved, PADDING)

    def rest(self) -> tuple[int, int]:
        """Gives every mapping's untaken bytes to its own line; returns the anonymous bytes of the
        C heap and of mappings that say nothing about their owner."""
        heap = other = 0
        for at, m in enumerate(self.mappings):
            anonymous = max(0, m.anonymous - self._taken[at][0])
            backed = max(0, m.file_backed - self._taken[at][1])
            if not anonymous and not backed:
                continue
            name = None if self._heap[at] else name_of(self.mappings, at)
            if name is not None:
                self.found.line(name).anonymous += anonymous
                self.found.line(name).file_backed += backed
                continue
            if self._heap[at]:
                heap += anonymous
            else:
                other += anonymous
            if backed:
                self.found.line("shared memory").file_backed += backed
        return heap, other


def ledger(llm: LLM) -> Ledger:
    """The ledger of this process, which runs ``llm``. Waits for a running step; a suspended model
    is left as it is. Raises StorageError where the kernel hides the memory map."""
    found = Ledger(os.getpid(), llm.path.name)
    with llm.lock:
        small, heap = small_object_bytes(), heap_use()
        book = _Book(found, read_mappings())
        if not llm.suspended:
            _take_model(book, llm.runner)
    _take_rest(book, small, heap, llm.tokenizer.heap_bytes)
    return _ordered(found)


def process_ledger(pid: int) -> Ledger:
    """The ledger of another process: by kind of mapping, weight files by tensor group. Its heap is
    one line, and anonymous memory without a name is unexplained, unless the process answers: then
    its tensors, Python's objects and the C heap are named as in the ledger of this process.

    Raises StorageError where there is no such process or it may not be read.
    """
    answer = tensor_owners.ask(pid)
    mappings = read_mappings(pid)
    model = tensor_memory.mapped_model(mappings)
    found = Ledger(pid, None if model is None else model.path.name)
    book = _Book(found, mappings)
    found.notes += _children(pid)
    if model is not None:
        for m in mappings:
            if m.file in model.files:
                book.take_file(model, m.file, m.start, m.end, m.start - m.offset)
        _plan_weights(found, model)
    if answer is None:
        heap, other = book.rest()
        found.line(HEAP).anonymous += heap
        found.line(UNEXPLAINED).anonymous += other
        if any(m.file is not None and m.file.name == "libtorch_cpu.so" for m in mappings):
            found.notes.append(_SILENT)
        return _ordered(found)
    _take_tensors(book, answer.storages, set(model.files) if model is not None else set())
    _take_rest(book, answer.small_objects, HeapUse(answer.heap_in_use, answer.heap_mapped))
    return _ordered(found)


_SILENT = (
    "This process has torch and does not answer, so its tensors are among what is unexplained: "
    "vLLM's processes answer where edge-infer is installed beside vLLM."
)


def _children(pid: int) -> list[str]:
    """A note on each process below that one with much memory: what is looked for may be there."""
    import psutil

    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            size = own_memory(Path(f"/proc/{child.pid}/smaps_rollup")).anonymous
            if size >= _MUCH:
                found.append(
                    f"Process {child.pid} below it has {size / 1e6:.0f} MB of anonymous memory: "
                    f"edge-infer ledger {child.pid}"
                )
    return found


_MUCH = 64 << 20


def _take_tensors(
    book: _Book, storages: Iterable[tensor_owners.Storage], weight_files: set[Path]
) -> None:
    """Storages by their lines; what lies in a weight file has its line already."""
    tensors: list[tuple[int, int, str]] = []  # bytes, address, name
    for storage in storages:
        begin, end = storage.address, storage.address + storage.bytes
        file = book.file_at(begin)
        if file not in weight_files:
            book.take(begin, end, [], storage.line, on_heap=file is None)
        if file is None:  # one block: its tensors are views of the same memory
            others = f" and {n} more" if (n := len(storage.views) - 1) > 0 else ""
            name = storage.views[0].name + others if storage.views else storage.line
            tensors.append((storage.bytes, begin, name))
        else:
            tensors += [(v.bytes, begin + v.offset, v.name) for v in storage.views]
    for size, begin, name in sorted(tensors, reverse=True)[:LARGEST]:
        pages = residency(begin, begin + size, book.found.pid)
        parts = (p.bytes_in(begin, begin + size) for p in (pages.anonymous, pages.file_backed))
        book.found.largest.append(Tensor(name, size, *parts))


def _take_rest(book: _Book, small: int, heap: HeapUse, tokenizer: int | None = None) -> None:
    """What no owner took: Python's ``small`` objects, the C ``heap``, the ``tokenizer`` on it."""
    heap_bytes, other = book.rest()
    in_heap = min(max(0, heap.in_use - book.heap_taken), heap_bytes)
    objects = min(small, other)
    mapped = min(max(0, heap.mapped - book.mapped_taken), other - objects)
    of_tokenizer = min(tokenizer or 0, in_heap + mapped)
    for name, size in (
        ("tokenizer", of_tokenizer),
        (HEAP, in_heap + mapped - of_tokenizer),
        (HEAP_FREE, heap_bytes - in_heap),
        (SMALL_OBJECTS, objects),
        (UNEXPLAINED, other - objects - mapped),
    ):
        if name != "tokenizer" or tokenizer is not None:
            book.found.line(name).anonymous += size


def _take_model(book: _Book, runner: ModelRunner) -> None:
    found, pool = book.found, runner.pool
    for m in runner.weights.maps:
        end = m.address + -(-m.size // PAGE) * PAGE  # the last page belongs to the file
        book.take_file(runner.checkpoint, Path(m.path), m.address, end, m.address)
    _plan_weights(found, runner.checkpoint)
    book.take(pool.address, pool.address + pool.bytes, [], KV_POOL)
    found.line(KV_POOL).planned = pool.bytes
    for _, program in runner.programs():
        for name, address, size, on_heap in program.memory:
            if size:
                book.take(address, address + size, [], name, on_heap)
                found.line(name).planned = (found.line(name).planned or 0) + size
    builders = [builder for builder, _ in runner.programs()]
    for name, size in tensor_memory.unread(runner.checkpoint, runner.weights.maps, builders):
        found.unread.append(Unread(name, size))


def _plan_weights(found: Ledger, checkpoint: Checkpoint) -> None:
    for name, size in tensor_memory.planned(checkpoint).items():
        found.line(name).planned = size
    for file in checkpoint.files:
        cached = page_cache(file)
        if cached is None:
            continue
        rest = cached.bytes_in(0, file.stat().st_size)
        for name, begin, end in tensor_memory.parts(checkpoint, file):
            size = cached.bytes_in(begin, end)
            found.line(name).page_cache = (found.line(name).page_cache or 0) + size
            rest -= size
        found.line(PADDING).page_cache = (found.line(PADDING).page_cache or 0) + rest


def _ordered(found: Ledger) -> Ledger:
    """Largest first, what has no owner last."""
    found.lines.sort(key=lambda x: (x.name == UNEXPLAINED, -(x.anonymous + x.file_backed)))
    return found
