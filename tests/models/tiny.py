"""Tiny random models in Hugging Face form, and logits of the native engine for given tokens."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from edge_infer.checkpoint import Checkpoint, layout
from edge_infer.checkpoint.safetensors_io import read_array
from edge_infer.engine.runner import ModelRunner, Piece, RunnerOptions

CONFIGS: dict[str, dict] = {
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "llama_scaled": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama_linear": {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama_yarn": {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 24},
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen2_sliding": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "qwen3": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24},
    "gemma3": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "sliding_window": 16,
        "query_pre_attn_scalar": 32,
        "num_hidden_layers": 7,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}
COMMON = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
}


def environment(level: str) -> dict[str, str]:
    """Of a process that imports from this folder and runs at this ISA level."""
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "EDGE_INFER_ISA": level, "PYTHONPATH": path}


def make(kind: str, folder: Path, *, tied: bool = False, seed: int = 0):
    """A transformers model with random weights, saved to ``folder``; returned in eval mode."""
    import torch
    import transformers

    names = {
        "llama": "Llama",
        "mistral": "Mistral",
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "gemma3": "Gemma3",
    }
    name = names[kind.split("_")[0]]
    suffix = "TextConfig" if name == "Gemma3" else "Config"
    config = getattr(transformers, name + suffix)(
        **{**COMMON, **CONFIGS[kind], "tie_word_embeddings": tied}
    )
    config._attn_implementation = half_kv_attention()
    torch.manual_seed(seed)
    model = getattr(transformers, name + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "norm" in n:
                p.copy_(torch.randn_like(p) * 0.1 + (0.0 if name == "Gemma3" else 1.0))
            else:
                p.copy_(torch.randn_like(p) * (0.3 if p.dim() == 1 else p.shape[-1] ** -0.5))
    model.save_pretrained(folder)
    return model


def half_kv_attention() -> str:
    """The name of an attention function that rounds keys and values to f16 as the KV pool does."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def attention(module, query, key, value, *args, **kwargs):
        key, value = key.half().float(), value.half().float()
        return sdpa_attention_forward(module, query, key, value, *args, **kwargs)

    AttentionInterface.register("half_kv", attention)
    AttentionMaskInterface.register("half_kv", sdpa_mask)
    return "half_kv"


def reference(model, tokens: list[int]) -> np.ndarray:
    """Logits [tokens, vocab] by transformers in f32."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def runner(folder: Path, **options) -> ModelRunner:
    defaults = {"threads": 2, "kv_cache_dtype": "f16", "max_num_seqs": 4, "all_outputs": True}
    return ModelRunner(folder, RunnerOptions(**{**defaults, **options}))


def logits(
    r: ModelRunner, sequences: list[list[int]], *, prompts: list[int] | None = None, chunk: int = 64
) -> list[np.ndarray]:
    """Logits of every position of each sequence, all run together in chunks of ``chunk`` rows in
    all.

    ``prompts``: how many tokens of each are prompt; the rest has decode numerics. Default: all.
    """
    prompts = [len(s) for s in sequences] if prompts is None else prompts
    blocks = [r.blocks.new_sequence() for _ in sequences]
    done = [0] * len(sequences)
    out = [np.empty((len(s), r.vocab_size), np.float32) for s in sequences]
    while any(d < len(s) for d, s in zip(done, sequences, strict=True)):
        pieces, which, room = [], [], chunk
        for i, s in enumerate(sequences):
            n = min(len(s) - done[i], room)
            if n == 0:
                continue
            assert r.blocks.reserve(blocks[i], done[i] + n)
            pieces.append(Piece(s, done[i], n, prompts[i], blocks[i], False, every_output=True))
            which.append(i)
            room -= n
        r.run(pieces)
        values = r.output("logits")
        for row, (piece, position) in enumerate(r.output_order()):
            out[which[piece]][position] = values[row]
        for p, i in zip(pieces, which, strict=True):
            done[i] += p.rows
            r.blocks.drop_unseen(blocks[i], done[i])
    for b in blocks:
        r.blocks.free(b)
    return out


def check_close(got: np.ndarray, want: np.ndarray) -> None:
    """Relative to the largest logit: 1e-4 in RMS by a wide margin. A key or value that lies
    between two f16 numbers may round either way, which moves a few logits by more than that."""
    scale = np.abs(want).max()
    error = np.abs(got - want) / scale
    assert np.sqrt((error**2).mean()) <= 3e-5
    assert error.max() <= 5e-4


def dequantized(folder: Path) -> dict[str, np.ndarray]:
    """Every weight and bias of a packed folder by its Hugging Face name, as numbers."""
    c = Checkpoint.open(folder)
    out = {n: read_array(t) for n, t in c.tensors.items() if n.endswith((".weight", ".bias"))}
    for name, m in c.matrices.items():
        minimums = read_array(m.minimums) if m.minimums else None
        out[f"{name}.weight"] = layout.dequantize(
            read_array(m.codes), read_array(m.scales), minimums, n=m.n, k=m.k, bits=m.bits
        )
    return out


def plain_config(folder: Path) -> dict:
    """config.json of a packed folder without what the packing added."""
    config = Checkpoint.open(folder).config
    return {k: v for k, v in config.items() if k != "quantization_config"}
