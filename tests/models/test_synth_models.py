"""Random models of real shape run, and their activations stay of sensible size."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from edge_infer.checkpoint.synth import model_config, synthesize

SMALL = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 320, "num_attention_heads": 4}


@pytest.mark.parametrize("name", ["qwen3-0.6b", "llama-3.2-1b", "spark-x2.5-1.7b"])
def test_logits_of_sensible_size(name, tmp_path) -> None:
    config = {**model_config(name, 8), **SMALL, "num_key_value_heads": 2, "head_dim": 32}
    folder = synthesize(config, tmp_path / "model", seed=1)
    (values,) = tiny.logits(tiny.runner(folder, max_model_len=64), [list(range(40))])
    assert np.isfinite(values).all()
    assert 0.3 < values.std() < 3
