"""Which architectures the native engine runs: what `convert` and `inspect` tell the user.

`models` depends on this room, not the other way round, so the names are listed here; a test in
tests/models compares them with the registry.
"""

from __future__ import annotations

from typing import Any

NATIVE_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma3_text", "spark2_5"})


def model_type(config: dict[str, Any]) -> str:
    """model_type of a config, or its class, or "unknown"."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind:
        return kind
    classes = config.get("architectures")
    return str(classes[0]) if isinstance(classes, list) and classes else "unknown"


def runs_natively(config: dict[str, Any]) -> bool:
    """Whether the native engine has this architecture."""
    return model_type(config) in NATIVE_MODEL_TYPES
