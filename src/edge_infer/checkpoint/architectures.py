"""Which architectures the native engine runs: what `convert` and `inspect` tell the user.

`models` depends on this room, not the other way round, so the classes are listed here; a test
compares them with the registry of `models`.
"""

from __future__ import annotations

from typing import Any

NATIVE_ARCHITECTURES = frozenset(
    {
        "Gemma3ForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Spark2_5ForCausalLM",
    }
)


def architecture(config: dict[str, Any]) -> str:
    """The class that a config names first, or "unknown"."""
    classes = config.get("architectures")
    return str(classes[0]) if isinstance(classes, list) and classes else "unknown"


def model_type(config: dict[str, Any]) -> str:
    """model_type of a config, or "unknown"."""
    kind = config.get("model_type")
    return kind if isinstance(kind, str) and kind else "unknown"


def runs_natively(config: dict[str, Any]) -> bool:
    """Whether the native engine has one of the classes that a config names."""
    classes = config.get("architectures")
    return isinstance(classes, list) and any(
        isinstance(c, str) and c in NATIVE_ARCHITECTURES for c in classes
    )
