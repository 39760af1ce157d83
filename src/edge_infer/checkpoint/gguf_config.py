"""GGUF metadata as a Hugging Face config.json, for the architectures that are read.

Every number is checked for type and range here, so that nothing later meets an absurd one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from edge_infer.errors import CheckpointError, UnsupportedError

# GGUF architecture -> (model_type, class, activation)
ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM", "silu"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", "silu"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", "silu"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", "gelu_pytorch_tanh"),
}
_GEMMA3_27B_LAYERS = 62


class Fields:
    """Typed, bounded access to the metadata of one architecture."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        arch = fields.get("general.architecture")
        if not isinstance(arch, str):
            raise CheckpointError("the GGUF has no general.architecture.")
        if arch not in ARCHITECTURES:
            raise UnsupportedError(
                f"the GGUF has the architecture {arch[:60]!r}.",
                remedy=f"This build reads {', '.join(ARCHITECTURES)}.",
            )
        self.arch = arch

    def get(self, key: str) -> Any:
        """The value of `<architecture>.<key>`, or None."""
        return self.fields.get(f"{self.arch}.{key}")

    def _bad(self, key: str, value: Any) -> CheckpointError:
        return CheckpointError(f"the GGUF has {self.arch}.{key} = {str(value)[:60]}.")

    def integer(self, key: str, default: int | None = None, limit: int = 1 << 24) -> int:
        """A count in 1..limit. A per-layer array must hold one value throughout."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"the GGUF lacks {self.arch}.{key}.")
            return default
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise UnsupportedError(f"{self.arch}.{key} differs from layer to layer.")
            value = value[0]
        if type(value) is not int or not 1 <= value <= limit:
            raise self._bad(key, value)
        return value

    def number(self, key: str, default: float | None, low: float, high: float) -> float | None:
        """A finite float in [low, high]."""
        value = self.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not low <= value <= high:  # NaN fails both
            raise self._bad(key, value)
        return float(value)


def build_config(
    fields: Mapping[str, Any],
    *,
    vocab_size: int,
    names: Iterable[str],
    rope_factors: list[float] | None,
) -> dict[str, Any]:
    """The config.json that the metadata stands for.

    ``names`` are the GGUF tensor names, ``rope_factors`` the contents of ``rope_freqs.weight``.
    """
    f = Fields(fields)
    model_type, architecture, activation = ARCHITECTURES[f.arch]
    names = set(names)
    if f.get("expert_count"):
        raise UnsupportedError(f"the GGUF is a mixture of {f.get('expert_count')} experts.")
    heads = f.integer("attention.head_count", limit=1 << 12)
    kv_heads = f.integer("attention.head_count_kv", heads, limit=1 << 12)
    hidden = f.integer("embedding_length", limit=1 << 20)
    layers = f.integer("block_count", limit=1 << 12)
    head_dim = f.integer("attention.key_length", max(1, hidden // heads), limit=1 << 12)
    if heads % kv_heads:
        raise CheckpointError(f"the GGUF has {heads} heads and {kv_heads} key-value heads.")
    if f.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError("the GGUF has keys and values of different lengths.")
    if f.integer("rope.dimension_count", head_dim) != head_dim or head_dim % 2:
        raise UnsupportedError("the GGUF rotates only a part of each head.")
    eps = f.number("attention.layer_norm_rms_epsilon", None, 1e-12, 1e-1)
    if eps is None:
        raise CheckpointError(f"the GGUF lacks {f.arch}.attention.layer_norm_rms_epsilon.")
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": f.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "max_position_embeddings": f.integer("context_length", limit=1 << 28),
        # written as f32: the shortest decimal that gives the same f32
        "rms_norm_eps": _shortest(eps),
        "rope_theta": f.number("rope.freq_base", 10000.0, 1.0, 1e12),
        "rope_scaling": _rope_scaling(f, rope_factors, head_dim),
        "hidden_act": activation,
        "attention_bias": "blk.0.attn_q.bias" in names or f.arch == "qwen2",
        "tie_word_embeddings": "output.weight" not in names,
        "torch_dtype": "bfloat16",
    }
    if f.arch == "llama":
        config["mlp_bias"] = False
        window = f.get("attention.sliding_window")
        if window:
            config.update(model_type="mistral", architectures=["MistralForCausalLM"])
            config["sliding_window"] = f.integer("attention.sliding_window", limit=1 << 28)
    elif f.arch == "gemma3":
        _gemma3(f, config)
    else:
        config["use_sliding_window"] = False
    for key, name in (("bos", "bos"), ("eos", "eos"), ("padding", "pad")):
        token = fields.get(f"tokenizer.ggml.{key}_token_id")
        if type(token) is int and 0 <= token < vocab_size:
            config[f"{name}_token_id"] = token
    return config


def _shortest(value: float) -> float:
    for digits in range(1, 9):
        short = float(f"{value:.{digits}g}")
        if math.isclose(short, value, rel_tol=6e-8):
            return short
    return value


def _gemma3(f: Fields, config: dict[str, Any]) -> None:
    layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    config["hidden_activation"] = config.pop("hidden_act")
    config["sliding_window"] = f.integer("attention.sliding_window", limit=1 << 28)
    config["rope_local_base_freq"] = f.number("rope.freq_base_swa", 10000.0, 1.0, 1e12)
    # the 27B model alone scales by its hidden size per head; the file does not say so
    big = layers == _GEMMA3_27B_LAYERS
    config["query_pre_attn_scalar"] = (
        config["hidden_size"] // config["num_attention_heads"] if big else head_dim
    )
    pattern = f.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(type(p) is bool for p in pattern):
            raise CheckpointError(f"the sliding window pattern does not describe {layers} layers.")
        sliding = pattern
    else:
        every = f.integer("attention.sliding_window_pattern", 6, limit=1 << 12)
        sliding = [(i + 1) % every != 0 for i in range(layers)]
    config["layer_types"] = ["sliding_attention" if s else "full_attention" for s in sliding]
    for key, name in (
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        config[name] = f.number(key, None, 1e-3, 1e6)


def _rope_scaling(f: Fields, factors: list[float] | None, head_dim: int) -> dict[str, Any] | None:
    kind = f.get("rope.scaling.type")
    if factors is not None:
        if kind not in (None, "none", "llama3"):
            raise UnsupportedError(f"the GGUF has both rope_freqs and {str(kind)[:40]} scaling.")
        return _llama3_scaling(factors, f, head_dim)
    factor = f.number("rope.scaling.factor", None, 1e-3, 1e6)
    if factor is None:
        factor = f.number("rope.scale_linear", None, 1e-3, 1e6)
        kind = kind or ("linear" if factor else None)
    if kind in (None, "none") or factor in (None, 0.0):
        return None
    if kind == "linear":
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        scaling: dict[str, Any] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": f.integer(
                "rope.scaling.original_context_length", limit=1 << 28
            ),
        }
        for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            value = f.number(f"rope.scaling.{key}", None, 1e-3, 1e6)
            if value is not None:
                scaling[name] = value
        attention = f.number("rope.scaling.attn_factor", None, 1e-3, 1e3)
        if attention not in (None, 1.0):
            raise UnsupportedError("the GGUF scales attention in a way this build does not map.")
        return scaling
    raise UnsupportedError(
        f"the GGUF has RoPE scaling of type {str(kind)[:40]!r}.",
        remedy="This build reads linear, yarn and llama3 scaling.",
    )


def _llama3_scaling(factors: list[float], f: Fields, head_dim: int) -> dict[str, Any] | None:
    """The llama3 parameters whose per-frequency factors are the stored ones.

    A GGUF holds only the resulting factors: 1 for short wavelengths, `factor` for long ones, and an
    interpolation between. The published models share low 1, high 4 and an original context of 8192;
    those are tried first, then other powers of two, and only an exact match is accepted.
    """
    if len(factors) != head_dim // 2 or not all(1e-3 < x < 1e6 for x in factors):
        raise CheckpointError(f"rope_freqs.weight does not hold {head_dim // 2} positive factors.")
    factor = max(factors)
    if factor == 1.0 and min(factors) == 1.0:
        return None
    base = f.number("rope.freq_base", 10000.0, 1.0, 1e12)
    assert base is not None
    for context in (8192, *(1 << b for b in range(11, 21))):
        for low, high in ((1.0, 4.0), (1.0, 8.0), (1.0, 2.0), (2.0, 4.0)):
            expected = llama3_factors(base, head_dim, factor, low, high, context)
            if all(abs(a - b) <= 1e-4 * b for a, b in zip(factors, expected, strict=True)):
                return {
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": low,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": context,
                }
    raise UnsupportedError(
        "rope_freqs.weight holds frequency factors that no llama3 scaling produces "
        f"(from {min(factors):g} to {factor:g})."
    )


def llama3_factors(
    base: float, head_dim: int, factor: float, low: float, high: float, context: int
) -> list[float]:
    """What llama3 scaling divides each rotary frequency by."""
    out = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi * base ** (2 * i / head_dim)
        smooth = (context / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        out.append(1 / ((1 - smooth) / factor + smooth))
    return out
