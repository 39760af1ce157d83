"""Damaged values of config.json are refused by name, before anything of their size is made."""

from __future__ import annotations

from typing import Any

import pytest

from edge_infer import models
from edge_infer.errors import CheckpointError
from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.config import DecoderConfig, number
from edge_infer.models.rope import rope_table

CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 32,
    "vocab_size": 300,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 48,
}


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": 10**9},
        {"hidden_activation": ["gelu"]},
        {"rms_norm_eps": 0},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": 10**400},
        {"sliding_window": []},
        {"num_hidden_layers": 10**9},
    ],
)
def test_damaged_fields(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(change)).split("_")[-1].rstrip("s")):
        DecoderConfig.read({**CONFIG, **change})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, True, "1", [], 1e39])
def test_numbers_are_finite(value: Any) -> None:
    with pytest.raises(CheckpointError, match="finite number"):
        number({"rope_theta": value}, "rope_theta")


def test_numbers_are_as_they_are() -> None:
    assert number({"x": 3}, "x", low=3) == 3.0
    with pytest.raises(CheckpointError, match=r"x = -1; 0\.0 or more"):
        number({"x": -1}, "x", low=0.0)


@pytest.mark.parametrize("value", [0, -256])
def test_a_scale_of_no_root(value: int) -> None:
    config = {**CONFIG, "query_pre_attn_scalar": value}
    builder = ProgramBuilder(max_rows=8, max_outputs=1)
    with pytest.raises(CheckpointError, match="query_pre_attn_scalar"):
        models.architecture(config)(builder, None, DecoderConfig.read(config))


def test_sliding_layers_need_a_window() -> None:
    assert DecoderConfig.read(CONFIG).window(0) == 48
    config = DecoderConfig.read({**CONFIG, "sliding_window": None})
    assert config.window(1) == 0
    with pytest.raises(CheckpointError, match="window"):
        config.window(0)


def test_architectures_that_are_no_names() -> None:
    assert not models.supported({"architectures": [{}]})
    with pytest.raises(Exception, match="no architecture"):
        models.architecture({"architectures": [{}]})


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 10**400},
        {"rope_type": "linear", "factor": 1e-45},
        {"rope_type": "yarn", "factor": 10**400, "original_max_position_embeddings": 64},
        {"mrope_section": [10**12]},
        {"mrope_section": [20, -4]},
    ],
)
def test_damaged_rope_scaling(scaling: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        rope_table(32, 10000.0, scaling=scaling)


def test_yarn_over_theta_one() -> None:
    scaling = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}
    with pytest.raises(CheckpointError, match="damaged"):
        rope_table(32, 1.0, scaling=scaling)


@pytest.mark.parametrize("partial", [0.0, -1.0, 1e9, float("nan")])
def test_parts_of_a_head(partial: float) -> None:
    with pytest.raises(CheckpointError, match="RoPE"):
        rope_table(32, 10000.0, partial=partial)


def test_an_unnamed_activation_is_the_familys() -> None:
    bare = {k: v for k, v in CONFIG.items() if k != "hidden_activation"}
    assert DecoderConfig.read({**bare, "model_type": "gemma3_text"}).hidden_act == "gelu_tanh"
    assert DecoderConfig.read({**bare, "model_type": "llama"}).hidden_act == "silu"
