"""The five mistakes that a measurement must not be able to make, each one planted here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from grids import MB, arm, python, run, spec
from pydantic import ValidationError
from safetensors.numpy import save_file
from test_schema import artifact

from edge_infer.checkpoint.convert import convert
from edge_infer.harness.identity import checkpoint_identity
from edge_infer.harness.schema import Artifact

MEMORY = [
    {"name": "anonymous", "memory": "peak_anonymous"},
    {"name": "mapped", "memory": "peak_file_backed"},
    {"name": "pss", "memory": "peak_pss"},
]

HEAP = f"import time; x = b'x' * {64 * MB}; time.sleep(0.5)"
MAPPED = """
import mmap, time
with open({path!r}, "rb") as file:
    view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
sum(view[i] for i in range(0, len(view), 4096))
time.sleep(0.5)
"""


# 1. Resident memory read as VmRSS, which counts mapped files.


def test_mapped_files_are_no_anonymous_memory(tmp_path: Path) -> None:
    data = tmp_path / "weights"
    data.write_bytes(b"\1" * (64 * MB))
    arms = [arm("heap", HEAP), arm("mapped", MAPPED.format(path=str(data)))]
    artifact = run(tmp_path, arms, metrics=MEMORY)
    heap, mapped = ({m.name: m.median for m in a.metrics} for a in artifact.arms)
    # By VmRSS the two are equal; one of them needs its memory, the other can give it back.
    resident = [a.memory.peak_rss for a in artifact.arms if a.memory is not None]
    assert max(resident) - min(resident) < 16 * MB
    assert heap["anonymous"] >= 64 * MB > 24 * MB > mapped["anonymous"]
    assert mapped["mapped"] >= 64 * MB > 24 * MB > heap["mapped"]
    assert heap["pss"] >= 64 * MB


@pytest.mark.parametrize(
    "metric",
    [
        {"name": "memory", "memory": "rss"},
        {"name": "memory", "memory": "peak_rss"},
        {"name": "memory", "unit": "kB", "better": "lower", "regex": r"VmRSS:\s+(\d+)"},
        {"name": "memory", "unit": "kB", "better": "lower", "json": "usage.ru_maxrss"},
    ],
)
def test_resident_memory_is_no_metric(metric: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"peak_anonymous"):
        spec([arm("a")], metrics=[metric])


# 2. A build or a checkpoint that is not the one believed.


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model twice: wholly packed, and with an output head that was left as it was."""
    folder = tmp_path_factory.mktemp("models")
    source = folder / "source"
    source.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}
    (source / "config.json").write_text(json.dumps({**config, "vocab_size": 96}))
    random = np.random.default_rng(0)
    names = ["model.embed_tokens", "lm_head"]
    names += [f"model.layers.{i}.self_attn.q_proj" for i in range(3)]
    tensors = {f"{n}.weight": random.normal(size=(96, 64)).astype(np.float32) for n in names}
    save_file(tensors, source / "model.safetensors")
    return {
        "whole": convert(source, folder / "whole"),
        "float-head": convert(source, folder / "float-head", exclude=["lm_head"]),
    }


def formats(head: str) -> dict[str, str]:
    return {"model.layers.*": "4-bit, groups of 32", "lm_head*": head}


def test_head_that_was_left_unquantized_voids_the_arm(models, tmp_path: Path) -> None:
    wanted = {"formats": formats("4-bit*")}
    arms = [arm(name, model=str(path), expect=wanted) for name, path in models.items()]
    whole, float_head = run(tmp_path, arms).arms
    assert whole.status == "result"
    assert float_head.status == "void"
    assert "lm_head.weight: F32, expected 4-bit*" in float_head.status_reason
    assert float_head.metrics == []


def test_artifact_says_the_format_of_every_tensor(models, tmp_path: Path) -> None:
    (found,) = run(tmp_path, [arm("a", model=str(models["float-head"]))]).arms
    assert found.checkpoint is not None
    listed = {(t.name, t.layers, t.format, t.tensors) for t in found.checkpoint.tensors}
    assert ("model.layers.*.self_attn.q_proj", "0-2", "4-bit, groups of 32", 3) in listed
    assert ("lm_head.weight", None, "F32", 1) in listed
    assert all(f.sha256 for f in found.checkpoint.files)


