"""A tiny random model with a byte-level tokenizer, as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

VOCAB = 259  # 256 bytes, BOS, EOS, one chat marker


def write_model(folder: Path, *, nan: bool = False) -> Path:
    """A two-layer Gemma 3, one layer sliding, with a byte-level tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    rng = np.random.default_rng(0)
    h, inter, heads, dim = 64, 96, 2, 32

    def matrix(n: int, k: int) -> np.ndarray:
        return (rng.standard_normal((n, k)) * (1.5 / np.sqrt(k))).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, h), "model.norm.weight": np.zeros(h)}
    if nan:
        tensors["model.norm.weight"][3] = np.nan
    for i in range(2):
        p = f"model.layers.{i}"
        tensors |= {
            f"{p}.self_attn.q_proj.weight": matrix(heads * dim, h),
            f"{p}.self_attn.k_proj.weight": matrix(dim, h),
            f"{p}.self_attn.v_proj.weight": matrix(dim, h),
            f"{p}.self_attn.o_proj.weight": matrix(h, heads * dim),
            f"{p}.self_attn.q_norm.weight": np.zeros(dim),
            f"{p}.self_attn.k_norm.weight": np.zeros(dim),
            f"{p}.mlp.gate_proj.weight": matrix(inter, h),
            f"{p}.mlp.up_proj.weight": matrix(inter, h),
            f"{p}.mlp.down_proj.weight": matrix(h, inter),
        }
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            name = f"{p}.{norm}_layernorm.weight"
            tensors[name] = np.zeros(h)
    folder.mkdir()
    save_file({k: v.astype(np.float32) for k, v in tensors.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": h,
        "intermediate_size": inter,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": dim,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "sliding_window": 48,
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": dim,
        "rope_theta": 10000.0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>", "<turn>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": "<bos>",
                "eos_token": "<eos>",
                "chat_template": "{{ bos_token }}{% for m in messages %}<turn>{{ m.role }}:"
                "{{ m.content }}{% endfor %}<turn>",
            }
        )
    )
    return folder
