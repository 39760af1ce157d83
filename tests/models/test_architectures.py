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
    tiny.check_close(got, want)
    (decoded,) = tiny.logits(r, [TOKENS], prompts=[50], chunk=48)
    tiny.check_close(decoded, want)
