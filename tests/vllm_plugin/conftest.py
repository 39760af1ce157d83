"""These tests need vLLM, which has an environment of its own (make test-vllm)."""

from __future__ import annotations

import importlib.util
import os

HERE = os.path.dirname(__file__)
# What runs without vLLM.
ANYWHERE = {
    "test_packed_embeddings.py",
    "test_flags.py",
    "test_installation.py",
    "test_storages.py",
    "test_release.py",
    "test_probes.py",
}

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

collect_ignore = (
    []
    if importlib.util.find_spec("vllm")
    else [
        name
        for name in os.listdir(HERE)
        if name.startswith("test_") and name.endswith(".py") and name not in ANYWHERE
    ]
)
