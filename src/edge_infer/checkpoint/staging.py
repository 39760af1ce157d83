"""A folder that appears complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from edge_infer.checkpoint.safetensors_io import storage_error
from edge_infer.errors import StorageError

_LOCK = ".lock"


@contextlib.contextmanager
def staged_folder(destination: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `destination`; renames it there when the body succeeds.

    On any exception, an interrupt included, the temporary folder is removed. What a killed process
    left behind is removed by the next conversion to the same destination: a lock that the kernel
    releases with the process tells the two apart. Raises StorageError.
    """
    destination = destination.absolute()
    parent = destination.parent
    folder = parent / f".{destination.name}.partial-{secrets.token_hex(6)}"
    lock = -1
    try:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(destination)
            folder.mkdir()
            lock = os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise storage_error(e, destination) from None
        yield folder
        try:
            (folder / _LOCK).unlink()
            _sync(folder)
            os.rename(folder, destination)
            _sync(parent)
        except OSError as e:
            if e.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise StorageError(
                    f"{destination} has come into being in the meantime.",
                    remedy="Use it if another conversion made it, or choose another destination.",
                ) from None
            raise storage_error(e, destination) from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if lock >= 0:
            os.close(lock)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # not every file system syncs folders
            os.fsync(fd)
    finally:
        os.close(fd)


def _remove_stale(destination: Path) -> None:
    for folder in destination.parent.glob(f".{_literal(destination.name)}.partial-*"):
        try:
            fd = os.open(folder / _LOCK, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            with contextlib.suppress(OSError):
                # between mkdir and lock its owner needs moments; after an hour there is none
                if time.time() - folder.stat().st_mtime > 3600:
                    shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its owner lives
        finally:
            os.close(fd)


def _literal(name: str) -> str:
    """A name as a glob pattern that matches only itself."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
