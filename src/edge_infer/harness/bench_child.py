"""The process that a benchmark measures: opens a model through the public API and times it.

Run by the harness as ``python -m edge_infer.harness.bench_child OPTIONS_JSON``; it sends events as
:class:`edge_infer.harness.processes.Child` describes. Imports nothing that the engine does not, so
that its memory is the engine's.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edge_infer.errors import EdgeInferError, ExecutionError
from edge_infer.harness.child_events import ChildEvents, error_document


def _open(options: dict[str, Any]) -> Any:
    from edge_infer import LLM

    arguments = {name: value for name, value in options["engine"].items() if value is not None}
    return LLM(options["model"], **arguments)


def info(llm: Any) -> dict[str, Any]:
    """What an open model says about itself."""
    from edge_infer.device.usage import locked_bytes
    from edge_infer.models.traffic import weights_read

    runner = llm.runner
    return {
        "isa": runner.program.isa,
        "threads": runner.team.threads,
        "settings": {
            "weights": runner.options.weights,
            "chunk_size": runner.options.chunk_size,
            "kv_cache_dtype": runner.options.kv_cache_dtype,
            "max_model_len": llm.max_model_len,
            "kv_cache_tokens": runner.plan.tokens,
            "kv_cache_bytes": runner.pool.bytes,
            "weight_bytes": runner.weight_bytes,
            "locked_bytes": locked_bytes(),
            "activation_bytes": runner.program.activation_bytes,
            "scratch_bytes": runner.program.scratch_bytes,
        },
        "weights_read_bytes": weights_read(runner.builder),
    }


TURNS, TURN_STEPS = 8, 8
"""How often, and for how many tokens, a decode takes turns with streaming reads."""


@contextmanager
def _begun(llm: Any, prompts: Sequence[list[int]]) -> Iterator[list[Any]]:
    """Requests that all have their first token, and their cache until the context is left."""
    requests = [
        r for p in prompts for r in llm.new_requests({"prompt_token_ids": p}, _params(None))
    ]
    try:
        for r in requests:
            llm.scheduler.add(r)
        while not all(r.generated for r in requests):
            llm.scheduler.step()
        yield requests
    finally:
        for r in requests:
            llm.scheduler.abort(r)


class Timer:
    """Times requests of random tokens."""

    def __init__(self, llm: Any, context: int, sequences: int) -> None:
        self._llm = llm
        self._random = random.Random(0)
        # The same at every repeat, so that a prefix cache can spare the prefill, which is not timed
        self._prompts = [self._tokens(context + 1) for _ in range(sequences)]

    def _tokens(self, count: int) -> list[int]:
        vocabulary = self._llm.runner.vocab_size
        return [self._random.randrange(vocabulary) for _ in range(count)]

    def prefill(self, tokens: int) -> float:
        """Seconds from the first step to the first token of a prompt that no cache has seen."""
        prompt = {"prompt_token_ids": self._tokens(tokens)}
        (output,) = self._llm.generate([prompt], _params(1))
        if len(output.outputs[0].token_ids) != 1:
            raise ExecutionError("A prompt ended without its token.")
        return float(output.metrics.prefill_seconds)

    @contextmanager
    def decode(self, tokens: int, sequences: int) -> Iterator[float]:
        """Seconds of ``tokens`` steps in which that many sequences decode after their prompts,
        which have their cache until the context is left."""
        with _begun(self._llm, self._prompts[:sequences]) as requests:
            before = [len(r.tokens) for r in requests]
            start = time.perf_counter()
            for _ in range(tokens):
                self._llm.scheduler.step()
            seconds = time.perf_counter() - start
            if any(len(r.tokens) - n != tokens for r, n in zip(requests, before, strict=True)):
                raise ExecutionError("Not every sequence decoded in every step.")
            yield seconds

    def turns(self, tokens: int) -> dict[str, Any]:
        """One sequence decodes ``TURNS`` times up to ``TURN_STEPS`` of ``tokens`` steps, between
        streaming reads by the same threads: ``bytes`` and ``seconds`` of the reads, and ``steps``
        and ``decode_seconds`` of the turns, each between two reads. So both are measured in the
        same moments of a memory whose speed changes."""
        from edge_infer import _native
        from edge_infer.harness.ceilings import stream_buffer_bytes

        runner = self._llm.runner
        buffer = _native.roofline.ReadBuffer(runner.team, stream_buffer_bytes())
        steps = min(TURN_STEPS, tokens)
        reads, decodes = [buffer.read(runner.program.isa)[0]], list[float]()
        while len(decodes) < TURNS:
            with _begun(self._llm, self._prompts[:1]):
                for _ in range(min(tokens // steps, TURNS - len(decodes))):
                    start = time.perf_counter()
                    for _ in range(steps):
                        self._llm.scheduler.step()
                    decodes.append(time.perf_counter() - start)
                    reads.append(buffer.read(runner.program.isa)[0])
        return {
            "bytes": buffer.bytes,
            "seconds": reads,
            "steps": steps,
            "decode_seconds": decodes,
        }


def _params(max_tokens: int | None) -> Any:
    from edge_infer import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)


def speed(options: dict[str, Any], events: ChildEvents) -> None:
    """Prefill and decode speed on random tokens, then decode and streaming reads in turns."""
    opening = time.monotonic()
    llm = _open(options)
    events.send("loaded", open_seconds=time.monotonic() - opening, info=info(llm))
    prompt, generate, repeat = (options[k] for k in ("prompt_tokens", "generate_tokens", "repeat"))
    timer = Timer(llm, options["context"], options["sequences"])
    if prompt:
        timer.prefill(prompt)  # warm-up
        events.send("prefill", seconds=[timer.prefill(prompt) for _ in range(repeat)])
    if generate:
        several = {"decode.together": options["sequences"]} if options["sequences"] > 1 else {}
        for name, sequences in {"decode": 1, **several}.items():
            with timer.decode(1, sequences):
                pass  # warm-up
            seconds: list[float] = []
            while len(seconds) < repeat:
                with timer.decode(generate, sequences) as taken:
                    seconds.append(taken)
                    if len(seconds) == repeat:
                        events.send(name, seconds=seconds)
        events.send("stream_read", **timer.turns(generate))
    events.send("end")


def stream_reads(team: Any, level: str, repeat: int) -> dict[str, Any]:
    """``bytes`` of a buffer far larger than the caches, and ``seconds`` of each read of it."""
    from edge_infer import _native
    from edge_infer.harness.ceilings import stream_buffer_bytes

    buffer = _native.roofline.ReadBuffer(team, stream_buffer_bytes())
    seconds = [buffer.read(level)[0] for _ in range(repeat)]
    return {"bytes": buffer.bytes, "seconds": seconds}


def first_token(options: dict[str, Any], events: ChildEvents) -> None:
    """From a process start to the first token of a text prompt, tokenizer included."""
    opening = time.monotonic()
    llm = _open(options)
    opened = time.monotonic()
    from edge_infer import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    llm.generate([options["text"]], params)
    seconds = time.monotonic() - opening
    events.send("first_token", open_seconds=opened - opening, seconds=seconds)
    events.send("end")


def tokenizer(options: dict[str, Any], events: ChildEvents) -> None:
    """What the tokenizer alone takes: memory between the two events, and seconds."""
    from edge_infer.engine.tokenizer import Tokenizer

    events.send("before")
    start = time.monotonic()
    loaded = Tokenizer.from_folder(options["folder"])
    loaded.encode(options["text"])
    events.send("tokenizer", seconds=time.monotonic() - start)
    events.send("end")


def init(options: dict[str, Any], events: ChildEvents) -> None:
    """Memory from the start of a process to a context that is full."""
    from edge_infer import SamplingParams

    llm = _open(options)
    events.send("opened")
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    llm.generate([options["text"]], params)
    events.send("first_token")
    time.sleep(0.2)
    events.send("settled")
    draw = random.Random(0)
    tokens = [draw.randrange(llm.vocab_size) for _ in range(options["context"])]
    with _begun(llm, [tokens]):
        events.send("filled", kv_bytes=llm.kv_use().bytes, info=info(llm))
    events.send("end")


STAGES = {"speed": speed, "first_token": first_token, "tokenizer": tokenizer, "init": init}


def main() -> None:
    options = json.loads(sys.argv[1])
    events = ChildEvents()
    try:
        STAGES[options["stage"]](options, events)
    except EdgeInferError as error:
        events.send("error", **error_document(error))


if __name__ == "__main__":
    main()
