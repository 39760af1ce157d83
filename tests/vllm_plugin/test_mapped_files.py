"""Weights in a file that is truncated while they are used: an error, not a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from path_support import segment  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from edge_infer.device.mappings import Mapping, parse_smaps  # noqa: E402
from edge_infer.vllm_plugin import mapped_files  # noqa: E402


def test_lines_that_advice_has_split_are_one_file():
    maps = [
        Mapping(0x1000, 0x3000, "r--p", 0, "/a"),
        Mapping(0x3000, 0x4000, "r--p", 0x2000, "/a"),
        Mapping(0x4000, 0x5000, "r--p", 0x3000, "/a"),
        Mapping(0x5000, 0x6000, "r--p", 0, "/a"),  # mapped a second time
        Mapping(0x6000, 0x7000, "rw-p", 0, ""),
    ]
    assert mapped_files.mapped_range(0x3500, maps) == (0x1000, 0x5000, "/a")
    assert mapped_files.mapped_range(0x5000, maps) == (0x5000, 0x6000, "/a")
    assert mapped_files.mapped_range(0x6000, maps) is None
    assert mapped_files.mapped_range(0x9000, maps) is None


def test_memory_that_is_no_file_has_no_guard():
    assert mapped_files.guard(torch.zeros(1 << 20)) is None


def test_one_guard_for_the_tensors_of_a_file(tmp_path: Path):
    from safetensors import safe_open

    save_file({name: torch.zeros(5000) for name in "abc"}, tmp_path / "f.safetensors")
    with safe_open(tmp_path / "f.safetensors", "pt") as file:
        tensors = [file.get_tensor(name) for name in "abc"]
    guards = [mapped_files.guard(tensor) for tensor in tensors]
    assert guards[0] is not None and guards[0] is guards[1] is guards[2]
    assert Path(guards[0].path) == (tmp_path / "f.safetensors").resolve()
    assert not guards[0].lost
    guards[0].check()
    # Advice on every tensor would divide the map, and large pages with it.
    maps = parse_smaps(mapped_files.MAPS.read_text())
    assert len([m for m in maps if m.path.endswith(f"{tmp_path.name}/f.safetensors")]) == 1


CODE = """
import os, sys, torch
sys.path.insert(0, {here!r})
from safetensors import safe_open
from edge_infer.errors import WeightsLostError
from edge_infer.vllm_plugin import loading
from edge_infer.vllm_plugin.segments import Form
from edge_infer.vllm_plugin.paths import create

form = Form("m", n={n}, k={k}, bits=4, group_size=32, symmetric=True)
layer = torch.nn.Module()
loading.expect(layer, [form])
with safe_open({file!r}, "pt") as file:
    for kind in ("codes", "scales"):
        parameter = getattr(layer, kind)
        parameter.weight_loader(parameter, file.get_tensor("m." + kind))
if {at_load}:
    os.truncate({file!r}, 4096)
try:
    loading.prepare(layer, create({path!r}), loading.collect(layer, [form]))
    x = torch.randn(3, {k})
    layer.edge_infer_path.apply(layer, x, None)
    print(">ran")
    os.truncate({file!r}, 4096)
    for _ in range(2):  # the state stays bad
        try:
            layer.edge_infer_path.apply(layer, x, None)
        except WeightsLostError as e:
            print(">" + e.code)
    try:
        layer.edge_infer_path.embedding(layer, torch.tensor([{n} - 1]), torch.float32)
    except WeightsLostError as e:
        print(">" + e.code)
except WeightsLostError as e:
    print(">while loading " + e.code)
"""


@pytest.mark.parametrize(
    ("path", "at_load", "expected"),
    [
        ("native", False, ["ran", *3 * ["weights_lost"]]),
        ("tinygemm", False, ["ran"]),  # it has a copy
        ("tinygemm", True, ["while loading weights_lost"]),
    ],
)
def test_truncated_file(tmp_path: Path, path: str, at_load: bool, expected: list[str]):
    file, n, k = tmp_path / "f.safetensors", 256, 512
    matrix = segment(n, k)
    save_file({"m.codes": matrix.codes, "m.scales": matrix.scales}, file)
    code = CODE.format(
        here=os.path.dirname(__file__), file=str(file), n=n, k=k, path=path, at_load=at_load
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    said = [line[1:] for line in done.stdout.splitlines() if line.startswith(">")]  # vLLM logs too
    assert said == expected
