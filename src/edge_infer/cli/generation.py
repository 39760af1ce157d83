"""What ``run`` and ``demo`` share: streaming to the terminal, and the line of figures after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edge_infer.cli.common import Stopwatch, megabytes

if TYPE_CHECKING:
    from edge_infer import LLM
    from edge_infer.engine.outputs import RequestOutput


def stream_to_stdout(deltas: Iterator[str]) -> RequestOutput | None:
    """Prints text as it comes; returns the finished output, which the stream returns at its end.

    On Ctrl-C the stream is closed, which cancels the request, before the interrupt goes on.
    """
    try:
        while True:
            try:
                delta = next(deltas)
            except StopIteration as end:
                value: RequestOutput | None = end.value
                return value
            sys.stdout.write(delta)
            sys.stdout.flush()
    finally:
        close = getattr(deltas, "close", None)
        if close is not None:
            close()


def load_tokenizer(llm: LLM) -> float:
    """Loads the tokenizer, which otherwise happens within the first request; returns seconds."""
    clock = Stopwatch()
    _ = llm.tokenizer.vocab_size
    return clock.seconds


def figures(output: RequestOutput, load_seconds: float, tokenizer_seconds: float) -> dict[str, Any]:
    """Speeds, load times and memory of a finished request."""
    from edge_infer.device.usage import own_memory

    metrics, completion = output.metrics, output.outputs[0]
    prompt, generated = len(output.prompt_token_ids), len(completion.token_ids)
    memory = own_memory()

    def speed(tokens: int, seconds: float) -> float | None:
        return tokens / seconds if tokens > 0 and seconds > 0 else None

    return {
        "load_seconds": load_seconds,
        "tokenizer_seconds": tokenizer_seconds,
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "finish_reason": completion.finish_reason,
        "prefill_tokens_per_second": speed(prompt, metrics.prefill_seconds),
        # The first token belongs to the prefill.
        "decode_tokens_per_second": speed(generated - 1, metrics.decode_seconds),
        "memory_anonymous_bytes": memory.anonymous,
        "memory_file_backed_bytes": memory.file_backed,
    }


def print_figures(found: dict[str, Any]) -> None:
    """The figures on stderr, where they do not mix with the text."""

    def rate(name: str) -> str:
        value = found[name]
        return "-" if value is None else f"{value:.1f} tok/s"

    print(
        f"load {found['load_seconds']:.2f} s · tokenizer {found['tokenizer_seconds']:.2f} s"
        f" · prefill {found['prompt_tokens']} tokens, {rate('prefill_tokens_per_second')}"
        f" · decode {found['generated_tokens']} tokens, {rate('decode_tokens_per_second')}"
        f" · memory {megabytes(found['memory_anonymous_bytes'])} anonymous,"
        f" {megabytes(found['memory_file_backed_bytes'])} file-backed",
        file=sys.stderr,
    )


def print_room(llm: LLM) -> None:
    """How many tokens fit, on stderr."""
    pool = llm.runner.pool
    print(
        f"context {llm.max_model_len} tokens; the KV cache holds {llm.runner.plan.tokens} tokens"
        f" in {megabytes(pool.bytes)}, touched as they come",
        file=sys.stderr,
    )
