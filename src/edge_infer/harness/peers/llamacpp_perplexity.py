"""llama.cpp's predictions over a text, through its own llama-perplexity."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from edge_infer.device import cpu_budget
from edge_infer.errors import CheckpointError, UnsupportedError
from edge_infer.harness.peers.llamacpp import find_program, llama_build
from edge_infer.harness.predictions import FilePredictions
from edge_infer.harness.processes import run_program
from edge_infer.harness.schema import EngineBuild

TIMEOUT = 3600.0


class PeerRun:
    """A folder for the peers' files while they are compared; gone afterwards."""

    def __enter__(self) -> PeerRun:
        self._folder = tempfile.TemporaryDirectory(prefix="edge-infer-logits-")
        self.folder = Path(self._folder.name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()


@dataclass(frozen=True)
class PeerPredictions:
    """What one run of llama-perplexity left behind, and how it was run."""

    model: Path
    predictions: FilePredictions
    command: list[str]
    threads: int
    build: EngineBuild


def log_probabilities(
    peers: PeerRun,
    model: Path,
    text: Path,
    shape: tuple[int, ...],
    threads: int | None,
    progress: Callable[[str], None],
) -> PeerPredictions:
    """Runs llama-perplexity over the first chunks of a text; ``shape`` is (chunks, context).

    Raises CheckpointError for a missing model, UnsupportedError without the program, and
    ExecutionError where it fails.
    """
    if not model.is_file():
        raise CheckpointError(f"{model} is not a file; llama.cpp needs a GGUF.")
    program = find_program().with_name("llama-perplexity")
    if not program.is_file():
        raise UnsupportedError(
            f"There is no {program.name} beside llama-bench.",
            remedy="Run make baseline-llamacpp, which builds both.",
        )
    chunks, context = shape
    count = cpu_budget().threads if threads is None else threads
    out = peers.folder / f"{model.stem}.{len(list(peers.folder.iterdir()))}.logits"
    command = [str(program), "-m", str(model), "-f", str(text), "-t", str(count)]
    # a batch of one chunk: a larger one holds the logits of several at once
    command += ["-c", str(context), "-b", str(context), "--chunks", str(chunks)]
    command += ["--kl-divergence-base", str(out)]
    progress(f"llama.cpp on {model.name}")
    run_program(command, (), TIMEOUT)
    return PeerPredictions(model, FilePredictions(out), command, count, llama_build(program))
