"""From what the user types to a folder that the engine opens: path, GGUF file, or hub id.

Anything that needs conversion is converted once into a cache, keyed by the source's place, size and
time, the options and the format; a lock keeps two processes from converting the same thing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_infer.checkpoint.reader import (
    Checkpoint,
    open_tensors,
    quantization_of,
    read_config,
)
from edge_infer.checkpoint.safetensors_io import storage_error
from edge_infer.errors import CheckpointError, ConfigError, EdgeInferError, StorageError

CONVERTER_REVISION = 2  # raise it when conversion gives different bytes for the same options
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_HUB_FILES = [
    "*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken", "LICENSE*",
]  # fmt: skip
_HUB_SKIP = ["original/*", "consolidated*", "onnx/*", "openvino/*"]


def cache_dir() -> Path:
    """Where converted models are kept: $EDGE_INFER_CACHE, or edge-infer in the user's cache."""
    chosen = os.environ.get("EDGE_INFER_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "edge-infer"


def resolve(
    path_or_id: str | Path,
    *,
    bits: int | None = None,
    group_size: int = 32,
    symmetric: bool = True,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    convert: bool = True,
    progress: Callable[[int, int], None] | None = None,
    notes: list[str] | None = None,
    revision: str | None = None,
) -> Path:
    """The folder that the engine opens for a model.

    A packed folder is itself. A plain Hugging Face folder is converted into the cache, or used as
    it is when ``convert`` is False; a GGUF file is always converted. A hub id (``org/name``) is
    downloaded once with huggingface_hub, then treated as a folder; what an earlier call converted
    is used without asking the network, unless ``revision`` names another one. The other options
    are those of `checkpoint.convert.convert`.

    Raises what conversion raises, and StorageError when the hub is out of reach.
    """
    options: dict[str, Any] = {
        "bits": bits,
        "group_size": group_size,
        "symmetric": symmetric,
        "include": list(include),
        "exclude": list(exclude),
    }
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        if quantization_of(read_config(path)) is not None:
            _refuse_options(path, options)
            return path
        if not convert:
            return path
        return _converted(path, _stamp(path), path.resolve().name, options, progress, notes)
    if path.is_file():
        if not convert:
            raise ConfigError(f"{path} is a GGUF file, which is never run without conversion.")
        return _converted(path, _stamp(path), path.stem, options, progress, notes)
    name = str(path_or_id)
    if not _HUB_ID.fullmatch(name) or name.endswith(".gguf"):
        raise CheckpointError(
            f"{name} does not exist.",
            remedy="Give a model folder, a GGUF file, or a Hugging Face id such as org/name.",
        )
    stamp = {"hub": name, "revision": revision}
    label = name.replace("/", "--")
    if convert:
        ready = _usable(_place(stamp, label, options))
        if ready:
            return ready
    snapshot = download(name, revision)
    if quantization_of(read_config(snapshot)) is not None or not convert:
        return snapshot
    return _converted(snapshot, stamp, label, options, progress, notes, origin=name)


def _refuse_options(path: Path, options: dict[str, Any]) -> None:
    if options["bits"] is not None or options["include"] or options["exclude"]:
        raise ConfigError(
            f"{path} is already packed: bits, include and exclude have no effect on it.",
            remedy="Convert from the original with these options.",
        )


def _stamp(path: Path) -> dict[str, Any]:
    """What identifies a source: its place, and size and time of its files."""
    path = path.resolve()
    files = [path]
    if path.is_dir():
        files = [path / "config.json", *open_tensors(path)[0]]
    stats = [(f.name, s.st_size, s.st_mtime_ns) for f in files for s in [f.stat()]]
    return {"path": str(path), "files": stats}


def _place(stamp: dict[str, Any], label: str, options: dict[str, Any]) -> Path:
    identity = [stamp, options, CONVERTER_REVISION]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    label = re.sub(r"[^\w.-]", "_", label)[:80]
    return cache_dir() / "models" / f"{label}-{key}"


def _usable(folder: Path) -> Path | None:
    if not folder.is_dir():
        return None
    try:
        Checkpoint.open(folder)
    except EdgeInferError:
        return None
    return folder


def _converted(
    source: Path,
    stamp: dict[str, Any],
    label: str,
    options: dict[str, Any],
    progress: Callable[[int, int], None] | None,
    notes: list[str] | None,
    origin: str | None = None,
) -> Path:
    from edge_infer.checkpoint.convert import convert

    place = _place(stamp, label, options)
    ready = _usable(place)
    if ready:
        return ready
    with _locked(place):
        ready = _usable(place)  # another process may have converted it meanwhile
        if ready:
            return ready
        if place.exists():
            shutil.rmtree(place, ignore_errors=True)
        return convert(source, place, **options, progress=progress, notes=notes, origin=origin)


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    path = place.parent / f".{place.name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        error = storage_error(e, path)
        error.remedy = "Set EDGE_INFER_CACHE to a folder that can be written."
        raise StorageError(error.message, remedy=error.remedy) from None
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def download(repo: str, revision: str | None = None) -> Path:
    """The snapshot folder of a hub repository, downloaded where it is not in the hub's cache.

    Raises CheckpointError when the hub has no such repository or refuses access, StorageError when
    it cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    local = "Give a local folder or a GGUF file instead of the id."
    try:
        folder = snapshot_download(
            repo, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_SKIP
        )
    except LocalEntryNotFoundError as e:  # no connection, and nothing in the hub's own cache
        raise _unreachable(repo, e) from None
    except GatedRepoError:
        raise CheckpointError(
            f"the hub grants no access to {repo}.",
            remedy="Accept its licence on the hub and set HF_TOKEN. " + local,
        ) from None
    except (RepositoryNotFoundError, RevisionNotFoundError) as e:
        what = "repository" if isinstance(e, RepositoryNotFoundError) else f"revision {revision} of"
        raise CheckpointError(f"the hub has no {what} {repo}.", remedy=local) from None
    except HfHubHTTPError as e:
        raise StorageError(f"the hub refused {repo}: {str(e)[:200]}.", remedy=local) from None
    except OSError as e:
        if e.errno is not None and e.filename is not None:
            raise storage_error(e, Path(str(e.filename))) from None
        raise _unreachable(repo, e) from None
    except Exception as e:  # the HTTP library's own classes, which change with its versions
        if not type(e).__module__.startswith(("httpx", "httpcore", "requests", "urllib3")):
            raise
        raise _unreachable(repo, e) from None
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{repo} on the hub has no config.json.",
            remedy="If it holds GGUF files, download one and give its path.",
        )
    return path


def _unreachable(repo: str, error: Exception) -> StorageError:
    return StorageError(
        f"{repo} is no local path, and the Hugging Face hub cannot be reached "
        f"({type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}).",
        remedy="Give a local model folder or GGUF file; or download on a machine with access and "
        "copy the folder here.",
    )
