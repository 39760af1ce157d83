"""Bits per matrix under a budget, and importance that reaches the quantizer."""

from __future__ import annotations

import itertools

import model_files
import numpy as np
import pytest

from edge_infer.checkpoint import Checkpoint
from edge_infer.checkpoint.allocation import FORMS, Form, Option, lower_hull, spend
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.inspect import inspect
from edge_infer.errors import ConfigError


def option(bits: int, error: float) -> Option:
    return Option(Form(bits, 32, True), bits, error)


def test_hull_keeps_what_is_worth_its_bits() -> None:
    points = [option(4, 10.0), option(5, 9.5), option(6, 4.0), option(7, 4.5), option(8, 1.0)]
    # 5 saves less per bit than going on to 6; 7 is worse than 6; 6 to 8 saves 1.5 a bit
    assert [o.bits for o in lower_hull(points)] == [4, 6, 8]
    assert [o.bits for o in lower_hull([option(4, 1.0), option(8, 1.0)])] == [4]


def test_spending_is_the_best_choice_for_its_size() -> None:
    """Against every choice of the same size or less."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        curves = {
            str(i): lower_hull([option(b, float(rng.random() * 2.0 ** (8 - b))) for b in (4, 5, 8)])
            for i in range(4)
        }
        for budget in (16, 20, 25, 32):
            chosen = spend(curves, budget)
            picked = {n: next(o for o in c if o.form == chosen[n]) for n, c in curves.items()}
            size = sum(o.bits for o in picked.values())
            assert size <= budget
            error = sum(o.error for o in picked.values())
            every = itertools.product(*curves.values())
            best = min(sum(o.error for o in c) for c in every if sum(o.bits for o in c) <= size)
            # a step that did not fit leaves a gap, which costs a little; without one it is optimal
            assert error <= best * 1.5 + 1e-9


def model(folder):
    """Two matrices of one shape: one easy, one with a few large values that need bits."""
    rng = np.random.default_rng(1)
    easy = rng.uniform(-1, 1, (64, 128)).astype(np.float32)
    hard = easy.copy()
    hard[:, ::32] *= 40
    arrays = {
        "model.embed_tokens.weight": easy[:, :64].copy(),
        "model.layers.0.mlp.easy_proj.weight": easy,
        "model.layers.0.mlp.hard_proj.weight": hard,
        "model.norm.weight": np.ones(64, np.float32),
    }
    return model_files.write_folder(folder, arrays)


@pytest.mark.parametrize("target", [4.7, 5.5, 6.5, 9.0])
def test_the_budget_is_kept(target, tmp_path) -> None:
    out = convert(model(tmp_path / "m"), tmp_path / "out", target_bpw=target)
    assert inspect(out).bits_per_weight <= target
    for m in Checkpoint.open(out).matrices.values():
        assert Form(m.bits, m.group_size, m.minimums is None) in FORMS


def test_bits_go_where_they_help(tmp_path) -> None:
    """Inputs that matter only where the large values are not: then the other one needs the bits."""
    importance = {
        "model.embed_tokens": np.ones(64, np.float32),
        "model.layers.0.mlp.easy_proj": np.ones(128, np.float32),
        "model.layers.0.mlp.hard_proj": np.ones(128, np.float32),
    }
    importance["model.layers.0.mlp.hard_proj"][::32] = 1e-9
    folder = model(tmp_path / "m")
    out = convert(folder, tmp_path / "a", target_bpw=6.4, importance=importance)
    matrices = Checkpoint.open(out).matrices
    assert matrices["model.layers.0.mlp.hard_proj"].bits == 8
    assert matrices["model.layers.0.mlp.easy_proj"].bits == 4


def test_importance_lowers_the_error_that_it_weighs(tmp_path, values) -> None:
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((64, 128)).astype(np.float32)
    importance = np.exp(3 * rng.standard_normal(128)).astype(np.float32)
    name = "model.layers.0.mlp.up_proj"
    folder = model_files.write_folder(tmp_path / "m", {f"{name}.weight": weights})
    errors = []
    for i, given in enumerate((None, {name: importance})):
        out = convert(folder, tmp_path / str(i), bits=4, importance=given)
        errors.append(float((((values(out, name) - weights) ** 2) * importance).sum()))
    assert errors[1] < 0.8 * errors[0]


def test_refusals(tmp_path) -> None:
    folder = model(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"the smallest forms take 4\."):
        convert(folder, tmp_path / "out", target_bpw=4.0)
    for given in ({"bits": 4}, {"module_bits": [("*", 4)]}):
        with pytest.raises(ConfigError, match="target_bpw chooses"):
            convert(folder, tmp_path / "out", target_bpw=5.0, **given)
    with pytest.raises(ConfigError, match=r"no module model\.embed_tokens"):
        convert(folder, tmp_path / "out", importance={})
    wrong = {
        "model.embed_tokens": np.ones(64, np.float32),
        "model.layers.0.mlp.easy_proj": np.ones(7, np.float32),
    }
    with pytest.raises(ConfigError, match=r"\(7,\) channels .* which has 128"):
        convert(folder, tmp_path / "out", importance=wrong)
    assert not (tmp_path / "out").exists()
