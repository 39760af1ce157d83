"""A process with torch answers for its tensors; the ledger names them and adds up.

No vLLM is needed for that: the answer looks at modules and tensors, whoever made them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_infer.device import tensor_owners
from edge_infer.device.ledger import process_ledger
from edge_infer.device.tensor_owners import BUFFERS, KV_CACHE, OTHERS, WEIGHTS
from edge_infer.errors import StorageError

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

MB = 1 << 20
PROGRAM = """
import gc, mmap, os, sys
import torch
from torch import nn
from edge_infer.vllm_plugin import storages

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cos_sin_cache", torch.ones(4 << 18))
        block = torch.zeros(16 << 18)
        self.kv_cache = [block[: 8 << 18], block[8 << 18 :]]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8192, 1024)
        self.head = nn.Linear(1024, 8192, bias=False)
        self.head.weight = self.embed.weight
        self.attention = Attention()
        mapped = torch.UntypedStorage.from_file(sys.argv[1], False, 2 << 20)
        self.norm = nn.Parameter(torch.tensor([], dtype=torch.float32).set_(mapped))

model = Model()
float(model.norm.sum())  # reads the file
loose = torch.ones(3 << 18)
fake = torch.empty(1 << 30, device="meta")
if sys.argv[2] == "frozen":
    gc.collect()
    gc.freeze()
storages.listen()
storages.listen()
print("ready", flush=True)
for line in sys.stdin:
    if line == "fork\\n":
        child = os.fork()
        if not child:
            sys.stdin.readline()
            os._exit(0)
        print(child, flush=True)
    elif line == "plant\\n":
        planted = mmap.mmap(-1, 50 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        planted.write(bytes(50 << 20))
        print(gc.get_freeze_count(), flush=True)
"""


class Process:
    def __init__(self, file: Path, *arguments: str, **environment: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(file), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.pid = self.popen.pid
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def say(self, line: str) -> str:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()
        return self.read()


@pytest.fixture
def start(tmp_path) -> Iterator:
    file = tmp_path / "norm.bin"
    file.write_bytes(bytes(2 * MB))
    running = []

    def start(*arguments: str, **environment: str) -> Process:
        running.append(Process(file, *arguments, **environment))
        return running[-1]

    yield start
    for process in running:
        process.popen.kill()
        process.popen.communicate()


@pytest.mark.parametrize("heap", ["frozen", "plain"])
def test_every_storage_once_by_name(start, heap) -> None:
    """vLLM freezes the heap of the garbage collector, which hides its objects from questions."""
    process = start(heap)
    found = process_ledger(process.pid)
    lines = {line.name: line for line in found.lines}
    assert lines[WEIGHTS].anonymous == pytest.approx(32 * MB, rel=0.01)  # tied: once
    assert lines[WEIGHTS].file_backed == 2 * MB
    assert lines[KV_CACHE].anonymous == pytest.approx(16 * MB, rel=0.01)
    assert lines[BUFFERS].anonymous == pytest.approx(4 * MB, rel=0.01)
    assert lines[OTHERS].anonymous == pytest.approx(3 * MB, rel=0.05)
    largest = {one.name: one for one in found.largest}
    assert next(iter(largest)) in ("embed.weight = head.weight", "head.weight = embed.weight")
    assert largest["attention.kv_cache.0 and 1 more"].bytes == 16 * MB
    assert largest["attention.cos_sin_cache"].bytes == 4 * MB
    assert largest["float32 [786432]"].bytes == 3 * MB
    assert (largest["norm"].anonymous, largest["norm"].file_backed) == (0, 2 * MB)
    assert len(found.largest) <= 10 and not found.notes

    before = found.unexplained
    frozen = int(process.say("plant"))
    assert (frozen > 0) == (heap == "frozen"), "the heap is left as it was"
    grown = process_ledger(process.pid).unexplained - before
    assert 40 * MB < grown < 55 * MB
    assert before <= 0.05 * found.anonymous


def test_what_is_forked_does_not_answer(start) -> None:
    process = start("plain")
    child = int(process.say("fork"))
    assert tensor_owners.ask(child) is None
    assert tensor_owners.ask(process.pid) is not None
    notes = process_ledger(process.pid).notes
    assert any(f"edge-infer ledger {child}" in note for note in notes), notes
    os.kill(child, 9)


def test_a_process_that_does_not_answer_says_so(start) -> None:
    process = start("plain", EDGE_INFER_VLLM_LEDGER="0")
    assert tensor_owners.ask(process.pid) is None
    found = process_ledger(process.pid)
    assert found.unexplained > 32 * MB
    assert any("does not answer" in note for note in found.notes)


def test_an_impostor_is_not_believed(monkeypatch) -> None:
    """Only the process itself speaks for its id: here this one takes the name of its parent."""
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(tensor_owners.address_of(os.getppid()))
        taken.listen()
        assert tensor_owners.ask(os.getppid(), patience=5) is None


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"storages": [{"address": "x"}]}'])
def test_a_broken_answer_is_a_named_error(text, monkeypatch) -> None:
    # A name of its own: the plugin may listen already in this process.
    monkeypatch.setattr(tensor_owners, "address_of", lambda pid: f"\0edge-infer/broken/{pid}")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(tensor_owners.address_of(os.getpid()))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(text)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StorageError, match="no usable answer"):
            tensor_owners.ask(os.getpid(), patience=10)
        thread.join()


def test_the_command_shows_tensors(start) -> None:
    process = start("plain")
    command = [sys.executable, "-m", "edge_infer.cli", "ledger", str(process.pid)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "KV cache" in shown and "largest tensors" in shown and "attention.cos_sin_cache" in shown
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert len(json.loads(as_json.stdout)["largest"]) >= 5
