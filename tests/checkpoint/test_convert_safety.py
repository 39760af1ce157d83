"""What conversion costs in memory, and what is left when it fails or is killed."""

import fcntl
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from model_files import write_folder, write_gguf

from edge_infer.checkpoint import Checkpoint, safetensors_io
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.staging import staged_folder
from edge_infer.errors import StorageError

MB = 1 << 20


def small_model(tmp_path, rows=64):
    w = np.random.default_rng(0).standard_normal((rows, 256)).astype(np.float32)
    return write_folder(tmp_path / "source", {f"model.layers.{i}.mlp.up_proj.weight": w + i
                                              for i in range(4)})  # fmt: skip


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def child(code, *args, **kw):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw,
    )  # fmt: skip


PEAK = """
    import json, sys
    import edge_infer.checkpoint.convert as c
    import gguf.quants
    def status():
        wanted = ("VmHWM", "RssAnon")
        lines = dict(l.split(":") for l in open("/proc/self/status") if l.startswith(wanted))
        return {k: int(v.split()[0]) << 10 for k, v in lines.items()}
    before, peak = status(), 0
    def progress(done, total):
        global peak
        peak = max(peak, status()["RssAnon"])
    c.convert(sys.argv[1], sys.argv[2], progress=progress, **json.loads(sys.argv[3]))
    after = status()
    print(json.dumps({"anon": peak - before["RssAnon"], "whole": after["VmHWM"] - before["VmHWM"]}))
"""


def sparse_folder(path, tensors):
    """A safetensors file of zeros that takes no disk space."""
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    header, position = {}, 0
    for name, (dtype, width, shape) in tensors.items():
        size = width * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    with open(path / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + position)


def peak_of(source, out, **options):
    p = child(PEAK, source, out, json.dumps(options))
    output, error = p.communicate(timeout=280)
    assert p.returncode == 0, error
    return json.loads(output)


def test_memory_does_not_follow_the_tensor(tmp_path):
    """An embedding of 1 GiB, carried tensors of 64 MiB, one of a single row: under 100 MB each."""
    sparse_folder(
        tmp_path / "source",
        {
            "model.embed_tokens.weight": ("BF16", 2, [262144, 2048]),
            "model.conv.weight": ("F32", 4, [1024, 256, 8, 8]),
            "model.long_norm.weight": ("BF16", 2, [1 << 25]),
        },
    )
    peak = peak_of(tmp_path / "source", tmp_path / "out")
    print("peak above the interpreter, MB:", {k: round(v / 1e6, 1) for k, v in peak.items()})
    assert peak["anon"] < 100e6 and peak["whole"] < 100e6
    c = Checkpoint.open(tmp_path / "out")
    assert c.matrices["model.embed_tokens"].n == 262144
    assert c.tensors["model.long_norm.weight"].dtype == "F32"


def test_memory_of_a_wide_tensor(tmp_path):
    sparse_folder(
        tmp_path / "source", {"model.layers.0.mlp.up_proj.weight": ("F32", 4, [32, 1 << 20])}
    )
    assert peak_of(tmp_path / "source", tmp_path / "out", bits=8)["whole"] < 150e6


@pytest.mark.usefixtures("no_tokenizer")
def test_an_interrupt_leaves_nothing(tmp_path):
    write_gguf(tmp_path / "m.gguf", "qwen3", ["Q4_0"])
    calls = []

    def interrupt(done, total):
        calls.append(done)
        if len(calls) == 8:
            assert any(".partial-" in n for n in names(tmp_path))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "m.gguf", tmp_path / "out", progress=interrupt)
    assert names(tmp_path) == ["m.gguf"]


