"""Hugging Face folders to the packed format: what is quantized, what is carried, how."""

import json

import numpy as np
import pytest
from model_files import write_folder
from safetensors import safe_open

from edge_infer.checkpoint import Checkpoint
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.safetensors_io import read_array
from edge_infer.errors import CheckpointError, ConfigError, StorageError, UnsupportedError

RNG = np.random.default_rng(0)


def f32(*shape):
    return (RNG.standard_normal(shape) * 0.05).astype(np.float32)


def bf16(*shape):
    return (f32(*shape).view(np.uint32) >> 16).astype(np.uint16)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def relative_error(got, expected):
    return float(np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()))


def language_model(head=True):
    model = {
        "model.embed_tokens.weight": bf16(100, 64),
        "model.layers.0.self_attn.q_proj.weight": bf16(64, 64),
        "model.layers.0.self_attn.q_proj.bias": bf16(64),
        "model.layers.0.self_attn.g_proj.weight": bf16(8, 64),
        "model.layers.0.input_layernorm.weight": bf16(64),
        "model.layers.0.mlp.gate.weight": bf16(32, 64),
        "model.layers.0.mlp.down_proj.weight": bf16(48, 80),
        "model.norm.weight": bf16(64),
    }
    return model | ({"lm_head.weight": bf16(100, 64)} if head else {})


def folder_of(tmp_path, arrays, config=None, **kw):
    names = {n for n, a in arrays.items() if a.dtype == np.uint16}
    return write_folder(tmp_path / "source", arrays, config, bf16=names, **kw)


def run(tmp_path, arrays, config=None, **options):
    folder = folder_of(tmp_path, arrays, config)
    return Checkpoint.open(convert(folder, tmp_path / "out", **options))


@pytest.mark.parametrize(
    "options,bits,bound",
    [
        ({}, 4, 0.1),
        ({"symmetric": False}, 4, 0.09),
        ({"group_size": 128}, 4, 0.12),
        ({"bits": 6}, 6, 0.025),
        ({"bits": 6, "symmetric": False, "group_size": 64}, 6, 0.025),
        ({"bits": 8}, 8, 0.006),
        ({"bits": 8, "group_size": 64}, 8, 0.007),
    ],
)
def test_forms(tmp_path, values, options, bits, bound):
    arrays = language_model()
    c = run(tmp_path, arrays, **options)
    packed = ["model.embed_tokens", "model.layers.0.self_attn.q_proj",
              "model.layers.0.mlp.down_proj", "lm_head"]  # fmt: skip
    assert sorted(c.matrices) == sorted(packed)
    for module in packed:
        m = c.matrices[module]
        assert (m.bits, m.group_size) == (bits, options.get("group_size", 32))
        assert (m.minimums is None) == options.get("symmetric", True)
        expected = widen(arrays[f"{module}.weight"])
        assert (m.n, m.k) == expected.shape
        assert 0 < relative_error(values(c, module), expected) < bound
    assert c.config["quantization_config"]["version"] == (2 if bits == 6 else 1)
    provenance = json.loads((c.path / "provenance.json").read_text())
    assert provenance["format"]["version"] == (2 if bits == 6 else 1)
    with safe_open(c.files[0], "numpy") as f:  # the safetensors library reads what we wrote
        assert set(f.keys()) == set(c.tensors)


def test_bits_by_module(tmp_path):
    patterns = [("*", 4), ("model.embed_tokens", 6), ("*.down_proj", 6), ("*.down_proj", 8)]
    c = run(tmp_path, language_model(), module_bits=patterns)
    assert {n.rpartition(".")[2]: m.bits for n, m in c.matrices.items()} == {
        "embed_tokens": 6, "q_proj": 4, "down_proj": 8, "lm_head": 4,
    }  # fmt: skip
    q = c.config["quantization_config"]
    assert (q["version"], q["bits"]) == (2, 4)


@pytest.mark.parametrize(
    "module_bits,message",
    [
        ([("*.nothing", 6)], r"'\*\.nothing' matches no matrix .* quantized"),
        ([("model.norm", 6)], "matches no matrix that is quantized"),
        ([("*.q_proj", 5)], "bits is 5"),
    ],
)
def test_bits_by_module_that_make_no_sense(tmp_path, module_bits, message):
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, language_model(), module_bits=module_bits)


