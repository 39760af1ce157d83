"""Packed weights against the same weights dequantized to f32, and ISA levels against scalar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file, save_file

from edge_infer import _native
from edge_infer.checkpoint import Checkpoint
from edge_infer.checkpoint.convert import convert

pytest.importorskip("torch")
pytest.importorskip("transformers")

KINDS = ("llama", "qwen2", "qwen3", "gemma3")
VARIANTS = {
    "q4": {"bits": 4},
    "q4-min-g64": {"bits": 4, "symmetric": False, "group_size": 64},
    "q6": {"bits": 6},
    "q6-min-g64": {"bits": 6, "symmetric": False, "group_size": 64},
    "q8": {"bits": 8},
    "mixed": {"bits": 4, "module_bits": [("*embed_tokens", 6), ("*.k_proj", 6), ("*.up_proj", 8)]},
}
TOKENS = [int(t) for t in np.random.default_rng(9).integers(0, tiny.COMMON["vocab_size"], 60)]


def dequantized(packed: Path, folder: Path) -> Path:
    """A plain f32 folder with the values that the packed one stands for."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny.plain_config(packed)))
    tensors = {k: np.ascontiguousarray(v) for k, v in tiny.dequantized(packed).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    root = tmp_path_factory.mktemp("packed")
    out = {}
    for kind in KINDS:
        tiny.make(kind, root / kind)
        for variant, options in VARIANTS.items():
            name = f"{kind}-{variant}"
            packed = convert(root / kind, root / name, **options)
            out[name] = (packed, dequantized(packed, root / f"{name}-f32"))
    return out


def worker(arguments_file: str) -> None:
    """Decode-numerics and prefill logits of several folders, at this process's ISA level."""
    arguments = json.loads(Path(arguments_file).read_text())
    results = {}
    for name, folder in arguments["folders"].items():
        r = tiny.runner(folder)
        assert r.program.isa == os.environ["EDGE_INFER_ISA"]
        results[f"{name}/decode"] = tiny.logits(r, [TOKENS], prompts=[0])[0]
        results[f"{name}/prefill"] = tiny.logits(r, [TOKENS])[0]
    np.savez(arguments["out"], **results)


def logits_at(level: str, folders: dict[str, Path], tmp: Path) -> dict[str, np.ndarray]:
    tmp.mkdir(exist_ok=True)
    file, out = tmp / f"{level}.json", tmp / f"{level}.npz"
    named = {n: str(f) for n, f in folders.items()}
    file.write_text(json.dumps({"folders": named, "out": str(out)}))
    subprocess.run(
        [sys.executable, "-c", f"import test_packed as t; t.worker({str(file)!r})"],
        env=tiny.environment(level),
        check=True,
        timeout=200,
    )
    return dict(np.load(out))


@pytest.fixture(scope="module")
def by_level(folders, tmp_path_factory):
    tmp = tmp_path_factory.mktemp("levels")
    packed = {n: p for n, (p, _) in folders.items()}
    return {level: logits_at(level, packed, tmp) for level in _native.available_levels()}


def test_packed_is_close_to_dequantized(folders, by_level) -> None:
    """The bound is what int8 activations (decode) and bf16 (prefill) cost: a few percent of the
    logits' standard deviation on random tiny models, far less than 4-bit weights themselves."""
    for name, (_, plain) in folders.items():
        want = tiny.logits(tiny.runner(plain), [TOKENS])[0]
        for level, results in by_level.items():
            for numerics in ("decode", "prefill"):
                error = results[f"{name}/{numerics}"] - want
                rms = np.sqrt((error**2).mean()) / want.std()
                assert rms < 0.05, (name, level, numerics, rms)


def test_levels_agree_with_scalar(by_level) -> None:
    """Linears have the same bits at every level (tests/native/test_linear.py); norms and softmax
    differ in their last ones, which an int8 code on the edge of two values enlarges."""
    for level, results in by_level.items():
        for name, got in results.items():
            want = by_level["scalar"][name]
            bf16 = name.endswith("prefill") and level in ("avx512bf16", "amx")
            rms = np.sqrt(((got - want) ** 2).mean()) / want.std()
            assert rms < (0.05 if bf16 else 0.02), (level, name, rms)


def test_integer_prefill_is_decode_where_there_is_no_bf16(by_level) -> None:
    for level in ("scalar", "avx2", "avx2vnni", "avx512"):
        for name, got in by_level.get(level, {}).items():
            if not name.endswith("prefill"):
                continue
            decode = by_level[level][name.replace("prefill", "decode")]
            rms = np.sqrt(((got - decode) ** 2).mean()) / decode.std()
            assert rms < 0.02, (level, name, rms)  # only attention sums in another order


def test_config_says_untied_but_the_head_is_absent(tmp_path) -> None:
    model = tiny.make("llama", tmp_path / "hf")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "hf" / "model.safetensors")
    model.lm_head.weight = model.model.embed_tokens.weight
    want = tiny.reference(model, TOKENS)
    tiny.check_close(tiny.logits(tiny.runner(tmp_path / "hf"), [TOKENS])[0], want)
    packed = convert(tmp_path / "hf", tmp_path / "packed", bits=8)
    assert "lm_head" not in Checkpoint.open(packed).matrices
    got = tiny.logits(tiny.runner(packed), [TOKENS])[0]
    assert np.sqrt(((got - want) ** 2).mean()) < 0.05 * want.std()
