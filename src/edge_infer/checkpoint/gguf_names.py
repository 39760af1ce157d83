"""GGUF tensor names and shapes of the architectures that are read, as Hugging Face names."""

from __future__ import annotations

import re
from typing import Any

_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_COMMON = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {"ffn_norm": "post_attention_layernorm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def hf_name(arch: str, name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None when the architecture has no such tensor."""
    if name in _TOP:
        return _TOP[name]
    match = _LAYER.fullmatch(name)
    if not match:
        return None
    layer, part, kind = match.groups()
    module = _COMMON.get(part) or (_GEMMA_NORMS if arch == "gemma3" else _NORMS).get(part)
    return None if module is None else f"model.layers.{int(layer)}.{module}.{kind}"


def expected_shapes(config: dict[str, Any]) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """Shapes by Hugging Face name of the tensors a config calls for, and which may be absent."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    d = config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    vocab = config["vocab_size"]
    kind = config["model_type"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    optional = {"lm_head.weight"}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        matrices = {
            f"{attn}.q_proj": (q, hidden),
            f"{attn}.k_proj": (kv, hidden),
            f"{attn}.v_proj": (kv, hidden),
            f"{attn}.o_proj": (hidden, q),
            f"{mlp}.gate_proj": (inner, hidden),
            f"{mlp}.up_proj": (inner, hidden),
            f"{mlp}.down_proj": (hidden, inner),
        }
        for name, shape in matrices.items():
            shapes[f"{name}.weight"] = shape
            in_attention = name.startswith(attn)
            if kind == "qwen2" and in_attention and not name.endswith("o_proj"):
                shapes[f"{name}.bias"] = shape[:1]
            elif config.get("attention_bias") and in_attention:
                shapes[f"{name}.bias"] = shape[:1]
                optional.add(f"{name}.bias")
        norms = ["input_layernorm", "post_attention_layernorm"]
        if kind == "gemma3_text":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for norm in norms:
            shapes[f"{layer}.{norm}.weight"] = (hidden,)
        if kind in ("gemma3_text", "qwen3"):
            for norm in ("q_norm", "k_norm"):
                shapes[f"{attn}.{norm}.weight"] = (d,)
    return shapes, optional
