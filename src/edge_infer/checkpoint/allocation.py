"""Bits where they count: a form for every matrix under a budget of bits per weight.

The error of a form is measured on a sample of a matrix's rows: the squared error of its outputs
relative to their power, inputs weighted by their importance where one is known. Bits are then spent
step by step where they lower the sum of these errors most per bit. The output head counts as much
as all the layers together, since its error reaches the logits directly while each layer adds a
share to the residual stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edge_infer.checkpoint import layout
from edge_infer.checkpoint.quantize import quantize
from edge_infer.checkpoint.selection import Packing
from edge_infer.checkpoint.source import Source, SourceTensor, to_f32
from edge_infer.errors import ConfigError

SAMPLE_VALUES = 1 << 18  # of a matrix; a sample of rows, taken from all over it
Importance = Mapping[str, npt.NDArray[np.float32]]


class Form(NamedTuple):
    """A way to store a matrix."""

    bits: int
    group_size: int
    symmetric: bool


FORMS = (
    Form(4, 128, True),
    Form(4, 64, True),
    Form(4, 32, True),
    Form(4, 64, False),
    Form(4, 32, False),
    Form(6, 128, True),
    Form(6, 64, True),
    Form(6, 32, True),
    Form(6, 64, False),
    Form(6, 32, False),
    Form(8, 128, True),
    Form(8, 64, True),
    Form(8, 32, True),
)


class Option(NamedTuple):
    """A form of one matrix: its size in bits, and the error that it leaves."""

    form: Form
    bits: int
    error: float


def allocate(
    source: Source,
    packings: dict[str, Packing],
    *,
    target_bpw: float,
    fixed_bits: int,
    importance: Importance | None = None,
) -> dict[str, Packing]:
    """Packings with the form of each matrix chosen so that the whole model, with ``fixed_bits`` for
    what is not quantized, has at most ``target_bpw`` bits per weight.

    Raises ConfigError when even the smallest forms are larger.
    """
    weights = sum(t.rows * t.k for t in source.tensors.values())
    budget = target_bpw * weights - fixed_bits
    curves = {}
    shares = _shares(packings)
    for name, packing in packings.items():
        options = [
            Option(form, bits, error * shares[name])
            for form, bits, error in _measure(source.tensors[name], packing, importance)
        ]
        curves[name] = lower_hull(options)
    spent = sum(curve[0].bits for curve in curves.values())
    if spent > budget:
        raise ConfigError(
            f"target_bpw is {target_bpw:g}; the smallest forms take "
            f"{(spent + fixed_bits) / weights:.3f} bits per weight.",
            remedy="Ask for more, or quantize more (include).",
        )
    chosen = spend(curves, budget)
    return {
        name: replace(
            packing,
            bits=chosen[name].bits,
            group_size=chosen[name].group_size,
            symmetric=chosen[name].symmetric,
            keep=False,
        )
        for name, packing in packings.items()
    }


def lower_hull(options: list[Option]) -> list[Option]:
    """The options worth having, by rising size: each step lowers the error less per bit than the
    one before it."""
    hull: list[Option] = []
    for option in sorted(options, key=lambda o: (o.bits, o.error)):
        if hull and option.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _gain(hull[-2], option) >= _gain(hull[-2], hull[-1]):
            hull.pop()
        hull.append(option)
    return hull


def _gain(a: Option, b: Option) -> float:
    """Error that is saved per bit from a to b."""
    return (a.error - b.error) / (b.bits - a.bits)


def spend(curves: Mapping[str, list[Option]], budget: float) -> dict[str, Form]:
    """One form for each curve: the steps that save most error per bit, as far as bits last."""
    at = dict.fromkeys(curves, 0)
    left = budget - sum(curve[0].bits for curve in curves.values())
    steps = [
        (-_gain(curve[i], curve[i + 1]), name, i)
        for name, curve in curves.items()
        for i in range(len(curve) - 1)
    ]
    for _, name, i in sorted(steps):  # a curve's own steps come in order: their gains fall
        needed = curves[name][i + 1].bits - curves[name][i].bits
        if at[name] == i and needed <= left:
            at[name], left = i + 1, left - needed
    return {name: curves[name][i].form for name, i in at.items()}


def _shares(packings: dict[str, Packing]) -> dict[str, float]:
    heads = {n for n, p in packings.items() if p.module.rsplit(".", 1)[-1] == "lm_head"}
    if not heads:  # a tied head is the embedding
        heads = {n for n, p in packings.items() if "embed" in p.module}
    others = max(1, len(packings) - len(heads))
    return {name: 1.0 if name in heads else 1.0 / others for name in packings}


def _measure(tensor: SourceTensor, packing: Packing, importance: Importance | None) -> list[Option]:
    rows = sample_rows(tensor)
    weights = None if importance is None else importance.get(packing.module)
    power = rows**2 if weights is None else rows**2 * weights
    whole = float(power.sum(dtype=np.float64)) or 1.0
    out = []
    for form in FORMS:
        packed = quantize(
            rows, "F32", bits=form.bits, group_size=form.group_size, symmetric=form.symmetric,
            name=tensor.name, importance=weights,
        )  # fmt: skip
        n, k = rows.shape
        stored = layout.dequantize(*packed, n=n, k=k, bits=form.bits)
        error = (rows - stored) ** 2 if weights is None else (rows - stored) ** 2 * weights
        *lead, n, k = tensor.shape
        size = 8 * layout.packed_bytes(n, k, *form) * int(np.prod(lead))
        out.append(Option(form, size, float(error.sum(dtype=np.float64)) / whole))
    return out


def sample_rows(tensor: SourceTensor) -> npt.NDArray[np.float32]:
    """Rows from all over a matrix, about `SAMPLE_VALUES` values, in blocks of 16."""
    blocks = -(-tensor.rows // 16)
    wanted = min(blocks, max(4, SAMPLE_VALUES // (16 * tensor.k)))
    starts = np.unique(np.linspace(0, blocks - 1, wanted).astype(int)) * 16
    parts = [to_f32(*tensor.floats(s, min(s + 16, tensor.rows))) for s in starts.tolist()]
    return np.concatenate(parts)
