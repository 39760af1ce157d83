"""Small random models through LLM(): every weight path, and AWQ and GPTQ checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import engines
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import foreign_support  # noqa: E402
import tiny  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from edge_infer.checkpoint.convert import convert  # noqa: E402
from edge_infer.errors import UnsupportedError  # noqa: E402
from edge_infer.vllm_plugin.paths import FLAG, create, tinygemm  # noqa: E402

tiny.CONFIGS["qwen3"] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
tiny.CONFIGS["llama"] = {"num_attention_heads": 2, "num_key_value_heads": 1}  # heads of 32
# longer than the rows from which tinygemm multiplies dequantized blocks
PROMPT = np.random.default_rng(3).integers(0, 211, tinygemm.MATMUL_ROWS + 12).tolist()


def prompt_logprobs(llm) -> tuple[np.ndarray, list[int]]:
    """([tokens - 1, vocab] of PROMPT, greedy tokens after it)."""
    output = engines.generate(llm, [PROMPT], 6, prompt_logprobs=211)[0]
    rows = [[row[i].logprob for i in range(211)] for row in output.prompt_logprobs[1:]]
    return np.array(rows), list(output.outputs[0].token_ids)


def distance(got: np.ndarray, logits: np.ndarray) -> float:
    """RMS difference of log-probabilities, relative to their spread."""
    want = torch.from_numpy(np.array(logits[: len(got)])).double().log_softmax(-1).numpy()
    return float(np.sqrt(np.mean((got - want) ** 2)) / want.std())


def follows(logits_of, tokens: list[int], tolerance: float) -> bool:
    """Whether each generated token is, up to near-ties, the best one of the reference."""
    logits = np.asarray(logits_of(PROMPT + tokens))
    for i, token in enumerate(tokens):
        row = logits[len(PROMPT) - 1 + i]
        if row.max() - row[token] > tolerance * row.std():
            return False
    return True


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make("qwen3", folder / "plain", tied=True)
    return convert(folder / "plain", folder / "packed", group_size=32)


def paths_of(llm) -> set[str]:
    """The names of the paths on which the model's layers run."""
    modules = engines.model_of(llm).modules()
    return {m.edge_infer_path.name for m in modules if hasattr(m, "edge_infer_path")}


@pytest.mark.parametrize(
    ("name", "compiled"),
    [("native", False), ("tinygemm", True), ("wna16", False), ("w4a8", False)],
)
def test_path_gives_the_models_logits(monkeypatch, packed, name, compiled):
    reason = create(name).unavailable()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv(FLAG, name)
    runner = tiny.runner(packed, max_model_len=96)
    with engines.engine(packed, enforce_eager=not compiled) as llm:
        assert paths_of(llm) == {name}
        got, tokens = prompt_logprobs(llm)
    error = distance(got, tiny.logits(runner, [PROMPT])[0])
    print(f"{name}: relative rms {error:.5f}")
    assert error < 0.05
    assert follows(lambda ids: tiny.logits(runner, [ids])[0], tokens, 0.15)


def test_compile_cache_tells_paths_apart(monkeypatch, packed):
    from vllm.config import ModelConfig, VllmConfig
    from vllm.plugins import load_general_plugins

    load_general_plugins()

    def key(path: str, one_layout: str) -> str:
        monkeypatch.setenv(FLAG, path)
        monkeypatch.setenv(tinygemm.ONE_LAYOUT, one_layout)
        model = ModelConfig(str(packed), quantization="cpu_int4", skip_tokenizer_init=True)
        return VllmConfig(model_config=model).compute_hash()

    keys = [key("native", "1"), key("tinygemm", "1"), key("tinygemm", "0")]
    assert len(set(keys)) == 3
    assert key("tinygemm", "1") == keys[1]


def make_foreign(folder: Path, method: str) -> transformers.LlamaForCausalLM:
    """A tiny llama whose linear layers are modules of `method`; returned with their values."""
    model = tiny.make("llama", folder)
    tensors = load_file(folder / "model.safetensors")
    for i, (name, module) in enumerate(model.model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            n, k = module.weight.shape
            parts, values = foreign_support.module(method, n, k, 32, seed=i)
            del tensors[f"model.{name}.weight"]
            tensors |= {f"model.{name}.{kind}": part for kind, part in parts.items()}
            module.weight.data.copy_(values)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = foreign_support.settings(method, 32)
    (folder / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize(("method", "name"), [("awq", "native"), ("gptq", "tinygemm")])
def test_other_checkpoints(tmp_path, method, name):
    model = make_foreign(tmp_path, method)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"]["weight_path"] = name  # the field, where the flag is not set
    file.write_text(json.dumps(config))
    with engines.engine(tmp_path) as llm:
        assert paths_of(llm) == {name}
        got, tokens = prompt_logprobs(llm)
    error = distance(got, tiny.reference(model, PROMPT))
    print(f"{method}: relative rms {error:.5f}")
    assert error < 0.05
    assert follows(lambda ids: tiny.reference(model, ids), tokens, 0.15)


def test_act_order_is_found_in_the_tensors(tmp_path):
    make_foreign(tmp_path, "gptq")
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.g_idx"
    tensors[name] = tensors[name].flip(0)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    match = r"layers\.1\.self_attn\.k_proj has act-order"
    with pytest.raises(UnsupportedError, match=match), engines.engine(tmp_path):
        pass
