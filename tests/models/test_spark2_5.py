"""Spark 2.5 against a plain PyTorch reference written from its description."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tiny
from safetensors.numpy import save_file

torch = pytest.importorskip("torch")

CONFIG = {
    "architectures": ["Spark2_5ForCausalLM"],
    "model_type": "spark2_5",
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "headwise_attn_output_gate": True,
    "sliding_window": 24,
    "vocab_size": 151,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_theta": 5000000, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_theta": 10000, "partial_rotary_factor": 1.0},
    },
}


def random_weights(tied: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)

    def matrix(n: int, k: int) -> np.ndarray:
        return (rng.standard_normal((n, k)) / math.sqrt(k)).astype(np.float32)

    c = CONFIG
    h, inter, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    norm = lambda: (1 + 0.1 * rng.standard_normal(h)).astype(np.float32)  # noqa: E731
    out = {"model.embedding.weight": matrix(c["vocab_size"], h), "model.norm.weight": norm()}
    if not tied:
        out["lm_head.weight"] = matrix(c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        out |= {
            f"{p}.self_attn.q_k_v_proj.weight": matrix((heads + 2 * kv) * dim, h),
            f"{p}.self_attn.g_proj.weight": matrix(heads, h),
            f"{p}.self_attn.out_proj.weight": matrix(h, heads * dim),
            f"{p}.mlp.gate_proj.weight": matrix(inter, h),
            f"{p}.mlp.up_proj.weight": matrix(inter, h),
            f"{p}.mlp.down_proj.weight": matrix(h, inter),
            f"{p}.input_layernorm.weight": norm(),
            f"{p}.post_attention_layernorm.weight": norm(),
        }
    return out


def reference(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    c, f = CONFIG, torch.nn.functional
    w = {k: torch.from_numpy(v) for k, v in weights.items()}
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    t = len(tokens)
    position = torch.arange(t)

    def norm(x, name):
        return f.rms_norm(x, (x.shape[-1],), w[name], c["rms_norm_eps"])

    def rope(x, kind):  # [heads, t, dim]
        p = c["rope_parameters"][kind]
        n = int(dim * p["partial_rotary_factor"])
        inverse = p["rope_theta"] ** (-torch.arange(0, n, 2) / n)
        angle = position[:, None].float() * inverse
        a, b, rest = x[..., : n // 2], x[..., n // 2 : n], x[..., n:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    x = w["model.embedding.weight"][tokens]
    for i, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{i}"
        h = norm(x, f"{p}.input_layernorm.weight")
        qkv = (h @ w[f"{p}.self_attn.q_k_v_proj.weight"].T).view(t, -1, dim).transpose(0, 1)
        q, k, v = qkv.split([heads, kv, kv])
        q, k = rope(q, kind), rope(k, kind)
        k, v = (y.half().float().repeat_interleave(heads // kv, 0) for y in (k, v))
        mask = position[None] <= position[:, None]
        if kind == "sliding_attention":
            mask &= position[None] > position[:, None] - c["sliding_window"]
        o = f.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
        gate = torch.sigmoid(h @ w[f"{p}.self_attn.g_proj.weight"].T)  # [t, heads]
        o = (o * gate.T[..., None]).transpose(0, 1).reshape(t, -1)
        x = x + o @ w[f"{p}.self_attn.out_proj.weight"].T
        h = norm(x, f"{p}.post_attention_layernorm.weight")
        g, u = (h @ w[f"{p}.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (f.gelu(g) * u) @ w[f"{p}.mlp.down_proj.weight"].T
    x = norm(x, "model.norm.weight")
    return (x @ w.get("lm_head.weight", w["model.embedding.weight"]).T).numpy()


@pytest.mark.parametrize("tied", [False, True])
def test_matches_reference(tied: bool, tmp_path) -> None:
    weights = random_weights(tied)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, tmp_path / "model.safetensors")
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, CONFIG["vocab_size"], 90)]
    want = reference(weights, tokens)
    r = tiny.runner(tmp_path)
    (got,) = tiny.logits(r, [tokens], chunk=40)
    tiny.check_close(got, want)
    (decoded,) = tiny.logits(r, [tokens], prompts=[30])
    tiny.check_close(decoded, want)
