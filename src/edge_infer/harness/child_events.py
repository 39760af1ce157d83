"""The child's side of a measured process; standard library only, so that it adds no memory."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from edge_infer.errors import EdgeInferError


def error_document(error: EdgeInferError) -> dict[str, str]:
    """An error as JSON, for the way from a child to its parent."""
    return {
        "class": type(error).__name__,
        "code": error.code,
        "message": error.message,
        "remedy": error.remedy,
    }


class ChildEvents:
    """Sends events to :class:`edge_infer.harness.processes.Child` and waits to be let on."""

    def __init__(self) -> None:
        # What libraries print must not be taken for an event.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        """Sends an event, with the time by CLOCK_MONOTONIC, and waits for the answer."""
        document = {"event": event, "time": time.monotonic(), **fields}
        self._out.write(json.dumps(document) + "\n")
        self._out.flush()
        if event not in ("end", "error") and not sys.stdin.readline():
            raise SystemExit(1)  # the parent has gone
