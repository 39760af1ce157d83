"""Damaged and hostile files: an error of ours or a valid result, never a crash or a hang."""

import random
import time

import numpy as np
import pytest
from model_files import write_folder, write_gguf

from edge_infer.checkpoint import Checkpoint
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.inspect import inspect
from edge_infer.errors import EdgeInferError

pytestmark = pytest.mark.usefixtures("no_tokenizer")

FLIPS = 400
BOUND = 30.0  # seconds for one tiny file, a hundred times the usual: what takes longer hangs


def outcome(action):
    """Runs an action; only success or an EdgeInferError is allowed, within the bound."""
    start = time.perf_counter()
    try:
        action()
        result = "accepted"
    except EdgeInferError as e:
        assert e.message and e.code
        result = type(e).__name__
    assert time.perf_counter() - start < BOUND
    return result


def flipped(raw, region, rng):
    """One to four damaged spots in the first `region` bytes: bits, bytes, or 64-bit extremes."""
    out = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(region, len(out) - 8))
        how = rng.randrange(4)
        if how == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            out[at] = rng.randrange(256)
        elif how == 2:
            out[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\0" * 7 + b"\x10"])
        else:
            del out[at : at + rng.randint(1, 8)]
    return bytes(out)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path, "gemma3", ["Q4_0", "Q6_K", "F16"], layers=1)
    return path.read_bytes()


@pytest.fixture(scope="module")
def packed_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    w = np.random.default_rng(0).standard_normal((48, 96)).astype(np.float32)
    arrays = {f"model.layers.{i}.mlp.up_proj.weight": w for i in range(2)}
    write_folder(folder / "hf", arrays | {"model.norm.weight": w[0]})
    bits = [("*.layers.1.*", 6)]
    return convert(folder / "hf", folder / "packed", symmetric=False, module_bits=bits)


def test_flipped_gguf_headers(tmp_path, gguf_bytes):
    rng, seen = random.Random(1), set()
    region = gguf_bytes.index(b"blk.0.ffn_down.weight") + 200
    for i in range(FLIPS):
        path = tmp_path / "m.gguf"
        path.write_bytes(flipped(gguf_bytes, region, rng))
        seen.add(outcome(lambda p=path: inspect(p)))
        if i % 4 == 0:
            seen.add(outcome(lambda p=path, i=i: convert(p, tmp_path / f"out{i}")))
    assert {"CheckpointError", "UnsupportedError", "accepted"} <= seen
    assert not [p for p in tmp_path.iterdir() if ".partial" in p.name]


def test_flipped_gguf_tensors(tmp_path, gguf_bytes):
    """Damage in the data gives numbers or a named error; it cannot give anything else."""
    rng = random.Random(2)
    for i in range(20):
        raw = bytearray(gguf_bytes)
        for _ in range(50):
            raw[rng.randrange(len(raw) // 2, len(raw))] ^= 1 << rng.randrange(8)
        (tmp_path / "m.gguf").write_bytes(raw)
        outcome(lambda i=i: convert(tmp_path / "m.gguf", tmp_path / f"out{i}"))


def test_truncated_ggufs(tmp_path, gguf_bytes):
    rng, seen = random.Random(3), set()
    lengths = [0, 3, 4, 8, 16, 23, 24, 25, *(rng.randrange(len(gguf_bytes)) for _ in range(100))]
    for n in lengths:
        (tmp_path / "m.gguf").write_bytes(gguf_bytes[:n])
        seen.add(outcome(lambda: inspect(tmp_path / "m.gguf")))
    assert seen <= {"CheckpointError"}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_flipped_packed_folders(tmp_path, packed_folder, name):
    rng, seen = random.Random(4), set()
    for file in packed_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    raw = (packed_folder / name).read_bytes()
    region = int.from_bytes(raw[:8], "little") + 8 if name.startswith("model") else len(raw)
    for _ in range(FLIPS):
        (tmp_path / name).write_bytes(flipped(raw, region, rng))
        seen.add(outcome(lambda: Checkpoint.open(tmp_path)))
        seen.add(outcome(lambda: inspect(tmp_path)))
    assert "CheckpointError" in seen


def test_truncated_safetensors(tmp_path, packed_folder):
    rng, seen = random.Random(5), set()
    (tmp_path / "config.json").write_bytes((packed_folder / "config.json").read_bytes())
    raw = (packed_folder / "model.safetensors").read_bytes()
    for n in [0, 1, 7, 8, 9, *(rng.randrange(len(raw)) for _ in range(100))]:
        (tmp_path / "model.safetensors").write_bytes(raw[:n])
        seen.add(outcome(lambda: Checkpoint.open(tmp_path)))
    assert seen == {"CheckpointError"}


def test_flipped_sources(tmp_path):
    rng = random.Random(6)
    w = np.random.default_rng(0).standard_normal((48, 96)).astype(np.float16)
    write_folder(tmp_path / "hf", {"model.layers.0.mlp.up_proj.weight": w, "lm_head.weight": w})
    raw = (tmp_path / "hf" / "model.safetensors").read_bytes()
    for i in range(150):
        (tmp_path / "hf" / "model.safetensors").write_bytes(flipped(raw, len(raw), rng))
        outcome(lambda i=i: convert(tmp_path / "hf", tmp_path / f"out{i}"))


@pytest.mark.parametrize(
    "config",
    [
        '{"model_type": 5, "architectures": 7, "text_config": []}',
        '{"architectures": [], "vocab_size": "many", "max_position_embeddings": -1}',
        '{"architectures": [[]], "text_config": {"hidden_size": true}}',
        '{"quantization_config": []}',
        '{"quantization_config": {"quant_method": {"a": 1}}}',
        '{"model_type": null, "tie_word_embeddings": "yes"}',
    ],
)
def test_odd_configs(tmp_path, config):
    w = np.ones((48, 96), np.float32)
    write_folder(tmp_path / "hf", {"model.embed_tokens.weight": w})
    (tmp_path / "hf" / "config.json").write_text(config)
    outcome(lambda: inspect(tmp_path / "hf"))
    outcome(lambda: convert(tmp_path / "hf", tmp_path / "out"))
