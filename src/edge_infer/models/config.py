"""The decoder configuration that every architecture file starts from, read from config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge_infer.errors import CheckpointError
from edge_infer.models.rope import RopeTable, finite, rope_table

MAX_HEAD_DIM = 1 << 16


def integer(config: dict[str, Any], key: str, default: int | None = None, *, low: int = 1) -> int:
    """A positive integer of config.json; CheckpointError when missing, wrong or absurd."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 1 << 30:
        raise CheckpointError(
            f"config.json has {key} = {value!r}; an integer of {low} or more is needed."
        )
    return value


def number(
    config: dict[str, Any], key: str, default: float | None = None, *, low: float | None = None
) -> float:
    """A finite number of config.json, at least ``low``; CheckpointError for anything else."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not finite(value):
        raise CheckpointError(f"config.json has {key} = {value!r}; a finite number is needed.")
    if low is not None and value < low:
        raise CheckpointError(f"config.json has {key} = {value!r}; {low} or more is needed.")
    return float(value)


def positive(config: dict[str, Any], key: str, default: float | None = None) -> float:
    value = number(config, key, default)
    if value <= 0:
        raise CheckpointError(f"config.json has {key} = {value!r}; a positive number is needed.")
    return value


@dataclass(frozen=True)
class DecoderConfig:
    """Fields shared by the decoders, under their Hugging Face names."""

    raw: dict[str, Any]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    hidden_act: str
    layer_types: tuple[str, ...]
    sliding_window: int

    @classmethod
    def read(cls, config: dict[str, Any], *, default_head_dim: int | None = None) -> DecoderConfig:
        hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
        kv_heads = integer(config, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise CheckpointError(f"{heads} query heads are not a multiple of {kv_heads} KV heads.")
        head_dim = integer(config, "head_dim", default_head_dim or hidden // heads)
        if head_dim > MAX_HEAD_DIM:  # tables of this length are made before any shape is checked
            raise CheckpointError(
                f"config.json claims a head_dim of {head_dim}; at most {MAX_HEAD_DIM} is possible."
            )
        layers = integer(config, "num_hidden_layers")
        if layers > 4096:
            raise CheckpointError(f"config.json claims {layers} layers.")
        window = config.get("sliding_window")
        window = integer(config, "sliding_window", low=0) if window is not None else 0
        return cls(
            raw=config,
            hidden_size=hidden,
            intermediate_size=integer(config, "intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=integer(config, "vocab_size"),
            rms_norm_eps=positive(config, "rms_norm_eps", 1e-6),
            max_position_embeddings=integer(config, "max_position_embeddings", 2048),
            hidden_act=activation_name(
                config.get("hidden_activation") or config.get("hidden_act") or default_act(config)
            ),
            layer_types=_layer_types(config, layers),
            sliding_window=window,
        )

    def window(self, layer: int) -> int:
        """Positions that a layer sees, 0 for all of them."""
        return self.sliding() if self.layer_types[layer] == "sliding_attention" else 0

    def sliding(self) -> int:
        """The window of a layer that has one; CheckpointError where config.json names none."""
        if not self.sliding_window:
            raise CheckpointError("A layer has sliding attention; config.json has no window.")
        return self.sliding_window

    def rope(
        self, layer_type: str = "full_attention", *, theta_key: str = "rope_theta"
    ) -> RopeTable:
        """The RoPE table of a layer type; reads ``rope_parameters`` (by layer type or flat), else
        ``rope_theta`` and ``rope_scaling``."""
        parameters = self.raw.get("rope_parameters")
        if isinstance(parameters, dict) and isinstance(parameters.get(layer_type), dict):
            parameters = parameters[layer_type]
        if not isinstance(parameters, dict) or "rope_theta" not in parameters:
            parameters = self.raw.get("rope_scaling") or {}
            if not isinstance(parameters, dict):
                raise CheckpointError("rope_scaling of config.json is not an object.")
            parameters = {"rope_theta": number(self.raw, theta_key, 10000.0), **parameters}
        if "original_max_position_embeddings" not in parameters:
            parameters = {
                **parameters,
                "original_max_position_embeddings": self.max_position_embeddings,
            }
        partial = parameters.get(
            "partial_rotary_factor", self.raw.get("partial_rotary_factor", 1.0)
        )
        return rope_table(
            self.head_dim,
            number(parameters, "rope_theta"),
            scaling=parameters,
            partial=number({"partial_rotary_factor": partial}, "partial_rotary_factor"),
        )


_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}


def default_act(config: dict[str, Any]) -> str:
    """The activation of a config.json that names none: its family's own default."""
    family = str(config.get("model_type", ""))
    return "gelu_pytorch_tanh" if family.startswith("gemma") else "silu"


def activation_name(name: Any) -> str:
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise CheckpointError(f"config.json names the activation {name!r}, which is unknown.")
    return _ACTIVATIONS[name]


def _layer_types(config: dict[str, Any], layers: int) -> tuple[str, ...]:
    types = config.get("layer_types")
    if types is not None:
        known = ("full_attention", "sliding_attention")
        if (
            not isinstance(types, list)
            or len(types) != layers
            or any(t not in known for t in types)
        ):
            raise CheckpointError(f"layer_types must name {layers} layers, each one of {known}.")
        return tuple(types)
    if config.get("use_sliding_window") and config.get("sliding_window"):
        full = integer(
            config, "max_window_layers", layers, low=0
        )  # Qwen2: the first ones see everything
        return tuple("full_attention" if i < full else "sliding_attention" for i in range(layers))
    return ("full_attention",) * layers
