"""Which vLLM layer reads which packed modules, and what the config refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from config_support import config, entry

from edge_infer.errors import CheckpointError, ConfigError, UnsupportedError
from edge_infer.vllm_plugin.config import CpuInt4Config
from edge_infer.vllm_plugin.patches.ranks import refuse_ranks

MODULES = {f"model.layers.0.self_attn.{p}_proj": entry(32) for p in "qkv"}


def test_merged_layers_consist_of_their_modules():
    c = CpuInt4Config.from_config(config(MODULES | {"model.layers.0.mlp.down_proj": entry(64)}))
    c.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    names = [
        form.name.rpartition(".")[2] for form in c.forms_of("model.layers.0.self_attn.qkv_proj")
    ]
    assert names == ["q_proj", "k_proj", "v_proj"]
    assert [form.n for form in c.forms_of("model.layers.0.mlp.down_proj")] == [64]
    assert c.forms_of("model.layers.0.mlp.gate_proj") == []


def test_unquantized_parts_of_a_merge_are_plain():
    modules = dict(MODULES)
    del modules["model.layers.0.self_attn.k_proj"]
    c = CpuInt4Config.from_config(config(modules))
    c.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    forms = c.forms_of("model.layers.0.self_attn.qkv_proj")
    assert [form.plain for form in forms] == [False, True, False]
    assert [form.name.rpartition(".")[2] for form in forms] == ["q_proj", "k_proj", "v_proj"]


def test_tensor_and_pipeline_parallelism_are_refused():
    def ranks(tensor: int, pipeline: int) -> SimpleNamespace:
        return SimpleNamespace(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)

    refuse_ranks(ranks(1, 1))
    with pytest.raises(UnsupportedError, match="over 2 ranks would cut packed matrices"):
        refuse_ranks(ranks(2, 1))
    with pytest.raises(UnsupportedError, match="over 3 stages"):
        refuse_ranks(ranks(1, 3))


def test_newer_version_is_refused():
    with pytest.raises(UnsupportedError, match="version 3; this build reads versions up to 2"):
        CpuInt4Config.from_config(config(version=3))


def test_without_modules():
    with pytest.raises(CheckpointError, match="no modules"):
        CpuInt4Config.from_config(config(modules=None) | {"modules": None})


def test_unknown_weight_path(monkeypatch):
    with pytest.raises(ConfigError, match="no weight path 'fast'"):
        CpuInt4Config.from_config(config(weight_path="fast"))
    monkeypatch.setenv("EDGE_INFER_WEIGHT_PATH", "faster")
    with pytest.raises(ConfigError, match="no weight path 'faster'"):
        CpuInt4Config.from_config(config(weight_path="native"))


@pytest.mark.parametrize("value", [7, ["native"], {"native": 1}])
def test_weight_path_that_is_no_text(value):
    with pytest.raises(ConfigError, match="no weight path"):
        CpuInt4Config.from_config(config(weight_path=value))


def test_a_head_that_the_model_normalizes_is_refused():
    text = SimpleNamespace(tie_word_embeddings=False, norm_head=True)
    model = SimpleNamespace(get_text_config=lambda: text)
    c = CpuInt4Config.from_config(config({"lm_head": entry(32)}))
    with pytest.raises(UnsupportedError, match="norm_head") as refused:
        c.maybe_update_config("no folder", model)
    assert "--exclude 'lm_head'" in refused.value.remedy
    CpuInt4Config.from_config(config(MODULES)).maybe_update_config("no folder", model)


def test_adapters_are_refused(monkeypatch):
    from edge_infer.vllm_plugin import config as module

    current = SimpleNamespace(lora_config=object())
    monkeypatch.setattr(module, "get_current_vllm_config_or_none", lambda: current)
    with pytest.raises(UnsupportedError, match="LoRA"):
        CpuInt4Config.from_config(config(MODULES)).get_quant_method(None, "l.qkv_proj")
