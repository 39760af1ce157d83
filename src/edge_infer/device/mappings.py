"""The memory map of a process, page by page: smaps, pagemap, and mincore for the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge_infer.errors import StorageError

PAGE = mmap.PAGESIZE
_HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ \d+ *(.*)")
_FIELDS = ("Rss", "Anonymous", "Swap")
_PRESENT, _FILE = np.uint64(1 << 63), np.uint64(1 << 61)


@dataclass
class Mapping:
    """One line of the memory map; sizes in bytes."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str
    """A file, a name in brackets, or nothing."""
    resident: dict[str, int] = field(default_factory=dict)

    @property
    def anonymous(self) -> int:
        return self.resident.get("Anonymous", 0)

    @property
    def file_backed(self) -> int:
        return max(0, self.resident.get("Rss", 0) - self.anonymous)

    @property
    def file(self) -> Path | None:
        """The mapped file, also where it has been deleted since."""
        return Path(self.path.removesuffix(" (deleted)")) if self.path.startswith("/") else None


def read_mappings(pid: int | str = "self") -> list[Mapping]:
    """The mappings of a process, ascending. Raises StorageError where it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/smaps").read_text(errors="replace")
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise StorageError(
            f"The memory map of process {pid} cannot be read: {reason}.",
            remedy="Name a running process of your own, or be root.",
        ) from None
    return parse_smaps(text)


def parse_smaps(text: str) -> list[Mapping]:
    """The mappings in the text of /proc/PID/smaps."""
    found: list[Mapping] = []
    for line in text.splitlines():
        header = _HEADER.fullmatch(line)
        if header:
            start, end, permissions, offset, path = header.groups()
            found.append(Mapping(int(start, 16), int(end, 16), permissions, int(offset, 16), path))
            continue
        name, _, rest = line.partition(":")
        if found and name in _FIELDS:
            found[-1].resident[name] = int(rest.split()[0]) * 1024
    return found


class Pages:
    """Which pages of one address range are resident, and where bytes of it lie."""

    def __init__(self, start: int, resident: np.ndarray) -> None:
        """``start``: page aligned; ``resident``: bool for each page."""
        self._start = start
        self._resident = resident
        self._below = np.concatenate(([0], np.cumsum(resident, dtype=np.int64)))

    def bytes_in(self, begin: int, end: int) -> int:
        """Resident bytes of [begin, end), which may begin and end inside a page."""
        return self._until(end) - self._until(begin)

    def _until(self, address: int) -> int:
        inside = max(0, min(address - self._start, len(self._resident) * PAGE))
        page, rest = divmod(inside, PAGE)
        partly = rest if rest and self._resident[page] else 0
        return int(self._below[page]) * PAGE + partly


@dataclass(frozen=True)
class Residency:
    """The pages of an address range that a process itself has mapped in."""

    anonymous: Pages
    file_backed: Pages


def residency(begin: int, end: int, pid: int | str = "self") -> Residency:
    """From /proc/PID/pagemap. Raises StorageError where it cannot be read."""
    first, last = begin // PAGE, -(-end // PAGE)
    entries = np.zeros(last - first, np.uint64)
    try:
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
            for at in range(0, len(entries), 1 << 16):
                count = min(1 << 16, len(entries) - at)
                file.seek((first + at) * 8)
                part = np.frombuffer(file.read(count * 8), np.uint64)
                entries[at : at + len(part)] = part
    except OSError as e:
        raise StorageError(
            f"The page map of process {pid} cannot be read: {e.strerror}.",
            remedy="Name a running process of your own, or be root.",
        ) from None
    present, backed = (entries & _PRESENT) != 0, (entries & _FILE) != 0
    start = first * PAGE
    return Residency(Pages(start, present & ~backed), Pages(start, present & backed))


def page_cache(file: Path) -> Pages | None:
    """Which pages of a file the system has in memory, whoever read them; addresses are offsets.

    None where the kernel does not say. It tells of files that the caller owns or may write, and
    counts every page of other files as present.
    """
    mincore = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    size = file.stat().st_size
    if mincore is None or size == 0:
        return None
    pages = np.zeros(-(-size // PAGE), np.uint8)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A private mapping, because ctypes wants to be able to write; nothing touches it.
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as view:
            first = ctypes.c_char.from_buffer(view)
            status = mincore(
                ctypes.c_void_p(ctypes.addressof(first)),
                ctypes.c_size_t(size),
                ctypes.c_void_p(pages.ctypes.data),
            )
            del first  # the view cannot be closed before
    finally:
        os.close(descriptor)
    return Pages(0, (pages & 1).astype(bool)) if status == 0 else None
