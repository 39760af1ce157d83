"""``edge-infer bench``: prefill and decode speed, load time and memory of one model.

Prefill is the time of a prompt of N random tokens from an empty cache; decode is N steps of one
token after a prompt of one token, or of ``context`` tokens more. Both follow a warm-up run, each
repeat is one sample, and the two are separate runs: the meaning of llama-bench's ppN and tgN @ dN.
``decode.together`` is the total of several sequences that decode in the same steps. Then decoding
takes turns with streaming reads of memory by the same threads, the ceiling of decode, which reads
every weight for every token. Every measured thing runs in a process of its own, so that memory and
peaks belong to it alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge_infer.device import cpu_budget
from edge_infer.errors import ConfigError, EdgeInferError
from edge_infer.harness.identity import checkpoint_identity
from edge_infer.harness.processes import Child
from edge_infer.harness.provenance import edge_infer_build, now, portable, provenance
from edge_infer.harness.schema import Arm, Artifact, Failure, MemoryReport, Metric, Scalar

CHILD = "edge_infer.harness.bench_child"
TEXT = "The first thing to know about the sea is that"
Progress = Callable[[str], None]


def check_numbers(options: Any, **bounds: tuple[int, int]) -> None:
    """Raises ConfigError where an option of this name does not lie between its bounds."""
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        if not low <= value <= high:
            raise ConfigError(f"{name} = {value}; a number of {low} to {high} is needed.")


def decode_room(sequences: int, context: int, steps: int, prompt_rows: int) -> int:
    """Tokens in the cache when every sequence has decoded ``steps`` tokens after its own prompt of
    ``context`` + 1. ``prompt_rows``: the least that a step prefills beside those that decode."""
    prompts = sequences * (context + 1)
    # The first sequences decode already while the last ones prefill.
    early = prompts // prompt_rows + sequences if sequences > 1 else 0
    return prompts + sequences * (steps + early)


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. ``threads`` None: what the engine takes by default."""

    model: str
    prompt_tokens: int = 512
    generate_tokens: int = 64
    repeat: int = 5
    threads: int | None = None
    weights: str | None = None
    chunk_size: int | None = None
    kv_cache_dtype: str | None = None
    context: int = 0
    """Tokens in the cache before the decode; the prefill always starts from an empty one."""
    sequences: int = 1
    """More than one: also that many decoding together, each after ``context`` tokens."""
    starts: int = 3
    """Fresh processes for the load times; 0 leaves them out."""
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        check_numbers(
            self,
            prompt_tokens=(0, 1 << 20),
            generate_tokens=(0, 1 << 20),
            repeat=(1, 1000),
            context=(0, 1 << 20),
            sequences=(1, 1024),
            starts=(0, 100),
        )
        if not self.prompt_tokens and not self.generate_tokens:
            raise ConfigError("Neither prompt nor generated tokens were asked for.")
        if not self.generate_tokens and (self.context or self.sequences > 1):
            raise ConfigError(
                "context and sequences are settings of the decode, which was left out.",
                remedy="Ask for generate_tokens of 1 or more.",
            )
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError(f"threads = {self.threads}; a number of 1 to 1024 is needed.")
        if self.timeout <= 0:
            raise ConfigError(f"timeout = {self.timeout}; a positive number of seconds is needed.")

    def child(self, stage: str) -> dict[str, Any]:
        """The options document of a child process."""
        return {
            "stage": stage,
            "model": self.model,
            "text": TEXT,
            "prompt_tokens": self.prompt_tokens,
            "generate_tokens": self.generate_tokens,
            "repeat": self.repeat,
            "context": self.context,
            "sequences": self.sequences,
            "engine": {
                "threads": self.threads,
                "weights": self.weights,
                "chunk_size": self.chunk_size,
                "kv_cache_dtype": self.kv_cache_dtype,
                # Room for the longest run, so the KV pool is that and no more.
                "max_model_len": max(self.prompt_tokens + 1, self._decode_room(), 64),
                "max_num_seqs": self.sequences,
            },
        }

    def _decode_room(self) -> int:
        # The first token is the prompt's, and one more is never made, so that the last step ends no
        # sequence while memory is looked at.
        return decode_room(self.sequences, self.context, self.generate_tokens + 2, prompt_rows=64)


