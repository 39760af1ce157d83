"""The paths tinygemm, wna16 and w4a8 against the values that the packed layout stands for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest
import torch
from path_support import error, expected, layer, segment

from edge_infer.checkpoint import layout
from edge_infer.vllm_plugin import paths
from edge_infer.vllm_plugin.paths import create, repack, tinygemm

# name -> dtype -> largest relative distance from exact products. The dtype rounds scales, outputs
# and (w4a8: to int8) activations; f32 shows that nothing else differs.
TOLERANCE = {
    "tinygemm": {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3},
    "wna16": {torch.float16: 2e-3, torch.bfloat16: 8e-3},
    "w4a8": {torch.bfloat16: 1.5e-2},
}
CASES = [(name, dtype) for name, dtypes in TOLERANCE.items() for dtype in dtypes]


@pytest.fixture
def path(name):
    found = create(name)
    reason = found.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return found


@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize(("n", "k", "group"), [(17, 64, 32), (80, 2080, 32), (128, 200, 64)])
@pytest.mark.parametrize("minimums", ["none", "zero points", "any"])
def test_products(path, dtype, rows, n, k, group, minimums):
    matrix = segment(n, k, group=group, minimums=minimums)
    if minimums == "any" and path.name != "tinygemm":
        assert path.refusal([matrix]) == "minimums that are no zero points"
        return
    assert path.refusal([matrix]) is None
    module = layer(path, [matrix], dtype)
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(dtype)
    out = path.apply(module, x, None)
    assert out.shape == (rows, n) and out.dtype == dtype
    assert error(out, expected([matrix], x)) < TOLERANCE[path.name][dtype]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_fused_segments_and_bias(path, dtype):
    # 128 joins with 80, after which nothing joins; another group size starts a run of its own
    segments = [
        segment(128, 96, seed=1),
        segment(80, 96, minimums="zero points", seed=2),
        segment(33, 96, seed=3),
    ]
    segments.append(segment(32, 96, group=64, seed=4))
    module = layer(path, segments, dtype)
    assert module.edge_infer_n == [208, 33, 32] or path.name == "tinygemm"
    x = torch.randn(2, 3, 96).to(dtype)
    bias = torch.randn(273)
    out = path.apply(module, x, bias)
    assert out.shape == (2, 3, 273)
    reference = expected(segments, x) + bias.double()
    assert error(out, reference) < TOLERANCE[path.name][dtype]


@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.parametrize("minimums", ["none", "zero points"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_row_lookup(path, dtype, minimums, group):
    matrix = segment(200, 136, group=group, minimums=minimums)
    module = layer(path, [matrix], dtype)
    ids = torch.tensor([[0, 199, 63], [64, 31, 100]])
    rows = path.embedding(module, ids, dtype)
    assert rows.shape == (2, 3, 136) and rows.dtype == dtype
    # scales and values are rounded to the dtype, minimums (a path's own zero points) to fp16
    assert error(rows, matrix.dequantize().double()[ids]) < 5e-3
    assert path.embedding(module, ids[0, :0], dtype).shape == (0, 136)


@pytest.mark.parametrize("name", TOLERANCE)
def test_six_and_eight_bits_are_refused(path):
    assert path.refusal([segment(32, 64), segment(32, 64, bits=8)]) == "8 bits"
    assert path.refusal([segment(32, 64, bits=6)]) == "6 bits"
    assert path.refusal([segment(32, 64, bits=8), segment(32, 64, bits=6)]) == "6, 8 bits"


@pytest.mark.parametrize("name", TOLERANCE)
def test_what_does_not_fit_runs_on_native_and_is_said_once(path, monkeypatch):
    said = []
    monkeypatch.setattr(paths._logger, "warning", lambda text, *values: said.append(text % values))
    choice = paths.Choice(path.name)
    four, eight = segment(32, 64), segment(48, 64, bits=8)
    assert choice([four]).name == path.name and choice([four], embedding=True).name == path.name
    assert choice([four, eight]).name == "native"
    assert choice([eight]).name == "native"
    assert said == [
        "edge-infer: m32 with m48 and matrices like it run on weight path native, because "
        f"{path.name} cannot take 8 bits"
    ]
    module = layer(choice([four, eight]), [four, eight], torch.bfloat16)
    x = torch.randn(5, 64).bfloat16()
    out = choice([four, eight]).apply(module, x, None)
    assert error(out, expected([four, eight], x)) < 1.5e-2


@pytest.mark.parametrize("name", TOLERANCE)
def test_no_rows_and_rows_of_zeros(path):
    module = layer(path, [segment(40, 64)], torch.bfloat16)
    assert path.apply(module, torch.empty(0, 64, dtype=torch.bfloat16), None).shape == (0, 40)
    out = path.apply(module, torch.zeros(3, 64, dtype=torch.bfloat16), None)
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("name", TOLERANCE)
def test_packed_tensors_are_released(path):
    matrix = segment(80, 64, minimums="zero points")
    watched = [weakref.ref(t) for t in (matrix.codes, matrix.scales, matrix.minimums)]
    module = layer(path, [matrix], torch.bfloat16)
    del matrix
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3
    assert sum(p.numel() for p in module.parameters()) > 0


@pytest.mark.parametrize("name", TOLERANCE)
def test_compiled_is_eager(path):
    module = layer(path, [segment(64, 64), segment(48, 64)], torch.bfloat16)

    def both(ids, x):
        return path.embedding(module, ids, torch.bfloat16), path.apply(module, x, None) * 2

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 5, 70):
        ids, x = torch.arange(rows) % 64, torch.randn(rows, 64).bfloat16()
        for got, want in zip(compiled(ids, x), both(ids, x), strict=True):
            assert torch.equal(got, want)


PEAK = """
import sys, torch
from edge_infer.checkpoint import layout
from edge_infer.vllm_plugin import paths
from edge_infer.vllm_plugin.paths import create
from path_support import layer, segment
path = create(sys.argv[1])
path.unavailable()
layer(path, [segment(64, 64)], torch.bfloat16)  # what the first use allocates once
matrix = segment(16384, 1024)
def resident(kind):
    line = next(l for l in open("/proc/self/status") if l.startswith(kind))
    return int(line.split()[1]) << 10
