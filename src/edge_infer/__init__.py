"""edge-infer: multimodal models on CPU-only edge boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from edge_infer.engine.llm import LLM
    from edge_infer.engine.params import SamplingParams


def __getattr__(name: str) -> Any:
    # Loaded on first use: commands that need no engine do not pay for one.
    if name == "LLM":
        from edge_infer.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from edge_infer.engine.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'edge_infer' has no attribute {name!r}")
