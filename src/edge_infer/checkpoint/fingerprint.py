"""What a conversion came from: file sizes, sha256, and the version of this tool."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from edge_infer.errors import CheckpointError

_CHUNK = 1 << 20


def tool_version() -> str:
    """The installed version of edge-infer."""
    try:
        return metadata.version("edge-infer")
    except metadata.PackageNotFoundError:
        return "unknown"


class Fingerprints:
    """Hashes files in a thread of its own, beside the conversion that reads them anyway."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = list(files)
        self._stop = threading.Event()
        self._out: list[dict[str, Any]] = []
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="edge-infer-sha256", daemon=True)

    def _run(self) -> None:
        try:
            for path in self._files:
                digest, size = hashlib.sha256(), 0
                with open(path, "rb", buffering=0) as f:
                    while chunk := f.read(_CHUNK):
                        if self._stop.is_set():
                            return
                        digest.update(chunk)
                        size += len(chunk)
                entry = {"name": path.name, "size": size, "sha256": digest.hexdigest()}
                self._out.append(entry)
        except OSError as e:
            self._error = e

    def __enter__(self) -> Fingerprints:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def result(self) -> list[dict[str, Any]]:
        """Name, size in bytes and sha256 of every file, in order."""
        self._thread.join()
        if self._error is not None:
            raise CheckpointError(f"a source file cannot be read: {self._error}.")
        return self._out
