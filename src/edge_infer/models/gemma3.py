"""Gemma 3 text: sandwich norms with (1 + weight), two RoPE tables, sliding and full layers."""

from __future__ import annotations

from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.config import DecoderConfig, integer, number, positive
from edge_infer.models.llama import output_head
from edge_infer.models.rope import RopeTable, rope_table
from edge_infer.models.values import KvGroup
from edge_infer.models.weights import Weights


def build(p: ProgramBuilder, w: Weights, c: DecoderConfig) -> None:
    heads, kv_heads, dim, eps = (
        c.num_attention_heads,
        c.num_key_value_heads,
        c.head_dim,
        c.rms_norm_eps,
    )
    scale = positive(c.raw, "query_pre_attn_scalar", 256.0) ** -0.5
    attn_softcap = number(c.raw, "attn_logit_softcapping", 0.0, low=0.0)
    sliding = _sliding_layers(c)
    global_rope, local_rope = _ropes(c)

    def norm(name: str, width: int = c.hidden_size) -> object:
        return w.vector(f"{name}.weight", width)

    embedding = w.linear("model.embed_tokens", c.vocab_size, c.hidden_size)
    x = p.embed(embedding, width=c.hidden_size, scale=c.hidden_size**0.5, rows=True)
    for i in range(c.num_hidden_layers):
        name = f"model.layers.{i}"
        attn = f"{name}.self_attn"
        h = p.rms_norm(x, norm(f"{name}.input_layernorm"), eps, offset=1)
        q, k, v = p.linear(
            h,
            [
                w.linear(f"{attn}.q_proj", heads * dim, c.hidden_size),
                w.linear(f"{attn}.k_proj", kv_heads * dim, c.hidden_size),
                w.linear(f"{attn}.v_proj", kv_heads * dim, c.hidden_size),
            ],
        )
        q = p.rms_norm(q, norm(f"{attn}.q_norm", dim), eps, offset=1, heads=heads, in_place=True)
        k = p.rms_norm(k, norm(f"{attn}.k_norm", dim), eps, offset=1, heads=kv_heads, in_place=True)
        rope = local_rope if sliding[i] else global_rope
        q, k = p.rope(q, rope, heads), p.rope(k, rope, kv_heads)
        group = KvGroup(kv_heads, dim, c.sliding() if sliding[i] else 0)
        o = p.attention(q, k, v, heads=heads, group=group, scale=scale, softcap=attn_softcap)
        o = p.linear(o, w.linear(f"{attn}.o_proj", c.hidden_size, heads * dim))
        p.rms_norm(o, norm(f"{name}.post_attention_layernorm"), eps, offset=1, add_to=x)

        h = p.rms_norm(x, norm(f"{name}.pre_feedforward_layernorm"), eps, offset=1)
        gate, up = p.linear(
            h,
            [
                w.linear(f"{name}.mlp.gate_proj", c.intermediate_size, c.hidden_size),
                w.linear(f"{name}.mlp.up_proj", c.intermediate_size, c.hidden_size),
            ],
        )
        down = w.linear(f"{name}.mlp.down_proj", c.hidden_size, c.intermediate_size)
        d = p.linear(p.glu(gate, up, c.hidden_act), down)
        p.rms_norm(d, norm(f"{name}.post_feedforward_layernorm"), eps, offset=1, add_to=x)
    h = p.rms_norm(p.gather(x), norm("model.norm"), eps, offset=1, in_place=True)
    output_head(p, w, c, h, softcap=number(c.raw, "final_logit_softcapping", 0.0, low=0.0))


def _sliding_layers(c: DecoderConfig) -> list[bool]:
    if c.raw.get("layer_types") is not None:
        return [t == "sliding_attention" for t in c.layer_types]
    pattern = integer(c.raw, "sliding_window_pattern", 6)
    return [bool((i + 1) % pattern) for i in range(c.num_hidden_layers)]


def _ropes(c: DecoderConfig) -> tuple[RopeTable, RopeTable]:
    """(global, local) tables; the local one is never scaled."""
    parameters = c.raw.get("rope_parameters")
    if isinstance(parameters, dict) and "sliding_attention" in parameters:
        return c.rope("full_attention"), c.rope("sliding_attention")
    return c.rope(), rope_table(c.head_dim, number(c.raw, "rope_local_base_freq", 10000.0))