def test_what_is_carried_over(tmp_path):
    arrays = language_model()
    c = run(tmp_path, arrays)
    for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight",
                 "model.layers.0.self_attn.q_proj.bias"):  # fmt: skip
        assert c.tensors[name].dtype == "F32"
        assert np.array_equal(read_array(c.tensors[name]), widen(arrays[name]))
    for name in ("model.layers.0.mlp.gate.weight", "model.layers.0.self_attn.g_proj.weight"):
        assert c.tensors[name].dtype == "BF16"
        assert np.array_equal(read_array(c.tensors[name]), arrays[name])


def test_towers_convolutions_positions_and_integers_stay(tmp_path):
    arrays = language_model() | {
        "visual.blocks.0.attn.qkv.weight": bf16(96, 64),
        "visual.blocks.0.norm1.weight": bf16(64),
        "model.vision_tower.encoder.layers.0.mlp.fc1.weight": bf16(96, 64),
        "model.multi_modal_projector.linear.weight": bf16(96, 64),
        "thinker.audio_tower.layers.0.fc1.weight": bf16(96, 64),
        "patch_embed.weight": bf16(32, 3, 4, 4),
        "model.embed_positions.weight": bf16(64, 64),
        "model.position_ids": np.arange(64, dtype=np.int64).reshape(1, 64),
        "model.layers.0.conv.conv.weight": bf16(64, 1, 3),
    }
    c = run(tmp_path, arrays)
    assert len(c.matrices) == 4
    for name, a in arrays.items():
        if name not in language_model():
            info = c.tensors[name]
            assert info.dtype == ("I64" if a.dtype == np.int64 else "BF16"), name
            assert np.array_equal(read_array(info), a)


def test_include_and_exclude(tmp_path):
    arrays = language_model() | {"visual.blocks.0.attn.qkv.weight": bf16(96, 64)}
    c = run(tmp_path, arrays, include=["visual.*.qkv", "*.g_proj"], exclude=["lm_head", "*.down*"])
    assert sorted(c.matrices) == [
        "model.embed_tokens",
        "model.layers.0.self_attn.g_proj",
        "model.layers.0.self_attn.q_proj",
        "visual.blocks.0.attn.qkv",
    ]
    assert c.tensors["lm_head.weight"].dtype == "BF16"
    for bad, message in (("nothing.*", "matches no tensor"), ("*norm*", "only 2-D")):
        with pytest.raises(ConfigError, match=message):
            convert(tmp_path / "source", tmp_path / "other", include=[bad])
    with pytest.raises(ConfigError, match="matches no tensor"):
        convert(tmp_path / "source", tmp_path / "other", exclude=["lm_heads"])


