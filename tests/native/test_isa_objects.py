"""Objects compiled for one ISA level must not lend code to the others through the linker.

A weak, unique or COMDAT symbol may be kept from any object that defines it, so one that was
compiled for AVX512 could end up on the path of a machine without it. Each object defines its
register_* function and nothing else that the linker can see.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"ei_(\w+)_(scalar|avx2|avx2vnni|avx512|avx512bf16|amx)\.dir$")


def per_level_objects() -> list[tuple[Path, str, str]]:
    """(object, kernel file, level) of every build tree of this checkout."""
    found = []
    for path in sorted(ROOT.glob("build/*/native/CMakeFiles/ei_*.dir/kernels/*.o")):
        match = NAME.search(path.parents[1].name)
        assert match, f"an object of no known level: {path}"
        found.append((path, match[1], match[2]))
    return found


def defined_symbols(path: Path) -> list[tuple[str, str]]:
    """(type letter of nm, demangled name) of every symbol the object defines."""
    out = subprocess.run(
        ["nm", "--defined-only", "--demangle", str(path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = (line.split(None, 2) for line in out.splitlines())
    return [(letter, name) for _, letter, name in rows]


def test_per_level_objects_share_nothing():
    if shutil.which("nm") is None:
        pytest.skip("needs nm (binutils)")
    objects = per_level_objects()
    if not objects:
        pytest.skip("no build tree beside the tests: not an editable install")
    for path, kernel, level in objects:
        # lower case is local, except the unique 'u' and the weak 'w' and 'v'
        shared = [(t, name) for t, name in defined_symbols(path) if t.isupper() or t in "uwv"]
        expected = f"ei::{level}::register_{kernel}(ei::KernelTable&)"
        assert shared == [("T", expected)], f"{path.relative_to(ROOT)} defines {shared}"
    # every level that the dispatch knows was looked at
    assert {level for _, _, level in objects} == {
        "scalar",
        "avx2",
        "avx2vnni",
        "avx512",
        "avx512bf16",
        "amx",
    }
