"""How large a buffer must be for a read of it to come from memory and not from a cache."""

from __future__ import annotations

from pathlib import Path

from edge_infer.device.budget import free_memory
from edge_infer.device.cgroup import HOST, Roots, read_text

SMALLEST, LARGEST = 256 << 20, 2 << 30


def last_level_cache(roots: Roots = HOST) -> int:
    """Bytes of the largest cache of the first CPU; 0 where the kernel does not say."""
    sizes = [0]
    folder: Path = roots.sys / "devices/system/cpu/cpu0/cache"
    for entry in sorted(folder.glob("index*")):
        text = (read_text(entry / "size") or "").strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes)


def stream_buffer_bytes(roots: Roots = HOST) -> int:
    """Four times the last-level cache, 256 MiB to 2 GiB, and no more than an eighth of what is
    free."""
    wanted = min(max(4 * last_level_cache(roots), SMALLEST), LARGEST)
    return min(wanted, free_memory() // 8)
