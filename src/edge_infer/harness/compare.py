"""``edge-infer compare``: our engine and a peer in one interleaved run.

Every pass runs each arm in a process of its own, on the same CPUs with as many threads; who goes
first rotates, so that a machine that warms up or slows down favours nobody. One pass gives one
ratio; :mod:`edge_infer.harness.comparison` says which differences count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge_infer.errors import CheckpointError, ConfigError, ExecutionError
from edge_infer.harness import stats
from edge_infer.harness.bench import (
    BenchOptions,
    Progress,
    SpeedRun,
    edge_infer_arm,
    pinned_cpus,
    run_speed,
    speed_metrics,
)
from edge_infer.harness.comparison import comparisons, rotation, worst_peaks
from edge_infer.harness.identity import checkpoint_identity
from edge_infer.harness.peers.llamacpp import (
    LlamaBenchRun,
    find_program,
    llama_build,
    run_llama_bench,
)
from edge_infer.harness.provenance import now, portable, provenance
from edge_infer.harness.schema import Arm, Artifact, MemoryReport

OURS, PEER = "edge-infer", "llama.cpp"


@dataclass(frozen=True)
class CompareOptions:
    """``bench``: the measurement both arms make, ``repeat`` samples in each pass."""

    bench: BenchOptions
    peer_model: Path
    passes: int = 5

    def __post_init__(self) -> None:
        if not 3 <= self.passes <= 1000:
            raise ConfigError(f"passes = {self.passes}; a number of 3 to 1000 is needed.")
        if not self.peer_model.is_file():
            raise CheckpointError(f"{self.peer_model} is not a file; the peer needs a GGUF.")


@dataclass
class Samples:
    """What one arm produced over the passes; each pass adds one value per metric: its median."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    def add(self, prefill: list[float], decode: list[float]) -> None:
        if prefill:
            self.prefill.append(stats.median(prefill))
        if decode:
            self.decode.append(stats.median(decode))


def compare(options: CompareOptions, progress: Progress = lambda text: None) -> Artifact:
    """Runs the comparison. A failing arm is an error: half a comparison is none."""
    from edge_infer.checkpoint.resolve import resolve

    started, clock = now(), time.monotonic()
    program = find_program()
    folder = resolve(options.bench.model)
    cpus = pinned_cpus(options.bench.threads)
    if options.bench.threads is not None and len(cpus) < options.bench.threads:
        raise ConfigError(
            f"threads = {options.bench.threads}, but this process may use {len(cpus)} CPUs.",
            remedy="A comparison gives every thread a CPU of its own; use fewer threads.",
        )
    inner = replace(options.bench, model=str(folder), threads=len(cpus))
    progress("looking at the machine")
    source = provenance()

    ours, peer = Samples(), Samples()
    run: SpeedRun | None = None
    bench_run: LlamaBenchRun | None = None
    memory: dict[str, MemoryReport] = {}

    def run_ours() -> None:
        nonlocal run
        run = run_speed(inner, cpus)
        assert run.memory is not None
        memory[OURS] = worst_peaks(memory.get(OURS), run.memory)
        ours.add(run.prefill, run.decode)

    def run_peer() -> None:
        nonlocal bench_run
        bench_run = run_llama_bench(
            program,
            options.peer_model,
            prompt_tokens=inner.prompt_tokens,
            generate_tokens=inner.generate_tokens,
            repeat=inner.repeat,
            threads=len(cpus),
            cpus=cpus,
            timeout=inner.timeout,
        )
        memory[PEER] = worst_peaks(memory.get(PEER), bench_run.memory)
        peer.add(bench_run.prefill, bench_run.decode)

    runners: dict[str, Callable[[], None]] = {OURS: run_ours, PEER: run_peer}
    for index in range(options.passes):
        for name in rotation([OURS, PEER], index):
            progress(f"pass {index + 1} of {options.passes}: {name}")
            runners[name]()
    if run is None or bench_run is None:
        raise ExecutionError("No pass was run.")
    run.memory = memory[OURS]
    arm = edge_infer_arm(OURS, inner, folder, run, speed_metrics(ours.prefill, ours.decode), cpus)
    baseline = Arm(
        name=PEER,
        engine=llama_build(program),
        command=portable(bench_run.command),
        threads=bench_run.threads,
        cpus=list(cpus),
        settings=bench_run.settings,
        checkpoint=checkpoint_identity(options.peer_model),
        memory=memory[PEER],
        metrics=speed_metrics(peer.prefill, peer.decode),
    )
    command = ["edge-infer", "compare", options.bench.model, "--peer", "llamacpp"]
    command += ["--peer-model", str(options.peer_model), "--passes", str(options.passes)]
    command += ["--prompt-tokens", str(inner.prompt_tokens)]
    command += ["--generate-tokens", str(inner.generate_tokens), "--repeat", str(inner.repeat)]
    command += ["--threads", str(len(cpus))]
    return Artifact(
        kind="compare",
        command=portable(command),
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={
            "prompt_tokens": inner.prompt_tokens,
            "generate_tokens": inner.generate_tokens,
            "repeat": inner.repeat,
            "passes": options.passes,
        },
        provenance=source,
        arms=[arm, baseline],
        comparisons=comparisons(arm, baseline),
    )
