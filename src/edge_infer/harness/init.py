"""``edge-infer init``: memory of a start, from an empty process to a context that is full.

The anonymous memory of fresh processes is sampled every 5 ms up to the first token of a text
prompt, tokenizer included; then it is read exactly, once things have settled and once a prompt of
the asked length has filled the KV pool.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from edge_infer.errors import ConfigError
from edge_infer.harness.bench import CHILD, TEXT, Progress, setting_flags, with_settings
from edge_infer.harness.identity import checkpoint_identity
from edge_infer.harness.processes import Child
from edge_infer.harness.provenance import edge_infer_build, now, portable, provenance
from edge_infer.harness.schema import Arm, Artifact, MemoryReport, Metric

INTERVAL = 0.005


@dataclass(frozen=True)
class InitOptions:
    """``context``: tokens that fill the KV pool at the end; ``starts``: fresh processes."""

    model: str
    context: int = 2048
    starts: int = 3
    threads: int | None = None
    weights: str | None = None
    chunk_size: int | None = None
    kv_cache_dtype: str | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for name, high in (("context", 1 << 20), ("starts", 100)):
            if not 1 <= getattr(self, name) <= high:
                raise ConfigError(
                    f"{name} = {getattr(self, name)}; a number of 1 to {high} is needed."
                )
        if self.timeout <= 0:
            raise ConfigError(f"timeout = {self.timeout}; a positive number of seconds is needed.")


def one_start(options: InitOptions, folder: str) -> tuple[dict[str, float], Any, MemoryReport]:
    """Metrics by name, what the engine says about itself, and the memory of one process."""
    document = {
        "stage": "init",
        "model": folder,
        "text": TEXT,
        "context": options.context,
        "engine": {
            "max_model_len": max(options.context + 2, 64),
            "max_num_seqs": 1,
            **with_settings(options),
        },
    }
    found: dict[str, float] = {}
    described: Any = None
    with Child(CHILD, document, (), options.timeout, INTERVAL) as child:
        for event in child.events():
            name = event["event"]
            if name == "end":
                continue
            memory = child.sampler.snapshot(name)
            if name == "first_token":
                found["init.seconds"] = event["time"] - child.started
                found["init.peak_anonymous"] = child.sampler.peak_anonymous
            elif name in ("settled", "filled"):
                found[f"init.{name}_anonymous"] = memory.anonymous
                found[f"init.{name}_file_backed"] = memory.file_backed
            if name == "filled":
                described = event["info"]
                found["init.kv_used"] = event["kv_bytes"]
        report = child.sampler.report()
    return found, described, report


def init(options: InitOptions, progress: Progress = lambda text: None) -> Artifact:
    """Measures ``options.starts`` fresh processes one after the other.

    Raises the engine's own errors, and ExecutionError where a process dies or takes too long.
    """
    from edge_infer.checkpoint.resolve import resolve

    started, clock = now(), time.monotonic()
    folder = resolve(options.model)
    progress("looking at the machine")
    source = provenance()
    samples: dict[str, list[float]] = {}
    described: Any = None
    report: MemoryReport | None = None
    for index in range(options.starts):
        progress(f"start {index + 1} of {options.starts}")
        found, described, report = one_start(options, str(folder))
        for name, value in found.items():
            samples.setdefault(name, []).append(float(value))
    command = ["edge-infer", "init", options.model, "--context", str(options.context)]
    command += ["--starts", str(options.starts)]
    command += setting_flags(options)
    arm = Arm(
        name="edge-infer",
        engine=edge_infer_build(),
        command=portable(command),
        threads=described["threads"],
        isa=described["isa"],
        settings=described["settings"],
        checkpoint=checkpoint_identity(folder),
        memory=report,
        metrics=[
            Metric.of(name, "s" if name == "init.seconds" else "bytes", "lower", values)
            for name, values in samples.items()
        ],
    )
    return Artifact(
        kind="init",
        command=portable(command),
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={"context": options.context, "starts": options.starts},
        provenance=source,
        arms=[arm],
    )
