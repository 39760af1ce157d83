"""inspect: right sums from headers alone, for the three kinds of model."""

import numpy as np
import pytest
from model_files import VOCAB, write_folder, write_gguf

from edge_infer.checkpoint import safetensors_io, source
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.inspect import inspect, role_of
from edge_infer.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("no_tokenizer")


@pytest.fixture
def no_weights(monkeypatch):
    """Any attempt to read tensor data fails the test."""

    def refuse(*args, **kw):
        raise AssertionError("weights were read")

    monkeypatch.setattr(source.FileReader, "__init__", refuse)
    monkeypatch.setattr(safetensors_io, "read_array", refuse)


def group(result, role, form=None):
    found = [g for g in result.groups if g.role == role and form in (None, g.format)]
    assert len(found) == 1, result.groups
    return found[0]


def test_gguf(tmp_path, no_weights):
    write_gguf(tmp_path / "m.gguf", "llama", ["Q8_0", "Q4_K"], tied=False)
    r = inspect(tmp_path / "m.gguf")
    assert (r.kind, r.architecture, r.model_type, r.native) == (
        "gguf", "LlamaForCausalLM", "llama", True)  # fmt: skip
    assert (r.context_length, r.layers, r.hidden_size, r.vocab_size) == (1024, 2, 256, VOCAB)
    assert r.tied is False
    assert group(r, "embedding").parameters == VOCAB * 256
    assert group(r, "embedding").bits_per_weight == 8.5
    assert group(r, "attention", "Q4_K").bits_per_weight == 4.5
    assert r.parameters == sum(g.parameters for g in r.groups)
    assert r.bytes == sum(g.bytes for g in r.groups) <= (tmp_path / "m.gguf").stat().st_size
    assert r.provenance["format"] == {"gguf_version": 3}


def test_packed_and_plain_folders(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)

    def w(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    arrays = {
        "model.embed_tokens.weight": w(100, 64),
        "model.layers.0.self_attn.q_proj.weight": w(64, 64),
        "model.layers.0.mlp.experts.up_proj": w(3, 32, 64),
        "model.layers.0.mlp.gate.weight": w(16, 64),
        "model.layers.0.input_layernorm.weight": w(64),
        "visual.proj.weight": w(32, 64),
    }
    config = {"model_type": "odd", "architectures": ["OddModel"],
              "text_config": {"max_position_embeddings": 77, "hidden_size": 64}}  # fmt: skip
    write_folder(tmp_path / "hf", arrays, config)
    convert(tmp_path / "hf", tmp_path / "packed", symmetric=False, origin="org/odd")
    total = sum(a.size for a in arrays.values())

    def refuse(*args, **kw):
        raise AssertionError("weights were read")

    monkeypatch.setattr(source.FileReader, "__init__", refuse)
    plain, packed = inspect(tmp_path / "hf"), inspect(tmp_path / "packed")
    assert plain.kind == "huggingface" and packed.kind == "packed"
    for r in (plain, packed):
        assert (r.architecture, r.model_type, r.native) == ("OddModel", "odd", False)
        assert r.parameters == total and r.tied is True
        assert (r.context_length, r.hidden_size, r.layers) == (77, 64, None)
        assert r.bytes == sum(g.bytes for g in r.groups)
    assert plain.bits_per_weight == 32 and plain.quantization is None and plain.provenance is None
    experts = group(packed, "experts")
    assert experts.format == "4-bit, groups of 32, with minimum"
    assert experts.bits_per_weight == 5.0 and experts.parameters == 3 * 32 * 64
    # 100 channels are padded to 112
    assert group(packed, "embedding").bits_per_weight == 5.0 * 112 / 100
    assert group(packed, "towers").format == "F32" and group(packed, "norms").tensors == 1
    assert "modules" not in packed.quantization
    assert packed.provenance["source"]["name"] == "org/odd"


@pytest.mark.parametrize(
    "name,role",
    [
        ("model.embed_tokens", "embedding"),
        ("token_embd.weight", "embedding"),
        ("lm_head", "head"),
        ("output.weight", "head"),
        ("blk.3.attn_output.weight", "attention"),
        ("blk.3.ffn_down_exps.weight", "experts"),
        ("blk.3.ffn_down.weight", "mlp"),
        ("blk.3.attn_q_norm.weight", "norms"),
        ("model.layers.1.mlp.experts.3.w1", "experts"),
        ("model.vision_tower.layers.0.self_attn.q_proj", "towers"),
        ("something.else", "other"),
    ],
)
def test_roles(name, role):
    assert role_of(name) == role


def test_what_is_no_model(tmp_path):
    (tmp_path / "x").write_text("text")
    with pytest.raises(CheckpointError, match="no GGUF"):
        inspect(tmp_path / "x")
    with pytest.raises(CheckpointError, match="does not exist"):
        inspect(tmp_path / "y")
