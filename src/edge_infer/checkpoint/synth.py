"""Random models of real shape: a public configuration, a real tokenizer, weights from a seed.

Speed and memory do not depend on what the weights say, so a model of any size can be measured
where no trained weights are at hand. The folder is an ordinary Hugging Face one, and other engines'
converters read it too.
"""

from __future__ import annotations

import copy
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_infer.checkpoint.fingerprint import tool_version
from edge_infer.checkpoint.folder import Progress, write_plain_folder
from edge_infer.checkpoint.gguf_names import expected_shapes
from edge_infer.checkpoint.safetensors_io import TensorSpec
from edge_infer.checkpoint.source import PANEL_VALUES, from_f32
from edge_infer.errors import CheckpointError, ConfigError

DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
_CONFIG_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_LLAMA3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 128256,
}
_SPARK: dict[str, Any] = {
    "architectures": ["Spark2_5ForCausalLM"],
    "model_type": "spark2_5",
    "attention_bias": False,
    "bos_token_id": 128000,  # of the tokenizer that stands in
    "eos_token_id": 128001,
    "gate_attn_act_mode": "sigmoid",
    "head_dim": 256,
    "headwise_attn_output_gate": True,
    "hidden_act": "gelu",
    "initializer_range": 0.02,
    "max_position_embeddings": 1048576,
    "mlp_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 5000000},
        "sliding_attention": {"partial_rotary_factor": 1.0, "rope_theta": 10000},
    },
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 131072,
}


@dataclass(frozen=True)
class Shape:
    """A model that can be made: its configuration without the dtype, and its tokenizer's name."""

    config: dict[str, Any]
    tokenizer: str
    note: str = ""


def _shape(
    family: dict[str, Any],
    tokenizer: str,
    *,
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    note: str = "",
    **more: Any,
) -> Shape:
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return Shape({**family, **sizes, **more}, tokenizer, note)


_STAND_IN = (
    "The tokenizer is Llama 3's: Spark's own is in no package, and this one's ids fit its "
    "vocabulary."
)
MODELS: dict[str, Shape] = {
    "qwen3-0.6b": _shape(_QWEN3, "qwen3", hidden=1024, inner=3072, layers=28, heads=16),
    "qwen3-1.7b": _shape(_QWEN3, "qwen3", hidden=2048, inner=6144, layers=28, heads=16),
    "qwen3-4b": _shape(_QWEN3, "qwen3", hidden=2560, inner=9728, layers=36, heads=32),
    "llama-3.2-1b": _shape(
        _LLAMA3, "llama3_1", hidden=2048, inner=8192, layers=16, heads=32, head_dim=64
    ),
    "spark-x2.5-1.7b": _shape(
        _SPARK, "llama3_1", hidden=2048, inner=6656, layers=28, heads=8, num_key_value_heads=2,
        note=_STAND_IN,
    ),
    "spark-x2.5-4b": _shape(
        _SPARK, "llama3_1", hidden=2560, inner=10240, layers=36, heads=16, num_key_value_heads=4,
        note=_STAND_IN,
    ),
}  # fmt: skip


