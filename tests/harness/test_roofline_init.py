"""The commands ``roofline``, ``profile`` and ``init`` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from byte_model import write_model

from edge_infer import _native
from edge_infer.errors import ConfigError
from edge_infer.harness import bench_child, roofline
from edge_infer.harness.init import InitOptions
from edge_infer.harness.roofline import RooflineOptions
from edge_infer.harness.schema import Artifact

MB = 10**6


def run(*arguments: str) -> Artifact:
    command = [sys.executable, "-m", "edge_infer.cli", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return Artifact.model_validate(json.loads(done.stdout))


def test_roofline_has_every_ceiling_of_this_machine(monkeypatch) -> None:
    small = {"bytes": 1 << 20, "seconds": [0.5, 0.25]}
    monkeypatch.setattr(roofline, "stream_reads", lambda team, level, repeat: small)
    metrics, size = roofline.measure(1, RooflineOptions(threads=1, repeat=2, seconds=0.002))
    assert size == 1 << 20
    by_name = {m.name: m for m in metrics}
    assert by_name["stream_read"].samples == [(1 << 20) / 0.5e9, (1 << 20) / 0.25e9]
    levels = _native.available_levels()
    assert ("peak.avx2.int8" in by_name) == ("avx2" in levels)
    assert ("peak.amx.bf16" in by_name) == ("amx" in levels)
    assert not any(name.startswith("peak.scalar") for name in by_name)
    for metric in metrics[1:]:
        assert len(metric.samples) == 2 and metric.min > 0


def test_stream_reads_are_by_the_whole_team(monkeypatch) -> None:
    monkeypatch.setattr("edge_infer.harness.ceilings.stream_buffer_bytes", lambda: 3 << 20)
    found = bench_child.stream_reads(_native.Team(2), "scalar", 3)
    assert found["bytes"] == 3 << 20
    assert len(found["seconds"]) == 3 and min(found["seconds"]) > 0


def test_senseless_options() -> None:
    for changes in ({"threads": 0}, {"threads": 100_000}, {"repeat": 0}, {"seconds": 0.0}):
        with pytest.raises(ConfigError):
            RooflineOptions(**changes)
    for changes in ({"context": 0}, {"starts": 0}, {"timeout": 0.0}):
        with pytest.raises(ConfigError):
            InitOptions("m", **changes)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("init") / "model")


def test_profile_command(model: Path) -> None:
    artifact = run(
        *("profile", str(model), "--context", "8", "--prompt-tokens", "20", "--steps", "3"),
        *("--kv-cache-dtype", "int8"),
    )
    assert artifact.kind == "profile"
    (arm,) = artifact.arms
    assert [(p.phase, len(p.steps)) for p in arm.profiles] == [("decode", 3), ("prefill", 1)]
    assert arm.settings["kv_cache_dtype"] == "int8"


def test_init_command(model: Path) -> None:
    artifact = run("init", str(model), "--context", "400", "--starts", "2")
    assert artifact.kind == "init"
    (arm,) = artifact.arms
    found = {m.name: m for m in arm.metrics}
    assert all(len(m.samples) == 2 for m in arm.metrics)
    assert found["init.peak_anonymous"].min >= found["init.settled_anonymous"].min > 5 * MB
    # 400 tokens of two layers, one KV head of 32: 13 blocks of the layer that sees everything.
    assert found["init.kv_used"].min >= 13 * 32 * 2 * 32 * 2
    assert arm.memory is not None and arm.memory.interval_seconds == 0.005
    assert [s.moment for s in arm.memory.snapshots] == [
        *("opened", "first_token", "settled", "filled")
    ]
