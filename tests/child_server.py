"""``edge-infer serve`` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(model, *options: str, port: int = 0, **popen) -> Iterator[tuple[subprocess.Popen, str]]:
    """A process that serves, and its URL."""
    command = [sys.executable, "-m", "edge_infer.cli", "serve", str(model), "--port", str(port)]
    popen.setdefault("stderr", subprocess.PIPE)
    child = subprocess.Popen(
        [*command, "--json", "--threads", "1", *options], stdout=subprocess.PIPE, text=True, **popen
    )
    try:
        text = ""
        while not text.endswith("}\n"):
            line = child.stdout.readline()
            assert line, child.stderr.read() if child.stderr else "no start"
            text += line
        yield child, json.loads(text)["url"]
    finally:
        child.kill()
        child.communicate()
