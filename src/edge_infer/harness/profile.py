"""``edge-infer profile``: where the time of a decode step and of a prefill chunk goes.

Every part is measured by itself, on the same clock: operations, their input rows and the waiting
between them inside the native call; the call, sampling and the whole step around it in Python. The
parts add up to the step, because what one clock sees outside another is a part of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_infer.errors import ExecutionError
from edge_infer.harness.bench import (
    Progress,
    check_numbers,
    decode_room,
    setting_flags,
    with_settings,
)
from edge_infer.harness.bench_child import info
from edge_infer.harness.identity import checkpoint_identity
from edge_infer.harness.provenance import edge_infer_build, now, portable, provenance
from edge_infer.harness.schema import Arm, Artifact
from edge_infer.harness.schema_profile import ProfilePart, StepProfile
from edge_infer.models.traffic import StepShape, Traffic, traffic

INPUT = "input rows of linears (norms, gates, quantization)"
WAIT = "waiting for other threads"
PREPARE = "preparing the step"
ARRAYS = "arrays of the step (Python)"
SAMPLING = "sampling"
SCHEDULER = "scheduler and the rest (Python)"


@dataclass(frozen=True)
class ProfileOptions:
    """``context``: tokens in the cache before the profiled steps; for the prefill rounded up to
    whole chunks. ``prompt_tokens``: of the profiled prefill. ``steps``: of the decode.
    ``sequences``: that decode in the same steps."""

    model: str
    context: int = 0
    prompt_tokens: int = 512
    steps: int = 32
    sequences: int = 1
    threads: int | None = None
    weights: str | None = None
    chunk_size: int | None = None
    kv_cache_dtype: str | None = None

    def __post_init__(self) -> None:
        check_numbers(
            self,
            context=(0, 1 << 20),
            prompt_tokens=(1, 1 << 20),
            steps=(1, 1 << 20),
            sequences=(1, 1024),
        )


class _Timed:
    """Stands in for an object and times one of its methods."""

    def __init__(self, inner: Any, method: str) -> None:
        self.inner = inner
        self.seconds = 0.0
        function: Callable[..., Any] = getattr(inner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(self, method, timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class _Recording:
    """Steps of these requests alone, timed from the scheduler down to the operations."""

    llm: Any
    context: int = 0
    walls: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    traffic: list[list[Traffic]] = field(default_factory=list)
    run_seconds: float = 0.0
    call_seconds: float = 0.0
    sampling_seconds: float = 0.0
    op_times: list[tuple[float, float, float]] = field(default_factory=list)
    step_times: tuple[float, float] = (0.0, 0.0)

    def record(self, requests: Sequence[Any], more: Callable[[], bool]) -> None:
        """Runs and times steps while ``more()``."""
        runner, scheduler = self.llm.runner, self.llm.scheduler
        program, dtype = runner.program, runner.options.kv_cache_dtype
        runner.program = call = _Timed(program, "step_sequences")
        scheduler.runner = run = _Timed(runner, "run")
        samplers = [_Timed(r.sampler, "sample") for r in requests]
        for r, sampler in zip(requests, samplers, strict=True):
            r.sampler = sampler
        self.context = round(sum(r.computed for r in requests) / len(requests))
        program.set_profiling(True)
        try:
            while more():
                before = [(r.computed, len(r.tokens)) for r in requests]
                start = time.perf_counter()
                scheduler.step()
                self.walls.append(time.perf_counter() - start)
                shapes = [
                    StepShape(computed, r.computed - computed, len(r.tokens) - tokens, dtype)
                    for r, (computed, tokens) in zip(requests, before, strict=True)
                ]
                if not all(s.rows for s in shapes):
                    raise ExecutionError("The request ended before the steps to profile.")
                self.rows.append(sum(s.rows for s in shapes))
                self.traffic.append(traffic(runner.builder, *shapes))
            self.op_times, self.step_times = program.op_times, program.step_times
        finally:
            program.set_profiling(False)
            runner.program, scheduler.runner = program, runner
            for r, sampler in zip(requests, samplers, strict=True):
                r.sampler = sampler.inner
        self.run_seconds, self.call_seconds = run.seconds, call.seconds
        self.sampling_seconds = sum(sampler.seconds for sampler in samplers)

    @property
    def native_seconds(self) -> float:
        """What the native side accounts for."""
        return sum(map(sum, self.op_times)) + sum(self.step_times)

    def parts(self) -> list[ProfilePart]:
        """Largest first."""
        steps = len(self.walls)
        sums: dict[str, dict[str, float]] = {}

        def add(name: str, seconds: float, calls: float = 1.0, work: Traffic | None = None) -> None:
            part = sums.setdefault(name, dict.fromkeys((*_SUMMED, "seconds", "calls"), 0.0))
            part["seconds"] += seconds
            part["calls"] += calls
            for key in _SUMMED if work is not None else ():
                part[key] += getattr(work, key)

        for i, (work, rows_before, wait) in enumerate(self.op_times):
            for step in self.traffic:
                add(step[i].label, work / steps, 1.0, step[i])
            if rows_before:
                add(INPUT, rows_before, steps)
            add(WAIT, wait, steps)
        prepare, join = self.step_times
        add(WAIT, join, steps)
        add(PREPARE, prepare, steps)
        add(ARRAYS, self.run_seconds - self.native_seconds, steps)
        add(SAMPLING, self.sampling_seconds, steps)
        add(SCHEDULER, sum(self.walls) - self.run_seconds - self.sampling_seconds, steps)
        parts = [
            ProfilePart(
                name=name,
                seconds=part["seconds"] / steps,
                calls=part["calls"] / steps,
                **{key: round(part[key] / steps) for key in _SUMMED},
            )
            for name, part in sums.items()
        ]
        return sorted(parts, key=lambda p: -p.seconds)


_SUMMED = ("weight_bytes", "kv_bytes", "activation_bytes", "operations")


def profile_steps(llm: Any, options: ProfileOptions) -> tuple[_Recording, _Recording]:
    """Recordings of a prefill and of a decode on random tokens."""
    draw = random.Random(0)

    def request(length: int) -> Any:
        from edge_infer import SamplingParams

        tokens = [draw.randrange(llm.vocab_size) for _ in range(length)]
        params = SamplingParams(temperature=0.0, ignore_eos=True, detokenize=False, max_tokens=None)
        (made,) = llm.new_requests({"prompt_token_ids": tokens}, params)
        llm.scheduler.add(made)
        return made

    def until(made: Sequence[Any], done: Callable[[], bool]) -> None:
        while not done():
            llm.scheduler.step()
            if any(r.finished for r in made):
                raise ExecutionError("The request ended before the steps to profile.")

    chunk = llm.runner.builder.max_rows
    start = prefill_start(llm, options.context)
    llm.scheduler.abort(_warm(llm, request(chunk)))
    prefill, decode = _Recording(llm), _Recording(llm)
    made = request(start + options.prompt_tokens)
    until([made], lambda: made.computed >= start)
    prefill.record([made], lambda: not made.generated)
    llm.scheduler.abort(made)
    several = [request(options.context + 1) for _ in range(options.sequences)]
    # The first step of its kind is a warm-up.
    until(several, lambda: all(len(r.generated) >= 2 for r in several))
    decode.record(several, lambda: len(decode.walls) < options.steps)
    for r in several:
        llm.scheduler.abort(r)
    return prefill, decode


def room(options: ProfileOptions, chunk: int) -> int:
    """Tokens that the cache must hold: the prefill, or the sequences to the end of their decode."""
    prompt_rows = max(chunk - options.sequences, 1)
    decode = decode_room(options.sequences, options.context, options.steps + 4, prompt_rows)
    return max(options.context + chunk + options.prompt_tokens + 4, decode)


def prefill_start(llm: Any, context: int) -> int:
    """The tokens before a profiled prefill: ``context`` in whole chunks."""
    chunk = int(llm.runner.builder.max_rows)
    return -(-context // chunk) * chunk


def _warm(llm: Any, made: Any) -> Any:
    """Runs one chunk, so that weights are resident and buffers touched."""
    while not made.generated:
        llm.scheduler.step()
    return made


def step_profile(phase: Any, recording: _Recording) -> StepProfile:
    """The recording as it goes into the artifact."""
    return StepProfile(
        phase=phase,
        context=recording.context,
        rows=sum(recording.rows) / len(recording.rows),
        steps=recording.walls,
        parts=recording.parts(),
    )


def profile(options: ProfileOptions, progress: Progress = lambda text: None) -> Artifact:
    """Profiles one model in this process. Raises the engine's own errors."""
    from edge_infer import LLM
    from edge_infer.checkpoint.resolve import resolve

    started, clock = now(), time.monotonic()
    folder = resolve(options.model)
    progress("looking at the machine")
    source = provenance()
    chunk = options.chunk_size or 256
    llm = LLM(
        folder,
        max_model_len=room(options, chunk),
        max_num_seqs=options.sequences,
        **with_settings(options),
    )
    progress("prefill and decode")
    prefill, decode = profile_steps(llm, options)
    command = ["edge-infer", "profile", options.model, "--context", str(options.context)]
    command += ["--prompt-tokens", str(options.prompt_tokens), "--steps", str(options.steps)]
    if options.sequences > 1:
        command += ["--sequences", str(options.sequences)]
    command += setting_flags(options)
    described = info(llm)
    return Artifact(
        kind="profile",
        command=portable(command),
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={
            "context": options.context,
            "prompt_tokens": options.prompt_tokens,
            "steps": options.steps,
            "sequences": options.sequences,
        },
        provenance=source,
        arms=[
            Arm(
                name="edge-infer",
                engine=edge_infer_build(),
                command=portable(command),
                threads=described["threads"],
                isa=described["isa"],
                settings=described["settings"],
                checkpoint=checkpoint_identity(folder),
                profiles=[
                    step_profile("decode", decode),
                    step_profile("prefill", prefill),
                ],
            )
        ],
    )
