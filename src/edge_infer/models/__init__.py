"""Architectures of the native engine: one file each, config -> program."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from edge_infer.errors import CheckpointError, UnsupportedError

# architecture (config.json "architectures") -> module; read without importing the module
ARCHITECTURES = {
    "Gemma3ForCausalLM": "gemma3",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Spark2_5ForCausalLM": "spark2_5",
}


def supported(config: dict[str, Any]) -> bool:
    """Whether the native engine runs this config.json."""
    names = config.get("architectures")
    return isinstance(names, list) and any(str(n) in ARCHITECTURES for n in names)


def architecture(config: dict[str, Any]) -> Callable[..., None]:
    """The build function for a config.json; raises UnsupportedError for an unknown architecture."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError("config.json names no architecture.")
    for name in map(str, names):
        if name in ARCHITECTURES:
            module = importlib.import_module(f"edge_infer.models.{ARCHITECTURES[name]}")
            return module.build
    raise UnsupportedError(
        f"The native engine has no architecture {str(names[0])[:80]!r}.",
        remedy=f"It has {', '.join(sorted(ARCHITECTURES))}; others run through vLLM only.",
    )
