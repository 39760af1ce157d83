"""The patches in real engines: flags off and on, each in a process tree of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_infer.vllm_plugin import flags, patches

pytestmark = pytest.mark.timeout(900)  # a start takes half a minute on a quiet machine

ADVERTISED, HEAD_DIM = 1 << 20, 32
KV_BYTES = 16 << 20
ARM = Path(__file__).with_name("engine_arm.py")
Arm = Callable[[str], dict[str, Any]]
CPUS = ",".join(map(str, sorted(os.sched_getaffinity(0))))
BOUND = {"VLLM_CPU_OMP_THREADS_BIND": CPUS}
# The binding is part of the key of vLLM's compile cache.
COMPILED = {"options": {"enforce_eager": False}, "env": BOUND}
ARMS: dict[str, dict[str, Any]] = {
    # Everything off; the variable that stock vLLM prefers to the argument is set.
    "stock": {
        "options": {},
        "env": BOUND | {f.name: "0" for f in flags.TABLE if f.switch},
    },
    "single": {"options": {}, "env": {"EDGE_INFER_VLLM_SINGLE_PROCESS": "1"}},
    "first start": COMPILED,
    "second start": COMPILED,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama that advertises a million positions."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        max_position_embeddings=ADVERTISED,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def arm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Arm:
    """arm(name) -> what engine_arm.py printed; each arm runs once."""
    done: dict[str, dict[str, Any]] = {}
    cache = tmp_path_factory.mktemp("cache")

    def run(name: str) -> dict[str, Any]:
        if name not in done:
            spec = ARMS[name]
            options = {"kv_cache_memory_bytes": KV_BYTES, **spec["options"]}
            env = {k: v for k, v in os.environ.items() if not k.startswith("EDGE_INFER_VLLM")}
            env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(cache), **spec["env"]}
            command = [sys.executable, str(ARM), str(model), json.dumps(options)]
            out, err, status = finished(command, env)
            assert status == 0, err[-3000:]
            done[name] = {**json.loads(out), "log": err}
        return done[name]

    return run


def finished(command: list[str], env: dict[str, str]) -> tuple[str, str, int]:
    """Output and exit status; an arm that hangs is ended with the processes that it started."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    try:
        out, err = process.communicate(timeout=800)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return out, err, process.returncode


def worker(document: dict[str, Any]) -> dict[str, Any]:
    assert len(document["workers"]) == 1
    return document["workers"][0]


def python_processes(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Without the small helper that multiprocessing starts."""
    return [p for p in document["memory"]["processes"] if p["anonymous"] > 64 << 20]


def test_explicit_kv_bytes(arm: Arm) -> None:
    stock, single = arm("stock"), arm("single")
    assert stock["kv_config"] == worker(stock)["kv_bytes"] == 1 << 30
    assert single["kv_config"] == worker(single)["kv_bytes"] == KV_BYTES


def test_rope_tables_and_results(arm: Arm) -> None:
    stock, single = arm("stock"), arm("single")
    whole = ADVERTISED * HEAD_DIM * 2
    assert worker(stock)["rope_tables"] == [[ADVERTISED, HEAD_DIM, whole]]
    assert worker(single)["rope_tables"] == [[257, HEAD_DIM, 257 * HEAD_DIM * 2]]
    assert stock["tokens"] == single["tokens"]
    assert len({tuple(tokens) for tokens in stock["tokens"]}) > 1


def test_one_process(arm: Arm) -> None:
    stock, single = arm("stock"), arm("single")
    assert len(python_processes(stock)) == 3
    assert len(python_processes(single)) == 1
    assert worker(single)["pid"] == single["memory"]["processes"][0]["pid"]
    assert single["memory"]["anonymous"] < stock["memory"]["anonymous"] / 2


def test_memory_is_given_back(arm: Arm) -> None:
    stock, single = arm("stock"), arm("single")
    assert worker(stock)["released"] == {} == stock["front_released"]
    points = worker(single)["released"]
    assert {"CPUWorker.load_model", "CPUWorker.compile_or_warm_up_model"} <= points.keys()
    assert all(point["after"] <= point["before"] + (1 << 20) for point in points.values())


def test_the_compile_cache_loads(arm: Arm) -> None:
    first, second = worker(arm("first start")), worker(arm("second start"))
    assert (first["compiled"], first["compiled_from_cache"]) == (True, False)
    assert (second["compiled"], second["compiled_from_cache"]) == (False, True)
    assert arm("first start")["tokens"] == arm("second start")["tokens"]


def test_threads_sleep_where_no_cpu_is_left(arm: Arm) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a worker of one thread does not wait for others")
    assert worker(arm("stock"))["spin"] == ""
    assert worker(arm("second start"))["spin"] == "10000"
    assert worker(arm("single"))["spin"] == ""


def test_states(arm: Arm) -> None:
    assert set(worker(arm("stock"))["patches"].values()) == {patches.OFF}
    states = worker(arm("single"))["patches"]
    assert states.pop("passive_omp") == patches.WAITING  # nothing starts a worker process
    assert states.pop("spark_loader") == patches.WAITING  # nothing imports its package
    assert set(states.values()) == {patches.APPLIED}


def test_status_command() -> None:
    env = {**os.environ, "EDGE_INFER_VLLM_ROPE_CAP": "0", "EDGE_INFER_VLLM_SINGLE_PROCESS": "1"}
    command = [sys.executable, "-m", "edge_infer.vllm_plugin", "--json"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    states = {entry["name"]: entry["state"] for entry in json.loads(result.stdout)}
    assert result.returncode == 0
    assert states.pop("rope_cap") == patches.OFF
    spark = importlib.util.find_spec("vllm_spark2_5_plugin") is not None
    assert states.pop("spark_loader") == (patches.APPLIED if spark else patches.WAITING)
    assert set(states.values()) == {patches.APPLIED}


def test_what_looks_different_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform of another shape: named once, not applied, not an error."""
    from vllm.platforms import cpu

    from edge_infer.vllm_plugin.patches import kv_bytes

    class Other:
        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            """Sets nothing."""

    unchanged = Other.__dict__["check_and_update_config"]
    monkeypatch.setattr(cpu, "CpuPlatform", Other)
    monkeypatch.setattr(patches, "_reasons", {})
    monkeypatch.setattr(patches, "_applied", {})
    monkeypatch.setattr(patches, "_off", set())
    warnings: list[str] = []
    monkeypatch.setattr(
        patches._logger, "warning", lambda text, *values: warnings.append(text % values)
    )
    for _ in range(2):
        patches._install("kv_bytes", kv_bytes.TARGETS[0])
    assert Other.__dict__["check_and_update_config"] is unchanged
    status = next(s for s in patches.status() if s.name == "kv_bytes")
    assert status.state == patches.NOT_APPLICABLE
    assert "VLLM_CPU_KVCACHE_SPACE" in status.reason
    assert len(warnings) == 1 and "kv_bytes" in warnings[0]
