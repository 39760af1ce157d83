"""Mean squares of linear inputs, against the same model in PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edge_infer.engine.calibration import input_importance
from edge_infer.errors import ConfigError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import tiny  # noqa: E402


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_mean_squares(kind, tmp_path) -> None:
    model = tiny.make(kind, tmp_path / "m", tied=kind == "gemma3")
    tokens = np.random.default_rng(0).integers(0, 211, 150).tolist()
    want = {}

    def hook(name):
        def keep(module, inputs, output):
            want[name] = (inputs[0].double() ** 2).mean(dim=(0, 1)).numpy()

        return keep

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(hook(name))
    tiny.reference(model, tokens)
    if kind == "gemma3":
        want["model.embed_tokens"] = want.pop("lm_head")
    got = input_importance(tmp_path / "m", tokens, threads=2)
    assert set(got) == set(want)
    for name, expected in want.items():
        assert np.allclose(got[name], expected, rtol=2e-3, atol=1e-6), name


def test_pieces_start_from_an_empty_cache(tmp_path) -> None:
    """Longer than one piece: the mean over both, not a continuation."""
    tiny.make("llama", tmp_path / "m")
    tokens = np.random.default_rng(1).integers(0, 211, 600).tolist()
    whole = input_importance(tmp_path / "m", tokens)
    parts = [input_importance(tmp_path / "m", part) for part in (tokens[:512], tokens[512:])]
    for name, values in whole.items():
        mean = (parts[0][name] * 512 + parts[1][name] * 88) / 600
        assert np.allclose(values, mean, rtol=1e-4), name


def test_no_tokens(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        input_importance(tmp_path, [])
