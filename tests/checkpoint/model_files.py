"""Tiny models written to disk for the tests of this room: GGUF files and Hugging Face folders."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from edge_infer.checkpoint.gguf_config import ARCHITECTURES
from edge_infer.checkpoint.gguf_header import TENSOR_TYPES
from edge_infer.checkpoint.gguf_names import expected_shapes, hf_name
from edge_infer.checkpoint.safetensors_io import SafetensorsWriter, TensorSpec

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 512, 4, 2, 64, 300
BLOCKS = {name: (block, size) for name, block, size in TENSOR_TYPES.values()}


def random_blocks(kind, rows, k, rng):
    """Raw bytes [rows, row bytes] of a GGUF type: small finite scales, all codes equally likely."""
    block, size = BLOCKS[kind]
    if kind in ("F32", "F16", "BF16"):
        w = (rng.standard_normal((rows, k)) * 0.05).astype(np.float32)
        if kind == "BF16":
            return (w.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return w.astype(np.float16 if kind == "F16" else np.float32).view(np.uint8)
    raw = rng.integers(0, 256, (rows * k // block, size), np.uint8)
    halves = {
        "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
        "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    }[kind]  # fmt: skip
    for at in halves:
        scale = rng.standard_normal(len(raw)) * (2e-4 if kind.endswith("_K") else 0.01)
        raw[:, at : at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    if kind == "Q8_0":
        raw[:, 2:][raw[:, 2:] == 128] = 129  # -128: no quantizer writes it
    return raw.reshape(rows, -1)


def gguf_names(arch, layers, tied, attention_bias):
    """GGUF tensor names of a model, with their shapes."""
    config = {
        "model_type": ARCHITECTURES[arch][0], "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "num_hidden_layers": layers, "attention_bias": attention_bias,
    }  # fmt: skip
    shapes, _ = expected_shapes(config)
    parts = [
        "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm",
        "ffn_gate", "ffn_up", "ffn_down", "ffn_norm", "post_attention_norm", "post_ffw_norm",
    ]  # fmt: skip
    names = ["token_embd.weight", "output_norm.weight"] + ([] if tied else ["output.weight"])
    names += [f"blk.{i}.{p}.{s}" for i in range(layers) for p in parts for s in ("weight", "bias")]
    return {n: shapes[h] for n in names if (h := hf_name(arch, n)) in shapes}


def metadata(arch, layers, **extra):
    """The metadata of such a model, by key."""
    fields = {
        "context_length": 1024, "embedding_length": HIDDEN, "block_count": layers,
        "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 500000.0,
    }  # fmt: skip
    if arch == "gemma3":
        fields["attention.sliding_window"] = 128
    fields.update(extra)
    return {f"{arch}.{k}": v for k, v in fields.items() if v is not None}


def add_field(w, key, value):
    """One metadata field, typed by its Python type."""
    if isinstance(value, bool):
        w.add_bool(key, value)
    elif isinstance(value, int):
        w.add_uint32(key, value)
    elif isinstance(value, float):
        w.add_float32(key, value)
    elif isinstance(value, str):
        w.add_string(key, value)
    else:
        w.add_array(key, value)


def write_gguf(
    path, arch="llama", kinds=("Q4_0",), *, layers=2, tied=True, fields=None, edit=None,
    attention_bias=False, tokens=True, seed=0, extra_tensors=None, top=None,
):  # fmt: skip
    """Writes a random model, weight types taken in turn from `kinds`; returns raw bytes by name.

    `edit(name, kind, raw)` may change raw bytes before they are written.
    """
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, arch)
    for key, value in metadata(arch, layers, **(fields or {})).items():
        add_field(w, key, value)
    for key, value in (top or {}).items():
        add_field(w, key, value)
    if tokens:
        w.add_string("tokenizer.ggml.model", "llama")
        w.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(VOCAB - 1)] + ["<|im_end|>"])
        w.add_array("tokenizer.ggml.scores", [0.0] * VOCAB)
        w.add_array("tokenizer.ggml.token_type", [1] * VOCAB)
        w.add_uint32("tokenizer.ggml.bos_token_id", 1)
        w.add_uint32("tokenizer.ggml.eos_token_id", 2)
    stored, turn = {}, 0
    shapes = gguf_names(arch, layers, tied, attention_bias)
    shapes |= {n: a.shape for n, a in (extra_tensors or {}).items()}
    for name, shape in shapes.items():
        kind = "F32"
        if len(shape) == 2:
            kind, turn = kinds[turn % len(kinds)], turn + 1
        rows = shape[0] if len(shape) == 2 else 1
        raw = random_blocks(kind, rows, shape[-1], rng)
        if extra_tensors and name in extra_tensors:
            raw = extra_tensors[name].reshape(1, -1).view(np.uint8)
        if edit:
            raw = edit(name, kind, raw)
        stored[name] = (kind, raw)
        raw = raw.reshape(-1) if len(shape) == 1 else raw
        if kind in ("F32", "F16"):
            dtype = np.float32 if kind == "F32" else np.float16
            w.add_tensor(name, raw.view(dtype).reshape(shape))
        else:
            w.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return stored


def gguf_values(kind, raw):
    """What the gguf library makes of raw bytes, f32."""
    if kind == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])


def write_folder(path, arrays, config=None, *, bf16=(), shards=1):
    """A Hugging Face folder of numpy arrays; names in `bf16` hold uint16 bits."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    if shards > 1:
        names = sorted(arrays)
        weight_map = {n: f"model-{i % shards}.safetensors" for i, n in enumerate(names)}
        for shard in set(weight_map.values()):
            save_file({n: arrays[n] for n in names if weight_map[n] == shard}, path / shard)
        index = path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        return path
    dtypes = {"float32": "F32", "float16": "F16", "uint16": "U16", "int64": "I64", "uint8": "U8"}
    specs = [
        TensorSpec(n, "BF16" if n in bf16 else dtypes[str(a.dtype)], a.shape)
        for n, a in arrays.items()
    ]
    with SafetensorsWriter(path / "model.safetensors", specs) as w:
        for n, a in arrays.items():
            w.write(n, 0, a)
    return path