Samples = dict[str, list[float]]
"""By metric, in the order of measurement."""
START = "load.start_to_first_token"
UNITS = {"stream_read": "GB/s", "weights_read": "GB/s", "weights_read.share": "ratio", START: "s"}
"""Of the metrics that are not tok/s."""


@dataclass
class SpeedRun:
    """One process's worth of speed samples: "prefill", "decode", "decode.together" (tok/s),
    "stream_read", "weights_read" (GB/s) and "weights_read.share"."""

    samples: Samples = field(default_factory=dict)
    ready_seconds: float = 0.0
    """Process start to a model that is ready."""
    info: dict[str, Any] = field(default_factory=dict)
    memory: MemoryReport | None = None


def run_speed(options: BenchOptions, cpus: Sequence[int] = ()) -> SpeedRun:
    """Measures speed and memory in one fresh process, confined to ``cpus`` if any are given."""
    run = SpeedRun()
    tokens = {
        "prefill": options.prompt_tokens,
        "decode": options.generate_tokens,
        "decode.together": options.sequences * options.generate_tokens,
    }
    with Child(CHILD, options.child("speed"), cpus, options.timeout) as child:
        for event in child.events():
            name = event["event"]
            if name == "loaded":
                run.ready_seconds = event["time"] - child.started
                run.info = event["info"]
            elif name in tokens:
                run.samples[name] = [tokens[name] / s for s in event["seconds"]]
            elif name == "stream_read":
                weights = run.info["weights_read_bytes"]
                run.samples[name] = [event["bytes"] / s / 1e9 for s in event["seconds"]]
                run.samples["weights_read"] = [weights * s / 1e9 for s in run.samples["decode"]]
                run.samples["weights_read.share"] = weights_read_shares(event, weights)
                run.info["settings"]["stream_read_bytes"] = event["bytes"]
            if name in ("loaded", *tokens):
                child.sampler.snapshot(name)
                # What is read in a stream afterwards is not the model's memory.
                run.memory = child.sampler.report()
    return run


def run_starts(options: BenchOptions, cpus: Sequence[int] = ()) -> list[Metric]:
    """Load times over ``options.starts`` fresh processes; the first one may find a cold disk."""
    opened: list[float] = []
    open_to_token: list[float] = []
    start_to_token: list[float] = []
    for _ in range(options.starts):
        with Child(CHILD, options.child("first_token"), cpus, options.timeout) as child:
            for event in child.events():
                if event["event"] == "first_token":
                    opened.append(event["open_seconds"])
                    open_to_token.append(event["seconds"])
                    start_to_token.append(event["time"] - child.started)
    return [
        Metric.of("load.open", "s", "lower", opened),
        Metric.of("load.open_to_first_token", "s", "lower", open_to_token),
        Metric.of(START, "s", "lower", start_to_token),
    ]


def run_tokenizer(options: BenchOptions, folder: Path) -> list[Metric]:
    """Time and anonymous memory of the tokenizer alone."""
    metrics = []
    document = {**options.child("tokenizer"), "folder": str(folder)}
    with Child(CHILD, document, (), options.timeout) as child:
        before = 0
        for event in child.events():
            if event["event"] == "before":
                before = child.sampler.snapshot("before").anonymous
            elif event["event"] == "tokenizer":
                added = child.sampler.snapshot("tokenizer").anonymous - before
                metrics = [
                    Metric.of("tokenizer.load", "s", "lower", [event["seconds"]]),
                    Metric.of("tokenizer.anonymous", "bytes", "lower", [float(added)]),
                ]
    return metrics


def weights_read_shares(turns: Mapping[str, Any], weight_bytes: int) -> list[float]:
    """What part of a streaming read's speed each turn of decoding read weights with, the mean time
    of the reads before and after it taken. ``turns``: see :meth:`bench_child.Timer.turns`."""
    reads = turns["seconds"]
    around = [(before + after) / 2 for before, after in pairwise(reads)]
    return [
        (weight_bytes * turns["steps"] / decode) / (turns["bytes"] / read)
        for decode, read in zip(turns["decode_seconds"], around, strict=True)
    ]


