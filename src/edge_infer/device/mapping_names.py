"""What a mapping without a better owner is: native code, a library, a stack, the C heap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_infer.device.mappings import Mapping

NATIVE = "native code"
INTERPRETER = "Python interpreter"
SYSTEM = "system libraries"
STACKS = "stacks"
_ARENA = 64 << 20  # glibc's heaps of other threads begin at multiples of it
_BSS = 1 << 20  # more zero-initialized data than any library here has


def is_heap(mappings: Sequence[Mapping], at: int) -> bool:
    """Whether the C library's allocator grew this mapping (blocks mapped alone are not seen)."""
    m = mappings[at]
    if m.path:
        return m.path == "[heap]"
    following = mappings[at + 1] if at + 1 < len(mappings) else None
    return (
        m.start % _ARENA == 0
        and following is not None
        and following.start == m.end
        and following.permissions.startswith("---")
        and following.end % _ARENA == 0
    )


def name_of(mappings: Sequence[Mapping], at: int) -> str | None:
    """The owner by path and neighbours; None for anonymous memory that anyone may have mapped."""
    m = mappings[at]
    if m.file is not None:
        return file_owner(m.file)
    if m.path.startswith("[") and m.path != "[heap]":
        return STACKS if m.path.startswith("[stack") else "kernel"
    before = mappings[at - 1] if at > 0 else None
    if before is None or before.end != m.start:
        return None
    if (
        not before.path
        and before.permissions.startswith("---")
        and before.end - before.start < 1 << 20
    ):
        return STACKS  # above its guard page
    if before.file is not None and m.end - m.start <= _BSS:
        return file_owner(before.file)  # the file's zero-initialized data
    return None


def file_owner(file: Path) -> str:
    """The line that a mapped file belongs to."""
    name, parts = file.name, file.parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            package = parts[parts.index(folder) + 1].partition(".")[0]
            return NATIVE if package == "edge_infer" else f"library: {package}"
    if name.startswith(("python3", "libpython3")) or "lib-dynload" in parts:
        return INTERPRETER
    if ".so" in file.suffixes:
        return SYSTEM
    return f"file: {name}"
