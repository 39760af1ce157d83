"""Bytes and arithmetic of a step, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np

from edge_infer import _native
from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.traffic import StepShape, Traffic, traffic, weights_read
from edge_infer.models.values import KvGroup, Linear

VOCAB, WIDTH, HEADS, KV_HEADS, DIM, WINDOW = 50, 64, 4, 2, 16, 8


def matrix(n: int, k: int) -> Linear:
    return Linear(_native.Weight.from_numpy(np.ones((n, k), np.float32)))


def builder() -> ProgramBuilder:
    p = ProgramBuilder(max_rows=16, max_outputs=4)
    x = p.embed(matrix(VOCAB, WIDTH), width=WIDTH)
    q, k, v = p.linear(x, [matrix(HEADS * DIM, WIDTH), *(matrix(KV_HEADS * DIM, WIDTH),) * 2])
    group = KvGroup(KV_HEADS, DIM, WINDOW)
    o = p.attention(q, k, v, heads=HEADS, group=group, scale=1.0)
    p.linear(o, matrix(WIDTH, HEADS * DIM), add_to=x)
    p.output("y", p.linear(p.gather(p.scale(x, 2.0)), matrix(VOCAB, WIDTH)))
    return p


def of_kind(found: list[Traffic], kind: str) -> list[Traffic]:
    return [t for t in found if t.kind == kind]


def test_decode_of_one_token() -> None:
    found = traffic(builder(), StepShape(start=20))
    assert [t.kind for t in found] == [
        *("embed", "linear", "kv_store", "attention", "linear", "scale", "gather", "linear")
    ]
    qkv, _, head = of_kind(found, "linear")
    assert qkv.label == f"linear [128, {WIDTH}]"
    assert qkv.weight_bytes == 4 * 128 * WIDTH
    assert qkv.operations == 2 * 128 * WIDTH
    assert qkv.activation_bytes == 4 * (WIDTH + 128)
    assert head.weight_bytes == 4 * VOCAB * WIDTH
    (embed,) = of_kind(found, "embed")
    assert embed.weight_bytes == 4 * WIDTH  # one row of the table
    (store,) = of_kind(found, "kv_store")
    assert store.kv_bytes == 2 * 2 * KV_HEADS * DIM
    (attention,) = of_kind(found, "attention")
    assert attention.kv_bytes == 2 * 2 * KV_HEADS * DIM * WINDOW
    assert attention.operations == 4 * HEADS * DIM * WINDOW
    assert weights_read(builder()) == sum(t.weight_bytes for t in found)


def test_short_context_sees_less_than_the_window() -> None:
    (attention,) = of_kind(traffic(builder(), StepShape(start=2)), "attention")
    assert attention.kv_bytes == 2 * 2 * KV_HEADS * DIM * 3


def test_prefill_reads_weights_once_for_all_rows() -> None:
    rows = 10
    found = traffic(builder(), StepShape(start=4, rows=rows, outputs=1))
    qkv, _, head = of_kind(found, "linear")
    assert qkv.weight_bytes == 4 * 128 * WIDTH
    assert qkv.operations == 2 * rows * 128 * WIDTH
    assert head.operations == 2 * VOCAB * WIDTH  # wanted rows only
    (attention,) = of_kind(found, "attention")
    seen = [5, 6, 7, 8, 8, 8, 8, 8, 8, 8]
    assert attention.operations == 4 * HEADS * DIM * sum(seen)
    assert attention.kv_bytes == 2 * 2 * KV_HEADS * DIM * 14


def test_sequences_share_the_weights_only() -> None:
    shapes = StepShape(start=2), StepShape(start=20, rows=3, outputs=0)
    together = traffic(builder(), *shapes)
    alone = [traffic(builder(), shape) for shape in shapes]
    for both, first, second in zip(together, *alone, strict=True):
        for name in ("kv_bytes", "activation_bytes", "operations"):
            assert getattr(both, name) == getattr(first, name) + getattr(second, name)
        if both.kind == "linear":
            assert both.weight_bytes == max(first.weight_bytes, second.weight_bytes)


def test_a_step_without_outputs_reads_no_head() -> None:
    found = traffic(builder(), StepShape(start=0, rows=4, outputs=0))
    assert [t.weight_bytes for t in of_kind(found, "linear")][-1] == 0


def test_int8_keys_and_values_have_scales() -> None:
    found = traffic(builder(), StepShape(start=20, kv_dtype="int8"))
    (store,), (attention,) = of_kind(found, "kv_store"), of_kind(found, "attention")
    assert store.kv_bytes == 2 * KV_HEADS * (DIM + 4)
    assert attention.kv_bytes == WINDOW * store.kv_bytes
