"""What this process holds in memory now, and giving back what it no longer needs."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

from edge_infer.device.cgroup import read_text

SMAPS = Path("/proc/self/smaps_rollup")
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class MemoryUse:
    """Resident bytes of one process."""

    anonymous: int
    """What no file backs: heap, stacks, the KV pool."""
    file_backed: int
    """Pages of mapped files: the weights, libraries."""


def kilobyte_fields(text: str) -> dict[str, int]:
    """``Name:  123 kB`` lines as bytes."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) == 2 and fields[1] == "kB" and fields[0].isdigit():
            values[name] = int(fields[0]) * 1024
    return values


def own_memory(path: Path = SMAPS) -> MemoryUse:
    """Memory of this process; zeros where the kernel does not show it."""
    values = kilobyte_fields(read_text(path) or "")
    rss, anonymous = values.get("Rss", 0), values.get("Anonymous", 0)
    return MemoryUse(anonymous, max(0, rss - anonymous))


def locked_bytes() -> int:
    """Memory of this process that mlock holds; zero where the kernel does not show it."""
    return kilobyte_fields(read_text(STATUS) or "").get("VmLck", 0)


@dataclass(frozen=True)
class HeapUse:
    """What the C library's allocator holds, in bytes; all zero where it does not tell."""

    in_use: int
    """Handed out from its heaps."""
    mapped: int
    """Handed out as mappings of their own: large blocks."""

    @property
    def total(self) -> int:
        return self.in_use + self.mapped


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_use() -> HeapUse:
    """The C heap of this process now (glibc 2.33 or newer)."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return HeapUse(0, 0)
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return HeapUse(in_use=info.uordblks, mapped=info.hblkhd)


def small_object_bytes() -> int:
    """Bytes of the arenas in which Python keeps its small objects; 0 where it does not tell."""
    dump = getattr(ctypes.pythonapi, "_PyObject_DebugMallocStats", None)
    libc = ctypes.CDLL(None)
    if dump is None or not hasattr(libc, "open_memstream"):
        return 0
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    if not stream:
        return 0
    dump(ctypes.c_void_p(stream))
    libc.fclose(ctypes.c_void_p(stream))
    report = ctypes.string_at(text, size.value).decode(errors="replace")
    libc.free(text)
    found = re.search(r"(\d+) arenas \* (\d+) bytes/arena", report)
    return int(found[1]) * int(found[2]) if found else 0


def give_back_heap() -> None:
    """Returns freed heap pages to the system, where the C library can (glibc).

    After a large structure was parsed, most of the heap is free but still resident.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
