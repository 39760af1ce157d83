"""Small random models in vLLM against the native engine or transformers, eager and compiled."""

from __future__ import annotations

import json
from pathlib import Path

import engines
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiny  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from edge_infer.checkpoint.convert import convert  # noqa: E402
from edge_infer.errors import CheckpointError, UnsupportedError  # noqa: E402

PROMPT = [5, 17, 99, 200, 3, 8, 100, 42, 42, 7]
tiny.CONFIGS["qwen2"] = {"num_attention_heads": 2, "num_key_value_heads": 1}  # heads of 32
tiny.CONFIGS["qwen3"] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}


def prompt_logprobs(llm) -> np.ndarray:
    """[tokens - 1, vocab]: what vLLM computes for every position of PROMPT but the last."""
    output = engines.generate(llm, [PROMPT], 4, prompt_logprobs=211)[0]
    rows = [[row[i].logprob for i in range(211)] for row in output.prompt_logprobs[1:]]
    assert len(output.outputs[0].token_ids) == 4
    return np.array(rows)


def check(got: np.ndarray, logits: np.ndarray, bound: float) -> None:
    """RMS difference of log-probabilities, relative to their spread."""
    want = torch.from_numpy(logits[:-1]).double().log_softmax(-1).numpy()
    error = float(np.sqrt(np.mean((got - want) ** 2)) / want.std())
    print(f"relative rms {error:.5f}")
    assert error < bound


@pytest.mark.parametrize(
    "kind,compiled,options",
    [
        ("qwen2", False, {"group_size": 32}),  # biases
        ("qwen3", True, {"group_size": 64, "symmetric": False}),
        ("qwen3", False, {"bits": 8, "module_bits": [("*embed_tokens", 6), ("*.q_proj", 6)]}),
    ],
)
def test_dense(kind, compiled, options, tmp_path):
    tiny.make(kind, tmp_path / "plain", tied=kind == "qwen3")
    folder = convert(tmp_path / "plain", tmp_path / "packed", **options)
    native = tiny.logits(tiny.runner(folder, max_model_len=64), [PROMPT])[0]
    with engines.engine(folder, dtype="float32", enforce_eager=not compiled) as llm:
        check(prompt_logprobs(llm), native, 0.03)


def test_model_that_stores_qkv_by_head_and_gives_its_embedding_no_config(tmp_path):
    config = transformers.FalconConfig(
        vocab_size=211, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_kv_heads=2, new_decoder_architecture=True, bias=False, alibi=False,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.FalconForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.1 if p.dim() == 1 else p.shape[-1] ** -0.5))
            if p.dim() == 1 and name.endswith("weight"):
                p += 1
    model.save_pretrained(tmp_path / "plain")
    folder = convert(tmp_path / "plain", tmp_path / "packed", bits=8)
    with engines.engine(folder, dtype="float32", max_model_len=64) as llm:
        got = prompt_logprobs(llm)
    check(got, tiny.reference(model, PROMPT), 0.05)


def make_moe(folder: Path, stacked: bool) -> transformers.Qwen3MoeForCausalLM:
    config = transformers.Qwen3MoeConfig(
        **tiny.COMMON,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        decoder_sparse_step=1,
        mlp_only_layers=[1],
        norm_topk_prob=True,
        tie_word_embeddings=False,
    )
    torch.manual_seed(3)
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.1 if "norm" in name else p.shape[-1] ** -0.5))
            if "norm" in name:
                p += 1
    model.save_pretrained(folder)  # experts one by one
    if stacked:
        save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    return model


def set_weights(model, weights: dict[str, torch.Tensor]) -> None:
    """Dequantized weights into the model, whose experts are stacked."""
    state = model.state_dict()
    for name, value in state.items():
        base, _, last = name.rpartition(".")
        if name in weights:
            value.copy_(weights[name])
        elif f"{name}.weight" in weights:  # stacked in the checkpoint too
            value.copy_(weights[f"{name}.weight"])
        else:
            parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[last]
            for e in range(value.shape[0]):
                value[e] = torch.cat([weights[f"{base}.{e}.{part}.weight"] for part in parts])


@pytest.mark.parametrize("stacked", [False, True])
def test_experts(stacked, tmp_path):
    model = make_moe(tmp_path / "plain", stacked)
    folder = convert(tmp_path / "plain", tmp_path / "packed", exclude=["*.mlp.gate"])
    weights = {n: torch.from_numpy(np.array(v)) for n, v in tiny.dequantized(folder).items()}
    set_weights(model, weights)
    with engines.engine(folder, dtype="float32") as llm:
        got = prompt_logprobs(llm)
        layer = engines.model_of(llm).model.layers[0].mlp.experts
        assert any(hasattr(m, "edge_infer_experts") for m in layer.modules())
    check(got, tiny.reference(model, PROMPT), 0.05)


@pytest.fixture
def packed(tmp_path) -> Path:
    tiny.make("qwen3", tmp_path / "plain")
    return convert(tmp_path / "plain", tmp_path / "packed")


def engine_config(folder: Path):
    """What vLLM makes of a folder before anything is loaded; it names its method itself."""
    from vllm.engine.arg_utils import EngineArgs

    arguments = EngineArgs(str(folder), skip_tokenizer_init=True, max_model_len=64)
    return arguments.create_engine_config()


def test_compile_cache_key_covers_the_weight_path(packed, monkeypatch):
    """Graphs of two paths call different operations: one's cache must not serve the other."""
    keys = []
    for path in ("native", "tinygemm", "native"):
        monkeypatch.setenv("EDGE_INFER_WEIGHT_PATH", path)
        keys.append(engine_config(packed).compute_hash())
    assert keys[0] == keys[2] != keys[1]


def edit(folder: Path, change) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))


def test_bad_folders_are_refused_before_loading(packed):
    down = "model.layers.0.mlp.down_proj"
    edit(packed, lambda q: q["modules"][down].update(group_size=64))
    with pytest.raises(CheckpointError, match=r"down_proj\.\w+ is .*; its module needs"):
        engine_config(packed)
    edit(packed, lambda q: q["modules"][down].update(group_size=32))
    edit(packed, lambda q: q["modules"].update({"model.extra": q["modules"][down]}))
    with pytest.raises(CheckpointError, match=r"model\.extra\.codes is missing"):
        engine_config(packed)
    edit(packed, lambda q: q.update(version=3))
    with pytest.raises(UnsupportedError, match="version 3; this build reads versions up to 2"):
        engine_config(packed)
