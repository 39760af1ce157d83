"""Which rows of a step have decode numerics, in whatever order vLLM keeps its sequences."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from path_support import segment  # noqa: E402
from vllm import forward_context  # noqa: E402

from edge_infer import _native  # noqa: E402
from edge_infer.vllm_plugin import ops  # noqa: E402

K = 64
STEPS = [
    [1, 1, 1],
    [4],
    [1, 1, 3, 2],
    [3, 1, 1, 2, 1],  # a prompt in the place of a sequence that has ended
    [2, 1],
    [2, 1, 0, 0],  # padding of sequences
]


def linear() -> Callable[[torch.Tensor], torch.Tensor]:
    """A linear whose two numerics differ on every level."""
    native = _native.Linear([ops.matrix(segment(48, K))], bf16_prefill=True)
    handle = torch.tensor([native.handle])
    return lambda x, native=native: torch.ops.edge_infer.linear(x, handle, native.n, False)


def experts() -> Callable[[torch.Tensor], torch.Tensor]:
    gate_up = [[segment(96, K, seed=i)] for i in range(3)]
    down = [[segment(K, 48, seed=i)] for i in range(3)]
    native, handle = ops.experts(gate_up, down, "silu")

    def run(x: torch.Tensor, native: object = native) -> torch.Tensor:
        rows = (x[:, :1] * 1000).abs().long()  # a row's choices follow the row
        ids = torch.cat([rows % 3, (rows + 1) % 3], dim=1)
        weights = torch.sigmoid(x[:, :2].float())
        return torch.ops.edge_infer.experts(x, handle, ids, weights, False)

    return run


def in_step(monkeypatch: pytest.MonkeyPatch, lengths: list[int] | None) -> None:
    """What the operations see: sequences of these lengths, or no step."""
    context = None
    if lengths is not None:
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        metadata = {"layer": SimpleNamespace(query_start_loc=starts)}
        context = SimpleNamespace(attn_metadata=metadata)
    monkeypatch.setattr(forward_context, "_forward_context", context)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("lengths", STEPS)
@pytest.mark.parametrize("make", [linear, experts])
def test_rows_of_sequences_of_one_row(make, lengths, padding, monkeypatch):
    monkeypatch.setattr(ops, "_PREFILL", True)
    run, rows = make(), sum(lengths)
    torch.manual_seed(rows)
    x = torch.randn(rows + padding, K, dtype=torch.bfloat16)
    in_step(monkeypatch, None)
    decode = run(x)
    in_step(monkeypatch, [len(x) + 1])
    prompt = run(x)
    assert make is not linear or not torch.equal(decode, prompt)
    in_step(monkeypatch, lengths)
    for got in (run(x), run(x)):  # what the step is gets looked up once
        at = 0
        for length in lengths:
            part = slice(at, at + length)
            assert torch.equal(got[part], (decode if length == 1 else prompt)[part])
            at += length
        assert got.isfinite().all()
