"""What an artifact says about code, machine and checkpoint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from edge_infer import _native
from edge_infer.harness.provenance import (
    edge_infer_build,
    file_identity,
    machine_load,
    portable,
    portable_text,
    provenance,
)


def test_build_names_compiler_and_flags() -> None:
    build = edge_infer_build()
    assert build.compiler and build.compiler.split()[0] in ("gcc", "clang")
    assert build.flags and "-O" in build.flags
    assert build.commit is None or len(build.commit) == 40


def test_provenance_describes_this_machine(monkeypatch) -> None:
    monkeypatch.setenv("EDGE_INFER_CACHE", "/some/where/cache")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    document = provenance(load_seconds=0.05)
    assert document.machine.isa_levels == list(_native.available_levels())
    assert document.machine.cpu == _native.cpu_brand()
    assert document.environment["EDGE_INFER_CACHE"] == "cache"
    assert "hunter2" not in document.model_dump_json()


def test_load_is_a_share() -> None:
    load = machine_load(0.1)
    assert 0 <= load.busy <= 1
    assert 0 <= load.steal <= 1


def test_paths_are_cut_to_their_names() -> None:
    command = [
        "/opt/x/bin/edge-infer",
        "bench",
        "/home/me/model",
        "--output=/tmp/a.json",
        "-t",
        "2",
    ]
    assert portable(command) == ["edge-infer", "bench", "model", "--output=a.json", "-t", "2"]


def test_identity_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"12345")
    (folder / "provenance.json").write_text(
        json.dumps({"source": {"name": "a.gguf", "files": []}, "tool_version": "1"})
    )
    identity = file_identity(folder)
    assert identity.name == "model"
    by_name = {f.name: f for f in identity.files}
    assert by_name["model.safetensors"].sha256 == hashlib.sha256(b"12345").hexdigest()
    assert identity.bytes == sum(f.bytes for f in identity.files)
    assert identity.source == {"source.name": "a.gguf", "tool_version": "1"}


def test_identity_of_a_file_too_large_to_hash(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"x" * 10)
    identity = file_identity(file, hash_limit=9)
    assert [(f.name, f.bytes, f.sha256) for f in identity.files] == [("a.gguf", 10, None)]


def test_paths_inside_text_are_cut_and_urls_are_not() -> None:
    text = 'File "/home/me/x/a.py", line 3: /tmp/y.json and a/b, http://h/v1/x, 3/4'
    assert portable_text(text) == 'File "a.py", line 3: y.json and a/b, http://h/v1/x, 3/4'
