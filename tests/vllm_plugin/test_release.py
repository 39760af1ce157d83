"""Giving back freed memory, with glibc's allocator and with tcmalloc; needs no vLLM."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json
from edge_infer.vllm_plugin.patches import release
blocks = [bytes(3000) for _ in range(30_000)]
last = bytes(3000)  # the end of the heap stays in use, so nothing is given back by itself
del blocks
release.release("test")
print(json.dumps({**release.released()["test"], "allocator": release.allocator()}))
"""


@pytest.mark.parametrize("allocator", ["malloc", "tcmalloc"])
def test_freed_memory_goes_back(allocator: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    if allocator == "tcmalloc":
        library = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library(
            "tcmalloc"
        )
        if library is None:
            pytest.skip("there is no libtcmalloc on this machine")
        env["LD_PRELOAD"] = library
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["allocator"] == allocator
    assert found["before"] - found["after"] > 60 << 20
