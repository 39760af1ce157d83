"""Llama, and what shares its layers: Mistral (sliding window), SmolLM."""

from __future__ import annotations

from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.config import DecoderConfig
from edge_infer.models.values import KvGroup, Value
from edge_infer.models.weights import Weights


def build(p: ProgramBuilder, w: Weights, c: DecoderConfig) -> None:
    # Mistral windows every layer; Llama configs carry no sliding_window.
    windowed = c.raw.get("model_type") == "mistral"
    decoder(p, w, c, window=c.sliding_window if windowed else 0)


def decoder(
    p: ProgramBuilder,
    w: Weights,
    c: DecoderConfig,
    *,
    window: int | None = None,
    qk_norm: bool = False,
) -> None:
    """The pre-norm decoder. ``window`` None: by layer type; ``qk_norm``: RMSNorm on each head of q
    and k (Qwen3)."""
    heads, kv_heads, dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    embedding = w.linear("model.embed_tokens", c.vocab_size, c.hidden_size)
    rope = c.rope()
    x = p.embed(embedding, width=c.hidden_size, rows=True)
    for i in range(c.num_hidden_layers):
        name = f"model.layers.{i}"
        attn = f"{name}.self_attn"
        h = p.rms_norm(x, w.vector(f"{name}.input_layernorm.weight", c.hidden_size), c.rms_norm_eps)
        q, k, v = p.linear(
            h,
            [
                w.linear(f"{attn}.q_proj", heads * dim, c.hidden_size),
                w.linear(f"{attn}.k_proj", kv_heads * dim, c.hidden_size),
                w.linear(f"{attn}.v_proj", kv_heads * dim, c.hidden_size),
            ],
        )
        if qk_norm:
            q_norm, k_norm = (w.vector(f"{attn}.{n}_norm.weight", dim) for n in "qk")
            q = p.rms_norm(q, q_norm, c.rms_norm_eps, heads=heads, in_place=True)
            k = p.rms_norm(k, k_norm, c.rms_norm_eps, heads=kv_heads, in_place=True)
        q, k = p.rope(q, rope, heads), p.rope(k, rope, kv_heads)
        group = KvGroup(kv_heads, dim, c.window(i) if window is None else window)
        o = p.attention(q, k, v, heads=heads, group=group, scale=dim**-0.5)
        p.linear(o, w.linear(f"{attn}.o_proj", c.hidden_size, heads * dim), add_to=x)
        h = p.rms_norm(
            x, w.vector(f"{name}.post_attention_layernorm.weight", c.hidden_size), c.rms_norm_eps
        )
        gate, up = p.linear(
            h,
            [
                w.linear(f"{name}.mlp.gate_proj", c.intermediate_size, c.hidden_size),
                w.linear(f"{name}.mlp.up_proj", c.intermediate_size, c.hidden_size),
            ],
        )
        down = w.linear(f"{name}.mlp.down_proj", c.hidden_size, c.intermediate_size)
        p.linear(p.glu(gate, up, c.hidden_act), down, add_to=x)
    h = p.rms_norm(
        p.gather(x), w.vector("model.norm.weight", c.hidden_size), c.rms_norm_eps, in_place=True
    )
    output_head(p, w, c, h)


def output_head(
    p: ProgramBuilder,
    w: Weights,
    c: DecoderConfig,
    h: Value,
    *,
    softcap: float = 0.0,
    embedding: str = "model.embed_tokens",
) -> None:
    """Names the outputs ``hidden_states`` (after the last norm) and, with a head, ``logits``.

    The tensors decide whether the head is tied: without an ``lm_head`` the embedding is read.
    """
    p.output("hidden_states", h)
    if not p.head:
        return
    name = "lm_head" if w.has("lm_head") else embedding
    logits = p.linear(h, w.linear(name, c.vocab_size, c.hidden_size))
    if softcap:
        logits = p.softcap(logits, softcap, in_place=True)
    p.output("logits", logits)