def test_expected_tensor_that_is_not_there_and_another_files_hash(models, tmp_path: Path) -> None:
    expect = {
        "formats": {"model.vision.*": "F32"},
        "sha256": {"model.safetensors": "0" * 64},
    }
    (found,) = run(tmp_path, [arm("a", model=str(models["whole"]), expect=expect)]).arms
    assert found.status == "void"
    assert "no tensor is called model.vision.*" in found.status_reason
    assert "model.safetensors has sha256" in found.status_reason


def test_engine_that_read_another_model_voids_the_arm(models, tmp_path: Path) -> None:
    report = artifact().model_dump(mode="json")
    identity = checkpoint_identity(models["float-head"]).model_dump(mode="json")
    report["arms"][0]["checkpoint"] = identity
    (tmp_path / "report.json").write_text(json.dumps({**report, "comparisons": []}))
    says = f"print(open({str(tmp_path / 'report.json')!r}).read())"
    speed = {"name": "speed", "unit": "tok/s", "better": "higher"}
    metrics = [{**speed, "json": "arms[0].metrics[?name=='decode'].median"}]
    arms = [arm(name, says, model=str(path)) for name, path in models.items()]
    whole, float_head = run(tmp_path, arms, metrics=metrics).arms
    assert whole.status == "void" and "other files than 'whole'" in whole.status_reason
    assert float_head.status == "result"
    assert float_head.metrics[0].samples == [11.0, 11.0, 11.0]


def test_program_that_changes_between_passes_voids_the_arm(tmp_path: Path) -> None:
    report = artifact().model_dump(mode="json")
    code = f"""
import json, os
state = {str(tmp_path / "count")!r}
count = os.path.getsize(state) if os.path.exists(state) else 0
open(state, "a").write("x")
report = json.loads({json.dumps(report)!r})
report["arms"][0]["engine"]["commit"] = "abc" if count < 2 else "def"
print(json.dumps(report))
"""
    metrics = [{"name": "n", "unit": "tokens", "better": "higher", "json": "schema_version"}]
    (found,) = run(tmp_path, [arm("a", code)], metrics=metrics, passes=4).arms
    assert (found.status, found.status_reason) == (
        "void",
        "the program changed between two passes",
    )


# 3. The wrong process measured: a worker holds the weights.

WORKER = f"""
import subprocess, sys
hold = "import time; x = b'x' * {64 * MB}; time.sleep(0.8)"
sys.exit(subprocess.run([sys.executable, "-c", hold]).returncode)
"""
ORPHAN = f"""
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        x = b"x" * {64 * MB}
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(1)
print(open("/proc/self/stat").read().split()[0])
"""


@pytest.mark.parametrize("code", [WORKER, ORPHAN], ids=["worker", "worker without a parent"])
def test_memory_of_a_worker_counts_and_the_tree_is_written_down(code: str, tmp_path: Path) -> None:
    (found,) = run(tmp_path, [arm("a", code)], metrics=MEMORY, passes=1).arms
    anonymous = found.metric("anonymous")
    assert anonymous is not None and anonymous.min >= 64 * MB
    assert found.memory is not None
    (tree,) = found.memory.snapshots
    assert tree.moment == "peak" and len(tree.processes) >= 2
    root, *workers = tree.processes
    # The process that was started is not the one that holds the memory.
    assert root.anonymous < 32 * MB
    assert max(w.anonymous for w in workers) >= 64 * MB


