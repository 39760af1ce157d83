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
    START,
    BenchOptions,
    Progress,
    Samples,
    SpeedRun,
    edge_infer_arm,
    optional_flags,
    pinned_cpus,
    run_speed,
    run_starts,
    speed_metrics,
)
from edge_infer.harness.comparison import comparisons, rotation, worst_peaks
from edge_infer.harness.identity import peer_identity
from edge_infer.harness.peers import GGUF_PEERS, PEERS, PeerRun, open_peer
from edge_infer.harness.provenance import now, portable, provenance
from edge_infer.harness.schema import Arm, Artifact, MemoryReport

OURS = "edge-infer"


@dataclass(frozen=True)
class CompareOptions:
    """``bench``: the measurement both arms make, ``repeat`` samples of each speed in each pass.
    ``starts``: fresh processes to a first token in each pass, instead of those of ``bench``; only
    llama.cpp has them."""

    bench: BenchOptions
    peer_model: Path
    passes: int = 5
    peer: str = "llamacpp"
    starts: int = 0

    def __post_init__(self) -> None:
        if not 3 <= self.passes <= 1000:
            raise ConfigError(f"passes = {self.passes}; a number of 3 to 1000 is needed.")
        if self.peer not in PEERS:
            raise ConfigError(
                f"There is no peer {self.peer!r}.", remedy=f"Use one of {', '.join(PEERS)}."
            )
        gguf = self.peer in GGUF_PEERS
        if self.starts and not gguf:
            raise ConfigError(
                f"starts = {self.starts}: only llama.cpp's starts are measured.",
                remedy="Leave --starts out for this peer.",
            )
        if gguf and not self.peer_model.is_file():
            raise CheckpointError(f"{self.peer_model} is not a file; the peer needs a GGUF.")
        if not gguf and not self.peer_model.is_dir():
            raise CheckpointError(
                f"{self.peer_model} is not a folder, which this peer needs.",
                remedy=f"See baselines/{self.peer.removesuffix('-eager')}/README.md.",
            )


@dataclass
class Passes:
    """What one arm produced: a value per metric and pass, the median of the pass's samples."""

    medians: Samples = field(default_factory=dict)
    memory: MemoryReport | None = None

    def add(self, samples: Samples, memory: MemoryReport) -> None:
        for name, values in samples.items():
            self.medians.setdefault(name, []).append(stats.median(values))
        self.memory = worst_peaks(self.memory, memory)


def compare(options: CompareOptions, progress: Progress = lambda text: None) -> Artifact:
    """Runs the comparison. A failing arm is an error: half a comparison is none."""
    from edge_infer.checkpoint.resolve import resolve

    started, clock = now(), time.monotonic()
    peer = open_peer(options.peer)
    folder = resolve(options.bench.model)
    cpus = pinned_cpus(options.bench.threads)
    if options.bench.threads is not None and len(cpus) < options.bench.threads:
        raise ConfigError(
            f"threads = {options.bench.threads}, but this process may use {len(cpus)} CPUs.",
            remedy="A comparison gives every thread a CPU of its own; use fewer threads.",
        )
    inner = replace(options.bench, model=str(folder), threads=len(cpus), starts=options.starts)
    progress("looking at the machine")
    source = provenance()

    ours, theirs = Passes(), Passes()
    run: SpeedRun | None = None
    peer_run: PeerRun | None = None

    def run_ours() -> None:
        nonlocal run
        run = run_speed(inner, cpus)
        assert run.memory is not None
        samples = run.samples
        if inner.starts:
            starts = {metric.name: metric.samples for metric in run_starts(inner, cpus)}
            samples = {**samples, START: starts[START]}
        ours.add(samples, run.memory)

    def run_peer() -> None:
        nonlocal peer_run
        peer_run = peer.run(options.peer_model, inner, cpus)
        theirs.add(peer_run.samples, peer_run.memory)

    runners: dict[str, Callable[[], None]] = {OURS: run_ours, peer.name: run_peer}
    for index in range(options.passes):
        for name in rotation(list(runners), index):
            progress(f"pass {index + 1} of {options.passes}: {name}")
            runners[name]()
    if run is None or peer_run is None:
        raise ExecutionError("No pass was run.")
    run.memory = ours.memory
    arm = edge_infer_arm(OURS, inner, folder, run, speed_metrics(ours.medians), cpus)
    baseline = Arm(
        name=peer.name,
        engine=peer.build(),
        command=portable(peer_run.command),
        threads=peer_run.threads,
        cpus=list(cpus),
        settings=peer_run.settings,
        checkpoint=peer_identity(options.peer_model),
        memory=theirs.memory,
        metrics=speed_metrics(theirs.medians),
    )
    command = ["edge-infer", "compare", options.bench.model, "--peer", options.peer]
    command += ["--peer-model", str(options.peer_model), "--passes", str(options.passes)]
    command += ["--prompt-tokens", str(inner.prompt_tokens)]
    command += ["--generate-tokens", str(inner.generate_tokens), "--repeat", str(inner.repeat)]
    command += ["--starts", str(inner.starts)] if inner.starts else []
    command += optional_flags(inner)
    return Artifact(
        kind="compare",
        command=portable(command),
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={
            "prompt_tokens": inner.prompt_tokens,
            "generate_tokens": inner.generate_tokens,
            "repeat": inner.repeat,
            "context": inner.context,
            "sequences": inner.sequences,
            "starts": inner.starts,
            "passes": options.passes,
        },
        provenance=source,
        arms=[arm, baseline],
        comparisons=comparisons(arm, baseline),
    )