def test_what_a_killed_process_leaves_is_removed_later(tmp_path):
    source = small_model(tmp_path)
    p = child(
        """
        import sys, time
        from edge_infer.checkpoint.convert import convert
        def stop(done, total):
            if done: print("half", flush=True); time.sleep(60)
        convert(sys.argv[1], sys.argv[2], progress=stop)
        """,
        source, tmp_path / "out",
    )  # fmt: skip
    assert p.stdout.readline() == "half\n"
    partial = [n for n in names(tmp_path) if ".partial-" in n]
    assert len(partial) == 1 and not (tmp_path / "out").exists()
    # while its owner lives, the folder is left alone
    convert(source, tmp_path / "out")
    assert partial[0] in names(tmp_path)
    p.send_signal(signal.SIGKILL)
    p.communicate()
    (tmp_path / "out").rename(tmp_path / "first")
    convert(source, tmp_path / "out")
    assert names(tmp_path) == ["first", "out", "source"]
    assert not (tmp_path / "out" / ".lock").exists()


def test_an_old_folder_without_a_lock_is_removed(tmp_path):
    source = small_model(tmp_path)
    for name, age in (("old", 4000), ("new", 0)):
        folder = tmp_path / f".out.partial-{name}"
        folder.mkdir()
        os.utime(folder, (time.time() - age,) * 2)
    convert(source, tmp_path / "out")
    assert names(tmp_path) == [".out.partial-new", "out", "source"]


def test_a_lock_of_a_living_process_is_respected(tmp_path):
    source = small_model(tmp_path)
    other = tmp_path / ".out.partial-x"
    other.mkdir()
    with open(other / ".lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        convert(source, tmp_path / "out")
        assert other.exists()


def test_no_space_is_seen_before_any_work(tmp_path, monkeypatch):
    source = small_model(tmp_path)
    monkeypatch.setattr("edge_infer.checkpoint.folder.free_bytes", lambda path: 12345)
    with pytest.raises(StorageError, match=r"\d{5,} bytes are needed and 12345 are free"):
        convert(source, tmp_path / "deep" / "out")
    assert names(tmp_path) == ["source"]


def test_no_space_while_writing(tmp_path, monkeypatch):
    source = small_model(tmp_path)
    real, count = os.pwrite, []

    def full(fd, data, offset):
        count.append(1)
        if len(count) == 5:
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(safetensors_io.os, "pwrite", full)
    with pytest.raises(StorageError, match=r"no space .*bytes are needed and \d+ are free"):
        convert(source, tmp_path / "out")
    assert names(tmp_path) == ["source"]


def test_a_file_size_limit_is_a_storage_error(tmp_path):
    source = small_model(tmp_path)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    p = child(
        """
        import sys
        from edge_infer.checkpoint.convert import convert
        from edge_infer.errors import StorageError
        try:
            convert(sys.argv[1], sys.argv[2])
        except StorageError as e:
            print(e)
        """,
        source, tmp_path / "out", preexec_fn=limit,
    )  # fmt: skip
    output, error = p.communicate(timeout=60)
    assert "no space" in output and "bytes are needed" in output, error
    assert names(tmp_path) == ["source"]


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of 256 KB; needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("check", [True, False])
def test_a_full_disk(tmp_path, tiny_disk, monkeypatch, check):
    source = small_model(tmp_path, rows=1024)
    if not check:  # space that vanishes after the check: the reservation fails
        monkeypatch.setattr("edge_infer.checkpoint.folder.free_bytes", lambda path: 1 << 40)
    with pytest.raises(StorageError, match=r"no space .*bytes are needed and \d+ are free"):
        convert(source, tiny_disk / "out")
    assert names(tiny_disk) == []


def test_an_unwritable_destination(tmp_path):
    source = small_model(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be"):
        convert(source, tmp_path / "file" / "out")


def test_a_destination_that_appears_meanwhile_is_kept(tmp_path):
    destination = tmp_path / "model"
    with pytest.raises(StorageError, match="in the meantime") as e, staged_folder(destination) as f:
        (f / "ours").touch()
        destination.mkdir()
        (destination / "theirs").touch()
    assert e.value.remedy
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in destination.iterdir()] == ["theirs"]
