"""llama.cpp, measured by its own llama-bench (baselines/llamacpp builds it)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_infer.errors import ConfigError, ExecutionError, UnsupportedError
from edge_infer.harness.processes import run_program
from edge_infer.harness.provenance import sha256
from edge_infer.harness.schema import EngineBuild, MemoryReport, Scalar

VARIABLE = "EDGE_INFER_LLAMA_BENCH"
BUILT = Path("baselines/llamacpp/build/bin/llama-bench")


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


@dataclass(frozen=True)
class LlamaBenchRun:
    """One process of llama-bench: tok/s samples, its command and what it says about itself."""

    prefill: list[float]
    decode: list[float]
    command: list[str]
    threads: int
    settings: dict[str, Scalar]
    memory: MemoryReport


def parse_results(text: str) -> tuple[list[float], list[float], dict[str, Any]]:
    """(prefill, decode) tok/s samples out of llama-bench's ``-o json``, and one result's fields.

    Raises ExecutionError where it is not what llama-bench writes.
    """
    try:
        results = json.loads(text)
        prefill = [s for r in results if r["n_prompt"] and not r["n_gen"] for s in r["samples_ts"]]
        decode = [s for r in results if r["n_gen"] and not r["n_prompt"] for s in r["samples_ts"]]
        return [float(s) for s in prefill], [float(s) for s in decode], dict(results[0])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ExecutionError(f"llama-bench wrote no results that can be read: {error!r}.") from None


def run_llama_bench(
    program: Path,
    model: Path,
    *,
    prompt_tokens: int,
    generate_tokens: int,
    repeat: int,
    threads: int,
    cpus: Sequence[int],
    timeout: float,
) -> LlamaBenchRun:
    """Runs llama-bench once. Raises ExecutionError where it fails or takes too long."""
    command = [str(program), "-m", str(model), "-t", str(threads), "-r", str(repeat)]
    command += ["-p", str(prompt_tokens), "-n", str(generate_tokens), "-o", "json"]
    out, memory = run_program(command, cpus, timeout)
    prefill, decode, fields = parse_results(out)
    kept = ("type_k", "type_v", "n_batch", "n_ubatch", "flash_attn", "repack", "model_type")
    return LlamaBenchRun(
        prefill=prefill,
        decode=decode,
        command=command,
        threads=int(fields["n_threads"]),
        settings={name: fields[name] for name in kept if name in fields},
        memory=memory,
    )


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
