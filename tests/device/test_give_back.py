"""Freed heap goes back to the system (a process of its own: its heap is known)."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
from edge_infer.device.usage import give_back_heap, own_memory
import ctypes
if not hasattr(ctypes.CDLL(None), "malloc_trim"):
    print("skip"); raise SystemExit
blocks = [bytes(2000) for _ in range(30000)]  # small enough for the heap, not mapped one by one
pin = bytes(2000)  # keeps the top of the heap in place
full = own_memory().anonymous
del blocks
give_back_heap()
print(full - own_memory().anonymous)
"""


def test_freed_blocks_are_not_resident() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    if done.stdout.strip() == "skip":
        pytest.skip("this C library has no malloc_trim")
    assert int(done.stdout) > 40_000_000
