"""``convert`` and ``inspect`` on a tiny folder, through fresh processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tiny"
    made.mkdir()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "vocab_size": 96,
        "max_position_embeddings": 128,
    }
    (made / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    tensors = {
        "model.embed_tokens.weight": rng.normal(size=(96, 64)),
        "model.layers.0.mlp.down_proj.weight": rng.normal(size=(64, 128)),
        "model.norm.weight": np.ones(64),
    }
    arrays = {name: value.astype(np.float32) for name, value in tensors.items()}
    save_file(arrays, made / "model.safetensors")
    return made


def test_convert_then_inspect(cli, folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    result = cli("convert", str(folder), str(packed), "--bits", "8", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["path"] == str(packed)
    assert document["bytes"] == sum(f.stat().st_size for f in packed.iterdir())

    report = json.loads(cli("inspect", str(packed), "--json").stdout)
    assert (report["kind"], report["model_type"]) == ("packed", "llama")
    assert report["parameters"] == 96 * 64 + 64 * 128 + 64
    formats = {group["role"]: group["bits_per_weight"] for group in report["groups"]}
    assert formats == {"embedding": 8.5, "mlp": 8.5, "norms": 32.0}

    text = cli("inspect", str(packed)).stdout
    assert "LlamaForCausalLM" in text
    assert "8-bit, groups of 32" in text


def test_patterns_reach_the_converter(cli, folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    result = cli("convert", str(folder), str(packed), "--exclude", "*.down_proj", "--minimums")
    assert result.returncode == 0, result.stderr
    report = json.loads(cli("inspect", str(packed), "--json").stdout)
    formats = {group["role"]: group["format"] for group in report["groups"]}
    assert formats["mlp"] == "F32"
    assert formats["embedding"] == "4-bit, groups of 32, with minimum"


def test_six_bits_for_one_module(cli, folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    own = ("--module-bits", "*.embed_tokens=6", "--bits", "8")
    result = cli("convert", str(folder), str(packed), *own)
    assert result.returncode == 0, result.stderr
    report = json.loads(cli("inspect", str(packed), "--json").stdout)
    formats = {group["role"]: group["format"] for group in report["groups"]}
    assert formats["embedding"] == "6-bit, groups of 32"
    assert formats["mlp"] == "8-bit, groups of 32"
    bits = {group["role"]: group["bits_per_weight"] for group in report["groups"]}
    assert (bits["embedding"], bits["mlp"]) == (6.5, 8.5)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["convert", "{folder}", "{tmp}/x", "--bits", "5"], "invalid_parameter"),
        (["convert", "{folder}", "{tmp}/x", "--module-bits", "*"], "invalid_parameter"),
        (["convert", "{folder}", "{tmp}/x", "--module-bits", "*=5"], "invalid_parameter"),
        (["convert", "{folder}", "{tmp}/x", "--module-bits", "*.none=6"], "invalid_parameter"),
        (["convert", "{folder}", "{folder}"], "storage_failed"),
        (["convert", "{tmp}/absent", "{tmp}/x"], "checkpoint_invalid"),
        (["inspect", "{tmp}/absent"], "checkpoint_invalid"),
        (["inspect", "{folder}/config.json"], "checkpoint_invalid"),
    ],
)
def test_errors_have_codes(cli, folder: Path, tmp_path: Path, arguments, code: str) -> None:
    words = [word.format(folder=folder, tmp=tmp_path) for word in arguments]
    result = cli(*words, "--json")
    assert result.returncode == 1
    assert json.loads(result.stderr)["error"]["code"] == code
    assert not (tmp_path / "x").exists()