def speed_metrics(samples: Samples) -> list[Metric]:
    """The samples as metrics; what was not measured is left out."""
    return [
        Metric.of(name, UNITS.get(name, "tok/s"), "lower" if name == START else "higher", values)
        for name, values in samples.items()
        if values
    ]


def edge_infer_arm(
    name: str,
    options: BenchOptions,
    folder: Path,
    run: SpeedRun,
    metrics: list[Metric],
    cpus: Sequence[int] = (),
    failures: Sequence[Failure] = (),
) -> Arm:
    """The arm of the artifact for a run of our own engine."""
    settings: dict[str, Scalar] = dict(run.info.get("settings", {}))
    return Arm(
        name=name,
        engine=edge_infer_build(),
        command=portable(bench_command(options)),
        threads=run.info["threads"],
        cpus=list(cpus),
        isa=run.info["isa"],
        settings=settings,
        checkpoint=checkpoint_identity(folder),
        memory=run.memory,
        metrics=metrics,
        failures=list(failures),
    )


def bench_command(options: BenchOptions) -> list[str]:
    """The command line that repeats this measurement."""
    command = ["edge-infer", "bench", options.model]
    command += ["--prompt-tokens", str(options.prompt_tokens)]
    command += ["--generate-tokens", str(options.generate_tokens)]
    command += ["--repeat", str(options.repeat)]
    return command + optional_flags(options)


def with_settings(options: Any) -> dict[str, Any]:
    """The settings of the engine that are given, as arguments of LLM."""
    names = ("threads", "weights", "chunk_size", "kv_cache_dtype")
    found = {name: getattr(options, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def setting_flags(options: Any) -> list[str]:
    """The same as words of a command line."""
    words = []
    for name, value in with_settings(options).items():
        words += ["--" + name.replace("_", "-"), str(value)]
    return words


def optional_flags(options: BenchOptions) -> list[str]:
    """The options that differ from their defaults, as words of a command line."""
    words = []
    for flag in ("context", "sequences", "threads", "weights", "chunk_size", "kv_cache_dtype"):
        value = getattr(options, flag)
        if value != getattr(BenchOptions, flag):
            words += ["--" + flag.replace("_", "-"), str(value)]
    return words


def bench(options: BenchOptions, progress: Progress = lambda text: None) -> Artifact:
    """Measures one model.

    A GGUF file or hub id is converted first, outside the measurement. Raises the engine's own
    errors, and ExecutionError where a measured process dies or takes longer than the timeout.
    """
    from edge_infer.checkpoint.resolve import resolve

    started, clock = now(), time.monotonic()
    folder = resolve(options.model)
    progress("looking at the machine")
    source = provenance()
    progress("speed")
    command = bench_command(options)
    options = replace(options, model=str(folder))
    run = run_speed(options)
    metrics = speed_metrics(run.samples)
    metrics.append(Metric.of("load.start_to_ready", "s", "lower", [run.ready_seconds]))
    failures: list[Failure] = []
    if options.starts:
        progress("load times")
        for stage, measure in (
            ("start", lambda: run_starts(options)),
            ("tokenizer", lambda: run_tokenizer(options, folder)),
        ):
            try:
                metrics += measure()
            except EdgeInferError as error:
                # The speeds stand without it; the artifact says what is missing and why.
                failures.append(Failure(stage=stage, code=error.code, message=error.message))
    return Artifact(
        kind="bench",
        command=portable(command),
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={
            "prompt_tokens": options.prompt_tokens,
            "generate_tokens": options.generate_tokens,
            "repeat": options.repeat,
            "context": options.context,
            "sequences": options.sequences,
            "starts": options.starts,
        },
        provenance=source,
        arms=[edge_infer_arm("edge-infer", options, folder, run, metrics, failures=failures)],
    )


def pinned_cpus(threads: int | None) -> tuple[int, ...]:
    """The CPUs that an arm of a comparison is confined to: one per thread, whole cores first."""
    return cpu_budget().pin_list(threads)
