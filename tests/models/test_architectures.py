"""Every architecture against transformers on a tiny random config, f32 weights."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny

TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, tiny.COMMON["vocab_size"], 100)]


@pytest.mark.parametrize("kind", sorted(tiny.CONFIGS))
@pytest.mark.parametrize("tied", [False, True])
def test_matches_transformers(kind: str, tied: bool, tmp_path) -> None:
    model = tiny.make(kind, tmp_path, tied=tied)
    want = tiny.reference(model, TOKENS)
    r = tiny.runner(tmp_path)
    (got,) = tiny.logits(r, [TOKENS], chunk=48)
    check_close(got, want)
    (decoded,) = tiny.logits(r, [TOKENS], prompts=[50], chunk=48)
    check_close(decoded, want)


def check_close(got: np.ndarray, want: np.ndarray) -> None:
    """Relative to the largest logit: 1e-4 in RMS by a wide margin. A key or value that lies
    between two f16 numbers may round either way, which moves a few logits by more than that."""
    scale = np.abs(want).max()
    error = np.abs(got - want) / scale
    assert np.sqrt((error**2).mean()) <= 3e-5
    assert error.max() <= 5e-4