def model_config(name: str, layers: int | None = None) -> dict[str, Any]:
    """The configuration of a model of `MODELS`, cut to its first `layers` where that is given.

    Raises ConfigError for unknown names and impossible numbers of layers.
    """
    if name not in MODELS:
        raise ConfigError(f"There is no shape {name!r}.", remedy=f"Known: {', '.join(MODELS)}.")
    config = copy.deepcopy(MODELS[name].config)
    full = config["num_hidden_layers"]
    if layers is not None and not 1 <= layers <= full:
        raise ConfigError(f"{name} has {full} layers; {layers} were asked for.")
    count = config["num_hidden_layers"] = full if layers is None else layers
    if config["model_type"] == "spark2_5":
        kinds = ["sliding_attention"] * 3 + ["full_attention"]
        config["layer_types"] = [kinds[i % 4] for i in range(count)]
    if config["model_type"] == "qwen3":
        config["max_window_layers"] = count
    return config


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a configuration by its Hugging Face name; a tied head is left out."""
    shapes = _spark_shapes(config) if config["model_type"] == "spark2_5" else _dense_shapes(config)
    if config["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    return shapes


def _dense_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return expected_shapes(config)[0]


def _spark_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    vocab = config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embedding.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.self_attn.q_k_v_proj.weight": ((heads + 2 * kv_heads) * dim, hidden),
            f"{layer}.self_attn.g_proj.weight": (heads, hidden),
            f"{layer}.self_attn.out_proj.weight": (hidden, heads * dim),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
        }
    return shapes


def random_values(
    name: str, shape: tuple[int, ...], layers: int, seed: int
) -> Iterator[npt.NDArray[np.float32]]:
    """A tensor's values in order, in pieces, float32: a function of the seed and the name alone.

    Norms are ones. Matrices are normal with the standard deviation 1/sqrt(K), so that outputs are
    as large as inputs; those that add to the residual stream are smaller by sqrt(2 * layers), so
    that it does not grow with depth.
    """
    count = int(np.prod(shape))
    if len(shape) == 1:
        yield np.ones(count, np.float32)
        return
    deviation = shape[-1] ** -0.5
    if name.rsplit(".", 2)[-2] in ("o_proj", "out_proj", "down_proj"):
        deviation *= (2 * layers) ** -0.5
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
    for start in range(0, count, PANEL_VALUES):
        values = rng.standard_normal(min(PANEL_VALUES, count - start), np.float32)
        values *= np.float32(deviation)
        yield values


def synthesize(
    config: dict[str, Any],
    destination: str | Path,
    *,
    seed: int = 0,
    dtype: str = "bf16",
    tokenizer: Path | None = None,
    name: str = "",
    note: str = "",
    progress: Progress | None = None,
) -> Path:
    """Writes a folder with random weights for a configuration; memory stays at a few panels.

    ``tokenizer`` is a folder with tokenizer.json and tokenizer_config.json, which are copied; None
    leaves them out. ``dtype`` is of the matrices and norms: bf16, f16 or f32. The same seed gives
    the same bytes. Raises ConfigError, CheckpointError and StorageError.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}.", remedy=f"Choose one of {', '.join(DTYPES)}.")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more.")
    stored, layers = DTYPES[dtype], config["num_hidden_layers"]
    if tokenizer is not None:
        check_tokenizer(tokenizer)

    def pieces(tensor: str, shape: tuple[int, ...]) -> Callable[[], Iterator[npt.NDArray[Any]]]:
        return lambda: (from_f32(v, stored) for v in random_values(tensor, shape, layers, seed))

    tensors = [
        (TensorSpec(tensor, stored, shape), pieces(tensor, shape))
        for tensor, shape in tensor_shapes(config).items()
    ]

    def extras(folder: Path) -> list[str]:
        if tokenizer is None:
            return []
        for file in TOKENIZER_FILES:
            shutil.copyfile(tokenizer / file, folder / file)
        return list(TOKENIZER_FILES)

    def documents(names: list[str]) -> dict[str, Any]:
        tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
        return {
            "config.json": {**config, "torch_dtype": _CONFIG_DTYPES[stored]},
            "generation_config.json": {"_from_model_config": True, **tokens},
            "provenance.json": {
                "source": {"kind": "random", "name": name, "seed": seed, "dtype": dtype},
                "tool": {"name": "edge-infer", "version": tool_version()},
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "extras": names,
                "notes": [note] if note else [],
            },
        }

    return write_plain_folder(
        Path(destination), tensors, extras=extras, documents=documents, progress=progress
    )


def check_tokenizer(folder: Path) -> None:
    """CheckpointError unless the folder has the files of a tokenizer."""
    for file in TOKENIZER_FILES:
        if not (folder / file).is_file():
            raise CheckpointError(
                f"{folder} has no {file}.",
                remedy="Name a folder with tokenizer.json and tokenizer_config.json.",
            )
