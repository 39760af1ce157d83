"""llama.cpp, measured by its own llama-bench (baselines/llamacpp builds it).

By default llama.cpp repacks weights at load into a buffer beside the mapped file. Without that
(``repack=False``) it needs the least memory that it can, and is slower.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_infer.errors import ConfigError, ExecutionError, UnsupportedError
from edge_infer.harness.bench import BenchOptions, Samples
from edge_infer.harness.peers import PeerRun
from edge_infer.harness.processes import run_program
from edge_infer.harness.provenance import sha256
from edge_infer.harness.schema import EngineBuild

VARIABLE = "EDGE_INFER_LLAMA_BENCH"
BUILT = Path("baselines/llamacpp/build/bin/llama-bench")
BATCHED = "llama-batched-bench"
START_TOKENS = 11
"""Of the prompt that ends a start: as many as our own start's text has."""


def find_program() -> Path:
    """llama-bench: $EDGE_INFER_LLAMA_BENCH, this repository's build, or the PATH.

    Raises UnsupportedError where there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return Path(named)
        raise ConfigError(f"{VARIABLE} = {named!r} is not a program.")
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        if (folder / BUILT).is_file():
            return folder / BUILT
    on_path = shutil.which("llama-bench")
    if on_path is None:
        raise UnsupportedError(
            "llama-bench was not found.",
            remedy=f"Run make baseline-llamacpp, or set {VARIABLE} to the program.",
        )
    return Path(on_path)


def parse_results(text: str) -> tuple[Samples, dict[str, Any]]:
    """Samples (tok/s) out of llama-bench's ``-o json``, and one result's fields.

    Raises ExecutionError where it is not what llama-bench writes.
    """
    try:
        results = json.loads(text)
        samples: Samples = {}
        for r in results:
            name = "prefill" if r["n_prompt"] and not r["n_gen"] else "decode"
            samples[name] = [float(s) for s in r["samples_ts"]]
        return samples, dict(results[0])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ExecutionError(f"llama-bench wrote no results that can be read: {error!r}.") from None


def parse_batched(text: str) -> list[float]:
    """Total decode tok/s out of llama-batched-bench's JSON lines, one for each."""
    try:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        speeds = [float(json.loads(line)["speed_tg"]) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise ExecutionError(f"llama-batched-bench wrote no results: {error!r}.") from None
    if not speeds:
        raise ExecutionError("llama-batched-bench wrote no results.")
    return speeds


class LlamaCpp:
    """llama.cpp as an arm: llama-bench, and llama-batched-bench for several sequences."""

    def __init__(self, program: Path, repack: bool = True) -> None:
        self.program = program
        self.repack = repack
        self.name = "llama.cpp" if repack else "llama.cpp, no repack"

    def run(self, model: Path, options: BenchOptions, cpus: Sequence[int]) -> PeerRun:
        """See :class:`edge_infer.harness.peers.Peer`. The prefill has no context before it, so a
        decode with one is a run of its own."""
        common = [str(self.program), "-m", str(model), "-t", str(len(cpus))]
        common += ["-o", "json", *([] if self.repack else ["--repack", "0"])]
        repeat = ["-r", str(options.repeat)]
        prompt, generate = ["-p", str(options.prompt_tokens)], ["-n", str(options.generate_tokens)]
        if options.context and options.prompt_tokens:
            commands = [
                [*common, *repeat, *prompt, "-n", "0"],
                [*common, *repeat, "-p", "0", *generate, "-d", str(options.context)],
            ]
        else:
            depth = ["-d", str(options.context)] if options.context else []
            commands = [[*common, *repeat, *prompt, *generate, *depth]]
        samples: Samples = {}
        fields: dict[str, Any] = {}
        reports = []
        for command in commands:
            out, memory = run_program(command, cpus, options.timeout)
            found, fields = parse_results(out)
            samples |= found
            reports.append(memory)
        if options.sequences > 1:
            commands.append(self._batched(model, options, len(cpus)))
            out, memory = run_program(commands[-1], cpus, options.timeout)
            samples["decode.together"] = parse_batched(out)
            reports.append(memory)
        if options.starts:
            commands.append([*common, "-r", "1", "-p", str(START_TOKENS), "-n", "0", "--no-warmup"])
            samples["load.start_to_first_token"] = [
                self._start(commands[-1], cpus, options.timeout) for _ in range(options.starts)
            ]
        kept = ("type_k", "type_v", "n_batch", "n_ubatch", "flash_attn", "repack", "model_type")
        return PeerRun(
            samples=samples,
            command=[w for c in commands for w in ("&&", *c)][1:],
            threads=int(fields["n_threads"]),
            settings={name: fields[name] for name in kept if name in fields},
            memory=max(reports, key=lambda r: r.peak_anonymous),
        )

    def build(self) -> EngineBuild:
        return llama_build(self.program)

    @staticmethod
    def _start(command: list[str], cpus: Sequence[int], timeout: float) -> float:
        """Seconds of a whole process that loads the model and computes one short prompt."""
        start = time.monotonic()
        run_program(command, cpus, timeout)
        return time.monotonic() - start

    def _batched(self, model: Path, options: BenchOptions, threads: int) -> list[str]:
        program = self.program.parent / BATCHED
        if not program.is_file():
            raise UnsupportedError(
                f"{BATCHED} is not beside {self.program.name}; several sequences need it.",
                remedy="Run make baseline-llamacpp again.",
            )
        prompt = max(options.context, 1)
        # Each sequence has an equal part of the context, rounded up as llama.cpp rounds it.
        part = -(-(prompt + options.generate_tokens) // 256) * 256
        command = [str(program), "-m", str(model), "-t", str(threads)]
        command += ["-c", str(options.sequences * part), "-npp", str(prompt)]
        command += ["-ntg", str(options.generate_tokens), "--output-format", "jsonl"]
        command += [] if self.repack else ["--no-repack"]
        return [*command, "-npl", ",".join([str(options.sequences)] * options.repeat)]


def open_peer(repack: bool = True) -> LlamaCpp:
    """Raises as :func:`find_program` does."""
    return LlamaCpp(find_program(), repack)


def llama_build(program: Path) -> EngineBuild:
    """What build.sh wrote beside the program, or the little that can be said without it."""
    digest = sha256(program)
    try:
        document = json.loads((program.parent / "build.json").read_text())
        return EngineBuild(
            name="llama.cpp",
            version=str(document["source"]),
            commit=str(document["commit"]),
            compiler=str(document["compiler"]),
            flags=str(document["options"]),
            details={"source_sha256": str(document["sha256"]), "program_sha256": digest},
        )
    except (OSError, ValueError, KeyError):
        return EngineBuild(name="llama.cpp", version="unknown", details={"program_sha256": digest})