open("/proc/self/clear_refs", "w").write("5")  # the peak is what is resident now
before = resident("VmRSS")
module = layer(path, [matrix], torch.bfloat16)
kept = sum(p.nbytes for p in module.parameters())
print(resident("VmHWM") - before - kept)
"""


@pytest.mark.parametrize("name", TOLERANCE)
def test_peak_of_repacking_is_a_block(path):
    # the matrix as int32 would take 64 MiB, as bytes 16
    done = subprocess.run(
        [sys.executable, "-c", PEAK, path.name],
        capture_output=True,
        text=True,
        check=True,
        cwd=os.path.dirname(__file__),
    )
    assert int(done.stdout.splitlines()[-1]) < 8 << 20


def test_tiles_are_what_torch_makes():
    matrix = segment(192, 96)
    tiles, pairs, rows = tinygemm.pack(repack.Run((matrix,)), torch.float32, rows=False)
    codes = torch.cat([repack.code_rows(matrix, 0, 192)]).int()
    theirs = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    assert torch.equal(tiles.view_as(theirs), theirs)
    assert pairs.shape == (3, 192, 2) and rows.numel() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("minimums", ["none", "any"])
def test_one_layout_has_the_bits_of_two(monkeypatch, dtype, minimums):
    path = create("tinygemm")
    segments = [segment(640, 2080, minimums=minimums), segment(80, 2080)]
    modules = []
    for flag in ("1", "0"):
        monkeypatch.setenv(tinygemm.ONE_LAYOUT, flag)
        modules.append(layer(path, segments, dtype))
    one, two = (sum(p.nbytes for p in module.parameters()) for module in modules)
    assert two - one == (640 + layout.pad(80, tinygemm.layout().width)) * 2080 // 2
    for rows in (tinygemm.MATMUL_ROWS, 3 * tinygemm.MATMUL_ROWS + 1):
        x = torch.randn(rows, 2080).to(dtype)
        first, second = (path.apply(module, x, None) for module in modules)
        assert torch.equal(first, second)
        assert error(first, expected(segments, x)) < TOLERANCE["tinygemm"][dtype]


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_order_of_every_instruction_set(capability):
    """Torch packs differently for each; what it says is what its kernel reads."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-k",
            "(products and tinygemm and 80 and float32) or tiles",
            f"{__file__}",
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["wna16", "w4a8"])
def test_missing_operation_is_a_reason(monkeypatch, name):
    monkeypatch.setattr(repack, "missing_operation", lambda _: "no such operation")
    assert create(name).unavailable() == "no such operation"


def test_zero_points():
    matrix = segment(16, 64, minimums="zero points")
    zeros = repack.zero_points(matrix).float()
    assert torch.allclose(
        -repack.columns(matrix.scales).float() * zeros,
        repack.columns(matrix.minimums).float(),
        rtol=2**-10,
    )
    above = replace(matrix, minimums=matrix.scales * -16)
    assert repack.zero_points(above) is None
    empty = replace(matrix, scales=matrix.scales * 0)
    assert repack.zero_points(empty) is None
    assert repack.zero_points(replace(empty, minimums=empty.scales)) is not None
