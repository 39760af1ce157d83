"""What is measured on a peer that is driven from Python; each peer's bench.py gives the engine.

Prefill is the time of a prompt of N random tokens from an empty cache to its first token; decode
is N steps of one token after a prompt of one token, or of CONTEXT tokens; "decode.together" is the
same for several sequences at once. The same meaning as in `edge-infer bench`. A warm-up precedes
each. One line of stdout is the JSON document.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass
class Timing:
    """Seconds of one generation: to the first token, and from the first token to the last."""

    prefill: float
    decode: float


class Engine(Protocol):
    """A loaded model. ``settings``: what it says about itself, scalars only."""

    vocabulary: int
    settings: dict[str, Any]

    def run(self, prompts: list[list[int]], tokens: int) -> Timing:
        """Greedy generation of exactly ``tokens`` tokens for prompts of one length, together."""


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every peer has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="the folder that convert.py made")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--generate-tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, required=True)
    return parser


def length(options: argparse.Namespace) -> int:
    """Positions that the longest of the runs needs."""
    return max(options.prompt_tokens, max(options.context, 1) + options.generate_tokens) + 1


def samples_of(options: argparse.Namespace, engine: Engine) -> dict[str, list[float]]:
    """Measures as the options say: tok/s of each repeat, by metric."""
    rng = random.Random(0)

    def prompts(count: int, tokens: int) -> list[list[int]]:
        # Random, so that no cache of prefixes can have seen them.
        return [[rng.randrange(engine.vocabulary) for _ in range(tokens)] for _ in range(count)]

    def repeated(run: Callable[[], float]) -> list[float]:
        run()
        return [run() for _ in range(options.repeat)]

    def decode(sequences: int) -> float:
        steps = options.generate_tokens
        timing = engine.run(prompts(sequences, max(options.context, 1)), steps + 1)
        return sequences * steps / timing.decode

    def prefill() -> float:
        tokens = options.prompt_tokens
        return tokens / engine.run(prompts(1, tokens), 1).prefill

    samples: dict[str, list[float]] = {}
    if options.prompt_tokens:
        samples["prefill"] = repeated(prefill)
    if options.generate_tokens:
        samples["decode"] = repeated(lambda: decode(1))
        if options.sequences > 1:
            samples["decode.together"] = repeated(lambda: decode(options.sequences))
    return samples


def measure(options: argparse.Namespace, engine: Engine, versions: dict[str, str]) -> None:
    """Measures as the options say and prints the document."""
    samples = samples_of(options, engine)
    document = {"samples": samples, "settings": engine.settings, "versions": versions}
    print(json.dumps(document), flush=True)
