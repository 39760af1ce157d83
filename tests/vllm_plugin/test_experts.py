"""Routed experts: how their tensors are kept, and on which weight path they run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from config_support import entry  # noqa: E402

from edge_infer.vllm_plugin import paths  # noqa: E402
from edge_infer.vllm_plugin.experts import CpuInt4ExpertsMethod  # noqa: E402
from edge_infer.vllm_plugin.segments import Form  # noqa: E402

MODULE = "0.gate_proj"
LAYER = SimpleNamespace(
    layer_name="l.experts",
    ckpt_gate_proj_name="gate_proj",
    ckpt_up_proj_name="up_proj",
    ckpt_down_proj_name="down_proj",
)


def method(choice: paths.Choice) -> CpuInt4ExpertsMethod:
    forms = {MODULE: Form.of(f"l.experts.{MODULE}", entry(32))}
    return CpuInt4ExpertsMethod(None, LAYER, forms, choice)


@pytest.mark.parametrize("mapped", [True, False])
def test_tensors_are_kept_or_copied(mapped, monkeypatch):
    monkeypatch.setenv("EDGE_INFER_VLLM_MAPPED", str(int(mapped)))
    experts, codes = method(paths.Choice()), torch.arange(64, dtype=torch.uint8)
    experts.parts = {}
    experts.guards = set()
    assert list(experts._load([(f"{MODULE}.codes", codes)])) == [f"{MODULE}.codes"]
    kept = experts.parts[MODULE]["codes"]
    assert torch.equal(kept, codes) and (kept.data_ptr() == codes.data_ptr()) is mapped


def test_experts_stay_on_the_native_path_and_the_log_says_so(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(paths._logger, "warning", lambda text, *rest: said.append(text % rest))
    method(paths.Choice())
    assert said == []
    choice = paths.Choice("tinygemm")
    for _ in range(2):
        method(choice)
    assert len(said) == 1
    assert "l.experts" in said[0] and "tinygemm cannot take routed experts" in said[0]
