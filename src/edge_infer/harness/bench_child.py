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
from typing import Any

from edge_infer.errors import EdgeInferError, ExecutionError
from edge_infer.harness.child_events import ChildEvents, error_document


def _open(options: dict[str, Any]) -> Any:
    from edge_infer import LLM

    arguments = {name: value for name, value in options["engine"].items() if value is not None}
    return LLM(options["model"], **arguments)


def _info(llm: Any) -> dict[str, Any]:
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
            "activation_bytes": runner.program.activation_bytes,
            "scratch_bytes": runner.program.scratch_bytes,
        },
    }


class Timer:
    """Times one request of random tokens, which no cache can have seen before."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._random = random.Random(0)

    def _metrics(self, prompt_tokens: int, max_tokens: int) -> Any:
        from edge_infer import SamplingParams

        vocabulary = self._llm.runner.vocab_size
        prompt = [self._random.randrange(vocabulary) for _ in range(prompt_tokens)]
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        (output,) = self._llm.generate([{"prompt_token_ids": prompt}], params)
        produced = len(output.outputs[0].token_ids)
        if produced != max_tokens:
            raise ExecutionError(f"{produced} tokens came where {max_tokens} were asked for.")
        return output.metrics

    def prefill(self, tokens: int) -> float:
        """Seconds from the first step to the first token of a prompt of ``tokens`` tokens."""
        return float(self._metrics(tokens, 1).prefill_seconds)

    def decode(self, tokens: int) -> float:
        """Seconds of ``tokens`` single-token steps after a prompt of one token."""
        # The first token comes from the prompt's own step and is not counted.
        return float(self._metrics(1, tokens + 1).decode_seconds)


def speed(options: dict[str, Any], events: ChildEvents) -> None:
    """Prefill and decode speed on random tokens; what llama-bench calls pp and tg."""
    opening = time.monotonic()
    llm = _open(options)
    events.send("loaded", open_seconds=time.monotonic() - opening, info=_info(llm))
    prompt, generate, repeat = (options[k] for k in ("prompt_tokens", "generate_tokens", "repeat"))
    timer = Timer(llm)
    if prompt:
        timer.prefill(prompt)  # warm-up
        events.send("prefill", seconds=[timer.prefill(prompt) for _ in range(repeat)])
    if generate:
        timer.decode(1)  # warm-up
        events.send("decode", seconds=[timer.decode(generate) for _ in range(repeat)])
    events.send("end")


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


STAGES = {"speed": speed, "first_token": first_token, "tokenizer": tokenizer}


def main() -> None:
    options = json.loads(sys.argv[1])
    events = ChildEvents()
    try:
        STAGES[options["stage"]](options, events)
    except EdgeInferError as error:
        events.send("error", **error_document(error))


if __name__ == "__main__":
    main()