@pytest.mark.parametrize(
    "options,message",
    [
        ({"bits": 5}, "bits is 5"),
        ({"group_size": 16}, "group_size is 16"),
        ({"bits": 8, "symmetric": False}, "always symmetric"),
    ],
)
def test_impossible_options(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        convert(tmp_path / "whatever", tmp_path / "out", **options)


def test_f32_f16_and_shards(tmp_path, values):
    arrays = {f"model.layers.{i}.mlp.up_proj.weight": f32(40, 96) for i in range(5)}
    arrays |= {f"model.layers.{i}.mlp.down_proj.weight": f32(40, 96).astype(np.float16)
               for i in range(5)}  # fmt: skip
    folder = write_folder(tmp_path / "source", arrays, shards=3)
    c = Checkpoint.open(convert(folder, tmp_path / "out", bits=8))
    for name, a in arrays.items():
        assert relative_error(values(c, name), a.astype(np.float32)) < 0.006
    files = json.loads((tmp_path / "out" / "provenance.json").read_text())["source"]["files"]
    assert len(files) == 3 and all(len(f["sha256"]) == 64 and f["size"] for f in files)


def test_stacked_experts(tmp_path, values):
    arrays = language_model() | {
        "model.layers.0.mlp.experts.gate_up_proj": bf16(3, 40, 64),
        "model.layers.0.mlp.experts.down_proj": bf16(3, 64, 24),
        "model.layers.0.mlp.experts.gate_up_proj_bias": bf16(3, 40),
        "model.layers.1.mlp.experts.0.up_proj.weight": bf16(32, 64),
    }
    c = run(tmp_path, arrays, {"model_type": "some_moe"}, bits=8)
    for name, shape in (("gate_up_proj", (3, 40, 64)), ("down_proj", (3, 64, 24))):
        m = c.matrices[f"model.layers.0.mlp.experts.{name}"]
        assert (m.experts, m.n, m.k) == shape and m.codes.shape[0] == 3
        got = values(c, m.name)
        assert relative_error(got, widen(arrays[m.name])) < 0.006 and got.shape == shape
    assert c.tensors["model.layers.0.mlp.experts.gate_up_proj_bias"].dtype == "F32"
    assert c.matrices["model.layers.1.mlp.experts.0.up_proj"].experts is None


def test_transposed_experts_are_turned(tmp_path, values):
    name = "model.layers.0.feed_forward.experts.gate_up_proj"
    arrays = {name: bf16(2, 64, 48), "model.layers.0.mlp.up_proj.weight": bf16(32, 64)}
    c = run(tmp_path, arrays, {"model_type": "llama4_text"}, bits=8)
    m = c.matrices[name]
    assert (m.experts, m.n, m.k) == (2, 48, 64)
    assert relative_error(values(c, name), widen(arrays[name]).transpose(0, 2, 1)) < 0.006


def test_tied_models_keep_one_copy(tmp_path):
    """The tensors decide; the config is made to agree with them."""
    notes = []
    arrays = language_model(head=False)
    c = run(tmp_path, arrays, {"model_type": "qwen3", "tie_word_embeddings": False})
    assert c.config["tie_word_embeddings"] is True and "lm_head" not in c.matrices
    same = arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"].copy()}
    config = {"model_type": "qwen3", "text_config": {"tie_word_embeddings": False}}
    folder = folder_of(tmp_path / "b", same, config)
    c = Checkpoint.open(convert(folder, tmp_path / "b" / "out", notes=notes))
    assert "lm_head" not in c.matrices and any("one copy" in n for n in notes)
    assert c.config["tie_word_embeddings"] is c.config["text_config"]["tie_word_embeddings"] is True
    different = language_model()
    folder = folder_of(tmp_path / "c", different, {"tie_word_embeddings": True})
    c = Checkpoint.open(convert(folder, tmp_path / "c" / "out", notes=notes))
    assert "lm_head" in c.matrices and c.config["tie_word_embeddings"] is False
    assert any("differs" in n for n in notes)


def test_notes_and_provenance(tmp_path):
    folder = folder_of(tmp_path, language_model(), {"architectures": ["StrangeVlm"]})
    notes = []
    convert(folder, tmp_path / "out", notes=notes, origin="org/strange", exclude=["lm_head"])
    assert any("StrangeVlm" in n and "only vLLM" in n for n in notes)
    p = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert p["source"]["name"] == "org/strange" and p["source"]["kind"] == "huggingface"
    assert p["options"]["exclude"] == ["lm_head"] and p["tool"]["name"] == "edge-infer"
    assert p["notes"] == notes and p["format"] == {"quant_method": "cpu_int4", "version": 1}
    assert str(tmp_path) not in json.dumps(p)


def test_native_architectures_have_no_such_note(tmp_path):
    config = {"architectures": ["Qwen3ForCausalLM"]}
    folder, notes = folder_of(tmp_path, language_model(), config), []
    convert(folder, tmp_path / "out", notes=notes)
    assert notes == []


def test_native_architectures_are_those_of_the_engine():
    from edge_infer import models
    from edge_infer.checkpoint.architectures import NATIVE_ARCHITECTURES

    assert set(models.ARCHITECTURES) == NATIVE_ARCHITECTURES


def test_small_files_come_along_and_weights_do_not(tmp_path):
    folder = folder_of(tmp_path, language_model())
    wanted = ["tokenizer.json", "tokenizer_config.json", "generation_config.json",
              "chat_template.jinja", "merges.txt", "tokenizer.model"]  # fmt: skip
    for name in [*wanted, "pytorch_model.bin", "other.gguf", ".hidden", "provenance.json"]:
        (folder / name).write_text(name)
    (folder / "chat_templates").mkdir()
    (folder / "chat_templates" / "tool.jinja").write_text("x")
    (folder / "onnx").mkdir()
    c = Checkpoint.open(convert(folder, tmp_path / "out"))
    found = {f.name for f in c.path.iterdir()}
    assert found == {
        *wanted, "chat_templates", "config.json", "provenance.json", "model.safetensors",
    }  # fmt: skip
    assert (c.path / "merges.txt").read_text() == "merges.txt"


def test_config_keeps_its_fields(tmp_path):
    config = {"model_type": "qwen3", "hidden_size": 64, "deep": {"a": [1, None]}, "ü": "ß"}
    c = run(tmp_path, language_model(head=False), config)
    q = c.config.pop("quantization_config")
    assert c.config == config | {"tie_word_embeddings": True}
    assert (q["quant_method"], q["version"], q["bits"]) == ("cpu_int4", 1, 4)
    assert q["modules"]["model.layers.0.mlp.down_proj"] == {
        "bits": 4, "group_size": 32, "symmetric": True, "n": 48, "k": 80,
    }  # fmt: skip


def test_a_model_with_nothing_to_quantize_stays_a_plain_folder(tmp_path):
    folder, notes = folder_of(tmp_path, language_model()), []
    c = Checkpoint.open(convert(folder, tmp_path / "out", exclude=["*"], notes=notes))
    assert "quantization_config" not in c.config and not c.matrices
    assert "No tensor was quantized." in notes
    assert set(c.tensors) == set(language_model())


@pytest.mark.parametrize("method", ["gptq", "fp8", "cpu_int4"])
def test_quantized_folders_are_refused(tmp_path, method):
    config = {"quantization_config": {"quant_method": method, "version": 1, "modules": {}}}
    error = CheckpointError if method == "cpu_int4" else UnsupportedError
    with pytest.raises(error, match="already in the packed" if method == "cpu_int4" else method):
        run(tmp_path, language_model(), config)


def test_nan_weights_are_named_and_nothing_stays(tmp_path):
    arrays = language_model()
    arrays["model.layers.0.mlp.down_proj.weight"][17, 3] = 0x7FC0
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.down_proj\.weight .*row 17, col"):
        run(tmp_path, arrays)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_rows_are_named_across_panels(tmp_path):
    w = np.zeros((70000, 64), np.float32)
    w[66001, 5] = np.inf
    with pytest.raises(CheckpointError, match="holds inf at row 66001, column 5"):
        run(tmp_path, {"model.layers.0.mlp.up_proj.weight": w})


def test_a_taken_destination_is_refused(tmp_path):
    folder = folder_of(tmp_path, language_model())
    (tmp_path / "empty").mkdir()
    convert(folder, tmp_path / "empty")
    for taken in ("empty", "source/config.json"):
        with pytest.raises(StorageError, match="exists"):
            convert(folder, tmp_path / taken)


def test_sources_that_are_none(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        convert(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "file").write_text("text")
    with pytest.raises(CheckpointError, match="no GGUF"):
        convert(tmp_path / "file", tmp_path / "out")


def test_progress_reaches_the_end_once(tmp_path):
    folder = folder_of(tmp_path, language_model())
    seen = []
    convert(folder, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    totals = {t for _, t in seen}
    dones = [d for d, _ in seen]
    assert len(totals) == 1 and dones == sorted(dones)
    assert dones[0] == 0 and dones[-1] == totals.pop()


def test_a_source_that_shrinks_meanwhile_is_named(tmp_path):
    arrays = {f"model.layers.{i}.mlp.up_proj.weight": bf16(64, 64) for i in range(3)}
    folder = folder_of(tmp_path, arrays)
    file = folder / "model.safetensors"

    def shrink(done, total):
        with open(file, "r+b") as f:
            f.truncate(file.stat().st_size // 2)

    with pytest.raises(CheckpointError, match="truncated while it was read"):
        convert(folder, tmp_path / "out", progress=shrink)
    assert not (tmp_path / "out").exists()