def test_no_process_outlives_its_pass(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    note = f"open({str(pid)!r}, 'w').write(str(os.getpid())); x = b"
    run(tmp_path, [arm("a", ORPHAN.replace("x = b", note))], metrics=MEMORY, passes=1)
    stat = Path(f"/proc/{pid.read_text()}/stat")
    # Who adopted it may not have waited for it yet.
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


# 4. A knob that is not connected: a setting overwritten on the way.

ENGINE = """
import json, os
asked = os.environ["CHUNK"]
print(json.dumps({"speed": 10, "settings": {"chunk": 256 if asked == "64" else int(asked)}}))
"""


def chunk(size: int) -> dict[str, object]:
    probe = {"json": "settings.chunk", "equals": size}
    return arm(f"chunk-{size}", ENGINE, env={"CHUNK": size}, probes=[probe])


def test_setting_that_did_not_take_effect_voids_the_arm(tmp_path: Path) -> None:
    found = run(tmp_path, [chunk(128), chunk(64)], warmup=1)
    connected, overwritten = found.arms
    assert connected.status == "result" and connected.probes[0].held
    assert overwritten.status == "void"
    assert "expected 64, found 256" in overwritten.status_reason
    # Neither a figure nor a comparison of it, and no more time spent on it.
    assert overwritten.metrics == [] and found.comparisons == []
    assert found.grid is not None
    assert [p.warmup for p in found.grid.passes if p.arm == "chunk-64"] == [True]


def test_arm_without_a_probe_says_why() -> None:
    with pytest.raises(ValidationError, match="needs either probes"):
        spec([{"name": "a", "command": python("")}])
    with pytest.raises(ValidationError, match="needs either probes"):
        spec([arm("a", probes=[{"json": "x", "equals": 1}], no_probe="why not")])


@pytest.mark.parametrize(("wanted", "status"), [("running", "result"), ("walking", "void")])
def test_probe_asks_the_running_engine(wanted: str, status: str, tmp_path: Path) -> None:
    code = "import os, time; os.environ.clear(); time.sleep(1.5); print('{\"speed\": 1}')"
    ask = "import os; print('running' if os.path.exists('/proc/' + os.environ['ARM_PID']) else 0)"
    probe = {"command": python(ask), "regex": r"^\w+$", "equals": wanted}
    (found,) = run(tmp_path, [arm("a", code, probes=[probe])]).arms
    assert found.status == status
    assert found.probes[0].found == "running"


# 5. One surviving pass of a crashed grid quoted as a result.

CRASHES = """
import os, sys
state = {state!r}
count = os.path.getsize(state) if os.path.exists(state) else 0
open(state, "a").write("x")
if count not in {survives}:
    print("half a result on stdout")
    print("out of memory in layer 7", file=sys.stderr)
    sys.exit(9)
print('{{"speed": 99}}')
"""


def test_surviving_passes_of_a_crashed_grid_are_not_a_result(tmp_path: Path) -> None:
    crashes = CRASHES.format(state=str(tmp_path / "count"), survives=[1, 3])
    found = run(tmp_path, [arm("sound"), arm("crashes", crashes)], passes=5)
    sound, crashed = found.arms
    assert sound.status == "result"
    assert (crashed.status, crashed.status_reason) == (
        "not a result",
        "2 good passes; 3 are needed",
    )
    assert found.comparisons == []
    assert [f.code for f in crashed.failures] == ["exit"] * 3
    assert crashed.failures[0].message == "pass 1: exit status 9: out of memory in layer 7"
    assert found.grid is not None
    assert [p.exit_status for p in found.grid.passes if p.arm == "crashes"] == [9, 0, 9, 0, 9]
    # Nor can the label be taken off by hand.
    document = json.loads((tmp_path / "artifact.json").read_text())
    document["arms"][1]["status"] = "result"
    with pytest.raises(ValidationError, match="2 passes of 'speed' a result; 3 are needed"):
        Artifact.model_validate(document)


def test_values_of_a_failed_pass_do_not_count(tmp_path: Path) -> None:
    late = "import os, sys; print('{\"speed\": 10}'); sys.stdout.flush(); os.kill(os.getpid(), 11)"
    (found,) = run(tmp_path, [arm("a", late)]).arms
    assert found.metrics == [] and found.status == "not a result"
    assert "signal 11" in found.failures[0].message


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("print('speed 10')", "stdout is no JSON document; it starts with 'speed 10'"),
        ("print('{}')", "json speed gives null"),
        ('print(\'{"speed": "fast"}\')', "'fast', not a finite number"),
        ("print('{\"speed\": true}')", "not a finite number"),
        ("import time; time.sleep(60)", r"took longer than 0\.5 s"),
    ],
)
def test_pass_without_its_value_has_failed(code: str, complaint: str, tmp_path: Path) -> None:
    (found,) = run(tmp_path, [arm("a", code)], passes=1, timeout=0.5).arms
    assert re.search(complaint, found.failures[0].message)
    assert found.metrics == []
