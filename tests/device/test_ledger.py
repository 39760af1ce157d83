"""The ledger of a real process: it adds up, it finds what is planted, and the plan holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from byte_model import write_model
from safetensors.numpy import load_file, save_file

from edge_infer import LLM
from edge_infer.checkpoint.convert import convert
from edge_infer.device.ledger import HEAP, UNEXPLAINED, ledger, process_ledger

MB = 10**6
PROGRAM = """
import json, mmap, sys
from edge_infer import LLM, SamplingParams
from edge_infer.device.ledger import ledger
from edge_infer.device.usage import own_memory

def look():
    use = own_memory()
    print(json.dumps({**ledger(llm).as_dict(), "kernel": [use.anonymous, use.file_backed]}),
          flush=True)

llm = LLM(sys.argv[1], max_model_len=2048, threads=2)
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
llm.generate(["The sea is wide. " * 20], params)
look()
sys.stdin.readline()
planted = mmap.mmap(-1, 50_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
planted.write(bytes(50_000_000))
look()
planted.close()
llm.suspend()
look()
"""


def lines(found: dict) -> dict[str, dict]:
    return {line["name"]: line for line in found["lines"]}


@pytest.fixture(scope="module")
def seen(demo_model: Path) -> dict[str, dict]:
    """What a process says about itself after generation, with a plant, and suspended; and what
    it looks like from outside after generation."""
    command = [sys.executable, "-c", PROGRAM, str(demo_model)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        served = json.loads(process.stdout.readline())
        outside = process_ledger(process.pid).as_dict()
        process.stdin.write("go\\n")
        process.stdin.close()
        planted, suspended = (json.loads(process.stdout.readline()) for _ in range(2))
    return {"served": served, "outside": outside, "planted": planted, "suspended": suspended}


@pytest.mark.parametrize("moment", ["served", "planted", "suspended"])
def test_lines_add_up_to_what_the_kernel_counts(seen, moment: str) -> None:
    found = seen[moment]
    anonymous, file_backed = found["kernel"]
    # The ledger's own objects come and go between the two looks.
    assert found["anonymous"] == pytest.approx(anonymous, rel=0.02, abs=2 * MB)
    assert found["file_backed"] == pytest.approx(file_backed, rel=0.02, abs=2 * MB)


def test_the_rest_is_small(seen) -> None:
    assert seen["served"]["unexplained"] <= 0.05 * seen["served"]["anonymous"]


def test_memory_without_an_owner_is_not_hidden(seen) -> None:
    grown = seen["planted"]["unexplained"] - seen["served"]["unexplained"]
    assert 40 * MB < grown < 55 * MB
    assert seen["planted"]["unexplained"] > 0.05 * seen["planted"]["anonymous"]


def test_measured_is_what_was_planned(seen, demo_model: Path) -> None:
    found = lines(seen["served"])
    planned = {name: line["planned"] for name, line in found.items() if line["planned"]}
    weights = [name for name in planned if name.startswith("weights: ")]
    assert sum(planned[name] for name in weights) == (
        (demo_model / "model.safetensors").stat().st_size
    )
    for name in weights:
        assert found[name]["anonymous"] == 0
        if planned[name] > MB:  # decode has read them all
            assert found[name]["file_backed"] >= 0.95 * planned[name]
    for name in ("KV pool", "activations", "scratch", "RoPE tables"):
        assert 0 < found[name]["anonymous"] <= planned[name] + 4096
        assert found[name]["file_backed"] == 0


def test_named_owners(seen) -> None:
    found = lines(seen["served"])
    assert {"native code", "Python interpreter", "library: numpy", "library: tokenizers"} <= {
        *found
    }
    assert found["native code"]["file_backed"] > MB // 2
    assert found["tokenizer"]["anonymous"] > 30 * MB
    assert found["Python: small objects"]["anonymous"] > 2 * MB
    assert list(found)[-1] == UNEXPLAINED


def test_every_weight_of_the_demo_model_is_read(seen) -> None:
    assert seen["served"]["unread"] == []


def test_suspended_model_has_no_lines(seen) -> None:
    found = lines(seen["suspended"])
    assert not any(name.startswith("weights: ") for name in found)
    assert "KV pool" not in found
    assert found["tokenizer"]["anonymous"] == 0


def test_from_outside(seen) -> None:
    inside, outside = lines(seen["served"]), lines(seen["outside"])
    # Between the two looks lie the objects that the first one made.
    assert seen["outside"]["anonymous"] == pytest.approx(seen["served"]["anonymous"], rel=0.06)
    for name, line in outside.items():
        if name.startswith("weights: "):
            assert line["file_backed"] == inside[name]["file_backed"]
    assert outside["weights: embedding"]["file_backed"] > 100 * MB
    assert outside[HEAP]["anonymous"] > 0
    # A heap seen from outside has no owners.
    assert "tokenizer" not in outside


def test_planted_tensor_that_nothing_reads(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.forgotten.weight"] = np.ones((96, 64), np.float32)
    save_file(tensors, file)
    packed = convert(folder, tmp_path / "packed", bits=4, group_size=32)
    found = ledger(LLM(packed, weights="resident", threads=1))
    assert [(u.name, u.bytes) for u in found.unread] == [
        ("model.layers.0.mlp.forgotten.codes", 96 * 64 // 2),
        ("model.layers.0.mlp.forgotten.scales", 96 * 64 // 32 * 2),
    ]
    # A resident copy is this process's own.
    assert found.line("weights: mlp").anonymous == found.line("weights: mlp").planned
    assert found.line("weights: mlp").file_backed == 0
