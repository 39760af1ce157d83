"""A GGUF as a bf16 folder, plain and with the noise that makes a reference of it."""

from __future__ import annotations

import model_files
import numpy as np
import pytest

from edge_infer.checkpoint import Checkpoint
from edge_infer.checkpoint.dequantize import dequantize
from edge_infer.checkpoint.gguf_names import hf_name
from edge_infer.checkpoint.gguf_source import open_gguf
from edge_infer.checkpoint.safetensors_io import read_array
from edge_infer.checkpoint.source import from_f32, to_f32
from edge_infer.errors import CheckpointError, ConfigError

# the step of a block by the file format's own arithmetic, which the gguf library shows: the
# smallest distance between two of its values, over many random codes
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def tensors(folder):
    found = Checkpoint.open(folder).tensors
    return {name: to_f32(read_array(info), info.dtype) for name, info in found.items()}


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K", "F16"])
def test_without_noise_values_are_rounded_to_bf16(kind, tmp_path, no_tokenizer) -> None:
    stored = model_files.write_gguf(tmp_path / "m.gguf", "gemma3", [kind])
    got = tensors(dequantize(tmp_path / "m.gguf", tmp_path / "out"))
    for name, (type_, raw) in stored.items():
        want = model_files.gguf_values(type_, raw).astype(np.float32)
        if "norm" in name:
            want = want - np.float32(1)
        want = to_f32(from_f32(want, "BF16"), "BF16")
        assert np.array_equal(got[hf_name("gemma3", name)].reshape(want.shape), want), name


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_distance_between_codes(kind, tmp_path) -> None:
    model_files.write_gguf(tmp_path / "m.gguf", "qwen3", [kind])
    tensor = open_gguf(tmp_path / "m.gguf").tensors["model.layers.0.mlp.gate_proj.weight"]
    values, steps = to_f32(*tensor.floats(0, 64)), tensor.steps(0, 64)
    group = 16 if kind == "Q6_K" else 32
    grouped = np.sort(values.reshape(-1, group), axis=1)
    gaps = np.diff(grouped, axis=1)
    step = steps.reshape(-1, group)
    assert (step == step[:, :1]).all()
    # every gap is a whole number of steps, and somewhere one step exactly
    used = step[:, 0] > 1e-7
    counts = gaps[used] / step[used, :1]
    assert np.abs(counts - np.rint(counts)).max() < 0.02
    assert (np.rint(counts) == 1).any()


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "Q6_K"])
def test_noise_is_uniform_over_half_a_step(kind, tmp_path, no_tokenizer) -> None:
    source = tmp_path / "m.gguf"
    model_files.write_gguf(source, "qwen3", [kind])
    plain = tensors(dequantize(source, tmp_path / "plain"))
    noisy = tensors(dequantize(source, tmp_path / "noisy", noise=0.5, seed=7))
    same = dequantize(source, tmp_path / "same", noise=0.5, seed=7)
    other = tensors(dequantize(source, tmp_path / "other", noise=0.5, seed=8))
    name = "model.layers.0.mlp.gate_proj.weight"
    tensor = open_gguf(source).tensors[name]
    steps = tensor.steps(0, tensor.rows)
    large = steps > 1e-5
    shift = ((noisy[name] - plain[name])[large]) / steps[large]
    rounding = (np.abs(plain[name]) / 128)[large] / steps[large]  # two bf16 roundings
    assert (np.abs(shift) <= 0.5 + rounding).all()
    calm = rounding < 0.05
    assert abs(shift[calm].mean()) < 0.02
    assert shift[calm].std() == pytest.approx(12**-0.5, rel=0.05)
    assert np.array_equal(tensors(same)[name], noisy[name])
    assert not np.array_equal(other[name], noisy[name])
    for norm in (n for n in plain if "norm" in n):
        assert np.array_equal(plain[norm], noisy[norm])


def test_refusals(tmp_path) -> None:
    model_files.write_gguf(tmp_path / "m.gguf", "qwen3", ["Q4_0"])
    with pytest.raises(ConfigError, match=r"noise is 0\.6"):
        dequantize(tmp_path / "m.gguf", tmp_path / "out", noise=0.6)
    with pytest.raises(CheckpointError):
        dequantize(tmp_path / "missing.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
