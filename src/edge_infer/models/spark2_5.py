"""Spark 2.5: three sliding layers to one full, each kind with its own RoPE, and one sigmoid gate a
head between attention and its output projection. q, k and v are one matrix in the checkpoint."""

from __future__ import annotations

from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.config import DecoderConfig
from edge_infer.models.llama import output_head
from edge_infer.models.values import KvGroup, Value
from edge_infer.models.weights import Weights


def build(p: ProgramBuilder, w: Weights, c: DecoderConfig) -> None:
    heads, kv_heads, dim, eps = (
        c.num_attention_heads,
        c.num_key_value_heads,
        c.head_dim,
        c.rms_norm_eps,
    )
    ropes = {kind: c.rope(kind) for kind in set(c.layer_types)}
    x = p.embed(
        w.linear("model.embedding", c.vocab_size, c.hidden_size), width=c.hidden_size, rows=True
    )
    for i in range(c.num_hidden_layers):
        name = f"model.layers.{i}"
        attn = f"{name}.self_attn"
        h = p.rms_norm(x, w.vector(f"{name}.input_layernorm.weight", c.hidden_size), eps)
        parts = [w.linear(f"{attn}.q_k_v_proj", (heads + 2 * kv_heads) * dim, c.hidden_size)]
        gated = c.raw.get("headwise_attn_output_gate", True)
        if gated:
            parts.append(w.linear(f"{attn}.g_proj", heads, c.hidden_size))
        qkv, *gate = p.linear(h, parts)
        q, k, v = p.split(qkv, [heads * dim, kv_heads * dim, kv_heads * dim])
        rope = ropes[c.layer_types[i]]
        q, k = p.rope(q, rope, heads), p.rope(k, rope, kv_heads)
        o: Value = p.attention(
            q, k, v, heads=heads, group=KvGroup(kv_heads, dim, c.window(i)), scale=dim**-0.5
        )
        if gated:
            o = p.head_gate(o, gate[0], heads)
        p.linear(o, w.linear(f"{attn}.out_proj", c.hidden_size, heads * dim), add_to=x)

        h = p.rms_norm(x, w.vector(f"{name}.post_attention_layernorm.weight", c.hidden_size), eps)
        gate_up = [
            w.linear(f"{name}.mlp.{part}_proj", c.intermediate_size, c.hidden_size)
            for part in ("gate", "up")
        ]
        g, u = p.linear(h, gate_up)
        down = w.linear(f"{name}.mlp.down_proj", c.hidden_size, c.intermediate_size)
        p.linear(p.glu(g, u, "gelu"), down, add_to=x)
    h = p.rms_norm(p.gather(x), w.vector("model.norm.weight", c.hidden_size), eps, in_place=True)
    output_head(p, w, c, h, embedding="model.embedding")
