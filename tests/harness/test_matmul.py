"""benchmarks/matmul.py: what it multiplies, and how its rates come about."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from safetensors.numpy import save_file

from edge_infer.checkpoint.convert import convert

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {
    "self_attn.q_proj": (64, 32),
    "self_attn.k_proj": (32, 32),
    "self_attn.v_proj": (32, 32),
    "self_attn.o_proj": (32, 64),
    "mlp.gate_proj": (96, 32),
    "mlp.up_proj": (96, 32),
    "mlp.down_proj": (32, 96),
}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A packed folder of one layer."""
    draw = np.random.default_rng(0)
    source = tmp_path / "source"
    source.mkdir()
    arrays = {
        f"model.layers.0.{name}.weight": draw.standard_normal(shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    save_file(arrays, source / "model.safetensors")
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32}
    (source / "config.json").write_text(json.dumps(config))
    return convert(source, tmp_path / "packed", bits=4)


@pytest.mark.parametrize("engine", ["edge-infer", "torch"])
def test_rates_are_operations_over_median_seconds(packed: Path, engine: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch", reason="the reference is not installed")
    words = ["--rows", "48", "--repeat", "3", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/matmul.py"), engine, str(packed), *words],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    products = {
        "qkv": 128 * 32,
        "o": 32 * 64,
        "gate_up": 192 * 32,
        "down": 32 * 96,
    }
    assert set(found["seconds"]) == set(products)
    times = {name: median(found["seconds"][name]) for name in products}
    for name, weights in products.items():
        assert len(found["seconds"][name]) == 3
        expected = 2 * 48 * weights / times[name] / 1e12
        assert found["teraflops"][name] == pytest.approx(expected)
    whole = 2 * 48 * sum(products.values()) / sum(times.values()) / 1e12
    assert found["teraflops"]["layer"] == pytest.approx(whole)
