"""AWQ and GPTQ modules become segments with the values of their formats' formulas."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from foreign_support import module, settings

from edge_infer.errors import CheckpointError, UnsupportedError
from edge_infer.vllm_plugin.config import CpuInt4Config
from edge_infer.vllm_plugin.foreign import ForeignConfig, forms

METHODS = ["awq", "gptq"]


def segment_of(method: str, tensors: dict, **changes):
    config = settings(method, 0, **changes)
    shapes = {f"m.{kind}": tuple(tensor.shape) for kind, tensor in tensors.items()}
    form = forms(method, config, shapes)["m"]
    for kind, tensor in tensors.items():
        form.check(kind, tensor)
    return form.segment(tensors)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("n", [8, 16, 72, 136])
@pytest.mark.parametrize("symmetric", [False, True])
def test_values_are_those_of_the_formula(method, group, n, symmetric):
    tensors, values = module(method, n, 256, group, symmetric=symmetric)
    matrix = segment_of(method, tensors)
    assert (matrix.n, matrix.k, matrix.bits, matrix.group_size) == (n, 256, 4, group)
    got = matrix.dequantize().double()
    if symmetric:  # a zero point of 8 everywhere: no minimums, and nothing is rounded
        assert matrix.minimums is None
        assert torch.equal(got, values.float().double())
    else:
        # only scale * zero is rounded, to fp16: at most 15 * 0.024 * 2^-11
        assert (got - values).abs().max() <= 15 * 0.024 * 2**-11
        scales = tensors["scales"].double().repeat_interleave(group, 0).T
        assert ((got - values).abs() <= 0.0075 * scales).all()


def test_second_version_of_gptq_stores_the_zero_itself():
    tensors, values = module("gptq", 32, 64, 32, v2=True)
    got = segment_of("gptq", tensors, checkpoint_format="gptq_v2").dequantize()
    assert (got - values).abs().max() < 2e-4


def test_gptq_zero_of_sixteen():
    tensors, _ = module("gptq", 16, 64, 32)
    tensors["qzeros"] = torch.full_like(tensors["qzeros"], -1)  # 15 everywhere, so 16
    symmetric, _ = module("gptq", 16, 64, 32, symmetric=True)
    other = segment_of("gptq", tensors | {"qweight": symmetric["qweight"]}).dequantize()
    scales = tensors["scales"].float().repeat_interleave(32, 0).T
    assert torch.allclose(other, segment_of("gptq", symmetric).dequantize() - 8 * scales)


@pytest.mark.parametrize(
    ("method", "fact"), [("awq", {"zero_point": False}), ("gptq", {"sym": True})]
)
def test_without_zero_points(method, fact):
    tensors, values = module(method, 32, 64, 32, symmetric=True)
    del tensors["qzeros"]
    assert torch.equal(segment_of(method, tensors, **fact).dequantize().double(), values)
    with pytest.raises(CheckpointError, match=r"m\.qzeros is missing"):
        segment_of(method, tensors)


def test_act_order_is_refused_with_a_reason():
    with pytest.raises(UnsupportedError, match=r"act-order \(desc_act\)"):
        CpuInt4Config.from_config(settings("gptq", 32, desc_act=True))
    tensors, _ = module("gptq", 32, 64, 32)
    tensors["g_idx"] = tensors["g_idx"].flip(0)
    with pytest.raises(UnsupportedError, match="m has act-order"):
        segment_of("gptq", tensors)


@pytest.mark.parametrize(
    ("method", "change", "match"),
    [
        ("awq", {"bits": 8}, "has 8 bits"),
        ("awq", {"version": "gemv"}, "version 'gemv'"),
        ("gptq", {"bits": 3}, "has 3 bits"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    ],
)
def test_other_variants_are_refused(method, change, match):
    with pytest.raises(UnsupportedError, match=match):
        CpuInt4Config.from_config(settings(method, 32, **change))


@pytest.mark.parametrize("method", METHODS)
def test_damaged_modules(method):
    tensors, _ = module(method, 32, 64, 32)
    with pytest.raises(CheckpointError, match="module m has qweight"):
        segment_of(method, tensors | {"scales": tensors["scales"][:, :16]})
    with pytest.raises(CheckpointError, match=r"m\.qzeros is torch\.int64"):
        segment_of(method, tensors | {"qzeros": tensors["qzeros"].long()})
    with pytest.raises(CheckpointError, match="beyond fp16"):
        segment_of(method, tensors | {"scales": tensors["scales"].float() * 1e9})
    with pytest.raises(UnsupportedError, match="groups of 16"):
        segment_of(method, module(method, 32, 64, 16)[0])


@pytest.mark.parametrize("method", METHODS)
def test_config_takes_the_checkpoint_when_asked(method):
    config = settings(method, 32)
    assert CpuInt4Config.override_quantization_method(config, "cpu_int4") == "cpu_int4"
    assert CpuInt4Config.override_quantization_method(config, None) is None
    assert isinstance(CpuInt4Config.from_config(config), ForeignConfig)


PEAK = """
import sys, torch
from foreign_support import module
from test_foreign import segment_of
method = sys.argv[1]
tensors = module(method, 4096, 2048, 64)[0]
segment_of(method, module(method, 64, 64, 64)[0])
def resident(kind):
    line = next(l for l in open("/proc/self/status") if l.startswith(kind))
    return int(line.split()[1]) << 10
open("/proc/self/clear_refs", "w").write("5")
before = resident("VmRSS")
matrix = segment_of(method, tensors)
print(resident("VmHWM") - before - matrix.nbytes)
"""


@pytest.mark.parametrize("method", METHODS)
def test_peak_of_repacking_is_a_block(method):
    # as int32 the codes would take 32 MiB
    done = subprocess.run(
        [sys.executable, "-c", PEAK, method],
        capture_output=True,
        text=True,
        check=True,
        cwd=os.path.dirname(__file__),
    )
    assert int(done.stdout.splitlines()[-1]) < 8 << 20
