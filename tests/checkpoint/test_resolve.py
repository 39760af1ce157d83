"""resolve: folders, GGUF files and hub ids become a folder; conversion happens once."""

import os
import sys
import threading
import types

import numpy as np
import pytest
from model_files import write_folder, write_gguf

from edge_infer.checkpoint import Checkpoint
from edge_infer.checkpoint import convert as convert_module
from edge_infer.checkpoint.resolve import cache_dir, resolve
from edge_infer.errors import CheckpointError, ConfigError, StorageError

pytestmark = pytest.mark.usefixtures("no_tokenizer")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_INFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def conversions(monkeypatch):
    """Counts conversions that really run."""
    done, real = [], convert_module.convert

    def counted(*args, **kw):
        done.append(args)
        return real(*args, **kw)

    monkeypatch.setattr(convert_module, "convert", counted)
    return done


def hf_folder(path):
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    return write_folder(path, {"model.layers.0.mlp.up_proj.weight": w})


def test_cache_place(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("EDGE_INFER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(cache_dir()) == "/x/edge-infer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_dir()) == "/home/someone/.cache/edge-infer"


def test_gguf_is_converted_once(tmp_path, conversions, cache):
    path = tmp_path / "m.gguf"
    write_gguf(path, "qwen3", ["Q8_0"])
    first = resolve(path)
    assert first.parent == cache / "models" and first.name.startswith("m-")
    assert resolve(str(path)) == first and len(conversions) == 1
    other = resolve(path, bits=4)
    assert other != first and len(conversions) == 2
    assert {m.bits for m in Checkpoint.open(other).matrices.values()} == {4}
    os.utime(path, (1, 1))  # a changed file is another model
    assert resolve(path) not in (first, other) and len(conversions) == 3
    with pytest.raises(ConfigError, match="never run without conversion"):
        resolve(path, convert=False)


def test_folders(tmp_path, conversions):
    source = hf_folder(tmp_path / "hf")
    assert resolve(source, convert=False) == source and not conversions
    packed = resolve(source)
    assert resolve(source) == packed and len(conversions) == 1
    assert resolve(packed) == packed and resolve(packed, convert=False) == packed
    with pytest.raises(ConfigError, match="already packed"):
        resolve(packed, bits=8)
    (source / "config.json").write_text('{"model_type": "qwen2"}')
    assert resolve(source) != packed and len(conversions) == 2


def test_a_damaged_conversion_is_made_again(tmp_path, conversions):
    source = hf_folder(tmp_path / "hf")
    packed = resolve(source)
    with open(packed / "model.safetensors", "r+b") as f:
        f.truncate(500)
    assert resolve(source) == packed and len(conversions) == 2
    Checkpoint.open(packed)


def test_two_at_once_convert_once(tmp_path, conversions):
    source = hf_folder(tmp_path / "hf")
    out = []
    threads = [threading.Thread(target=lambda: out.append(resolve(source))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(conversions) == 1 and len(set(out)) == 1 and len(out) == 4


@pytest.mark.parametrize("name", ["nowhere", "./a/b", "/no/such/thing", "a/b.gguf", "a/b/c", ""])
def test_what_is_neither_path_nor_id(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name == "":
        with pytest.raises(CheckpointError, match=r"config\.json"):
            resolve(name)
        return
    with pytest.raises(CheckpointError, match="does not exist"):
        resolve(name)


def test_an_unwritable_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("EDGE_INFER_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="EDGE_INFER_CACHE"):
        resolve(hf_folder(tmp_path / "hf"))


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A stand-in for the hub: `hub.answer` is what a download does."""
    state = types.SimpleNamespace(calls=[], answer=None)

    def snapshot_download(repo, **kw):
        state.calls.append((repo, kw["revision"]))
        if isinstance(state.answer, Exception):
            raise state.answer
        return str(state.answer)

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return state


def test_hub_id_is_downloaded_and_converted_once(tmp_path, hub, conversions):
    hub.answer = hf_folder(tmp_path / "snapshot")
    packed = resolve("org/name")
    assert packed.name.startswith("org--name-")
    assert '"name": "org/name"' in (packed / "provenance.json").read_text()
    hub.answer = ConnectionError("the network is gone")
    assert resolve("org/name") == packed and len(hub.calls) == 1 and len(conversions) == 1
    with pytest.raises(StorageError, match="cannot be reached"):
        resolve("org/name", revision="main")


def test_a_packed_repository_is_used_as_it_is(tmp_path, hub, conversions):
    packed = resolve(hf_folder(tmp_path / "hf"))
    hub.answer = packed
    assert resolve("org/packed") == packed and len(conversions) == 1


def http_error(cls):
    response = types.SimpleNamespace(headers={}, request=None)
    return cls("message of the hub", response=response)


def connect_error():
    """The connection error of the HTTP library that this version of the hub library uses."""
    import importlib

    from huggingface_hub.errors import HfHubHTTPError

    library = HfHubHTTPError.__mro__[1].__module__.split(".")[0]
    module = importlib.import_module(library)
    cls = getattr(module, "ConnectError", None) or module.ConnectionError
    return cls("Name or service not known")


def test_hub_errors_are_named(tmp_path, hub):
    from huggingface_hub import errors

    for cls, expected, message in (
        (errors.RepositoryNotFoundError, CheckpointError, "no repository"),
        (errors.GatedRepoError, CheckpointError, "HF_TOKEN"),
        (errors.RevisionNotFoundError, CheckpointError, "no revision"),
        (errors.HfHubHTTPError, StorageError, "refused"),
    ):
        hub.answer = http_error(cls)
        with pytest.raises(expected, match=message):
            resolve("org/name", revision="v1")
    for error in (
        errors.LocalEntryNotFoundError("nothing here"),
        errors.OfflineModeIsEnabled("offline"),
        ConnectionError("reset"),
        connect_error(),
    ):
        hub.answer = error
        with pytest.raises(StorageError, match=r"cannot be reached.*local model folder or GGUF"):
            resolve("org/name")
    hub.answer = OSError(28, "No space left on device", str(tmp_path / "x"))
    with pytest.raises(StorageError, match="no space"):
        resolve("org/name")
    hub.answer = ValueError("a bug is no network error")
    with pytest.raises(ValueError, match="a bug"):
        resolve("org/name")
    hub.answer = tmp_path
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve("org/name")


def test_the_hub_library_is_imported_only_for_the_hub(tmp_path):
    import subprocess

    source = hf_folder(tmp_path / "hf")
    code = (
        "import sys; from edge_infer.checkpoint.resolve import resolve; resolve(sys.argv[1]); "
        "assert 'huggingface_hub' not in sys.modules and 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(source)], check=True)
