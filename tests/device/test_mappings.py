"""The memory map page by page, against memory that the test lays out itself."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from edge_infer.device import mapping_names as names
from edge_infer.device.mappings import (
    PAGE,
    Mapping,
    Pages,
    page_cache,
    parse_smaps,
    read_mappings,
    residency,
)
from edge_infer.errors import StorageError

SMAPS = """\
5500-5700 r-xp 00001000 08:01 42                         /usr/lib/a name.so (deleted)
Rss:                   8 kB
Pss:                   4 kB
Anonymous:             4 kB
VmFlags: rd ex mr mw me
7000-9000 rw-p 00000000 00:00 0                          [heap]
Rss:                  12 kB
Anonymous:            12 kB
Swap:                  0 kB
"""


def test_parse_smaps() -> None:
    first, second = parse_smaps(SMAPS)
    assert (first.start, first.end, first.offset) == (0x5500, 0x5700, 0x1000)
    assert first.file == Path("/usr/lib/a name.so")
    assert (first.anonymous, first.file_backed) == (4096, 4096)
    assert (second.path, second.file, second.anonymous) == ("[heap]", None, 12288)


def test_bytes_of_a_range_that_cuts_pages() -> None:
    pages = Pages(PAGE, np.array([True, False, True]))  # addresses PAGE to 4*PAGE
    assert pages.bytes_in(0, 10 * PAGE) == 2 * PAGE
    assert pages.bytes_in(PAGE + 100, PAGE + 300) == 200
    assert pages.bytes_in(2 * PAGE - 50, 3 * PAGE + 70) == 50 + 70
    assert pages.bytes_in(2 * PAGE, 3 * PAGE) == 0


def test_residency_sees_the_touched_pages_of_this_process() -> None:
    with mmap.mmap(-1, 100 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        begin = ctypes.addressof(ctypes.c_char.from_buffer(block))
        for page in range(10, 30):
            block[page * PAGE] = 1
        found = residency(begin, begin + 100 * PAGE)
        assert found.anonymous.bytes_in(begin, begin + 100 * PAGE) == 20 * PAGE
        assert found.anonymous.bytes_in(begin + 29 * PAGE, begin + 100 * PAGE) == PAGE
        assert found.file_backed.bytes_in(begin, begin + 100 * PAGE) == 0


def test_page_cache_is_not_the_process(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(50 * PAGE + 10))
    cached = page_cache(file)
    assert cached is not None
    # Just written, so it is in memory, although nobody has mapped it.
    assert cached.bytes_in(0, 50 * PAGE + 10) == 50 * PAGE + 10
    assert all(m.file != file for m in read_mappings())


def test_a_process_that_does_not_exist() -> None:
    with pytest.raises(StorageError, match="4194999"):
        read_mappings(4194999)
    with pytest.raises(StorageError, match="4194999"):
        residency(0, PAGE, 4194999)


MIB = 1 << 20
MAP = [
    Mapping(0x1000, 0x3000, "r-xp", 0, "/usr/bin/python3.11"),
    Mapping(0x3000, 0x5000, "rw-p", 0, ""),  # bss of the interpreter
    Mapping(0x5000, 0x9000, "rw-p", 0, "[heap]"),
    Mapping(64 * MIB, 65 * MIB, "rw-p", 0, ""),  # heap of another thread
    Mapping(65 * MIB, 128 * MIB, "---p", 0, ""),
    Mapping(200 * MIB, 200 * MIB + 4096, "---p", 0, ""),
    Mapping(200 * MIB + 4096, 208 * MIB, "rw-p", 0, ""),  # stack above its guard page
    Mapping(300 * MIB, 310 * MIB, "rw-p", 0, ""),
    Mapping(400 * MIB, 401 * MIB, "r--p", 0, "/v/lib/site-packages/numpy.libs/libblas.so.3"),
    Mapping(401 * MIB, 440 * MIB, "rw-p", 0, ""),  # too large to be its bss
    Mapping(500 * MIB, 501 * MIB, "r-xp", 0, "/v/site-packages/edge_infer/_native.cpython.so"),
    Mapping(600 * MIB, 601 * MIB, "r-xp", 0, "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    Mapping(700 * MIB, 701 * MIB, "rw-p", 0, "[stack]"),
]


def test_names_by_path_and_neighbours() -> None:
    assert [names.is_heap(MAP, i) for i in range(len(MAP))] == [i in (2, 3) for i in range(13)]
    found = [names.name_of(MAP, i) for i in range(len(MAP)) if i not in (2, 3, 4, 5)]
    assert found == [
        names.INTERPRETER,
        names.INTERPRETER,
        names.STACKS,
        None,
        "library: numpy",
        None,
        names.NATIVE,
        names.SYSTEM,
        names.STACKS,
    ]
