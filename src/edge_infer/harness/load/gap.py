"""What a long prompt, or a call that embeds thousands of texts, does to those who are being
answered: the gaps between their tokens meanwhile, against the step of a full chunk."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import pairwise

from edge_infer.errors import ConfigError, ExecutionError
from edge_infer.harness import stats
from edge_infer.harness.load.served import Served, TokenAnswer, serving
from edge_infer.harness.schema import Metric

STEADY_TOKENS = 16  # of each stream before the prompt comes
STREAM_TOKENS = 4096  # more than a stream gets before it is cancelled
BAR = 3.0
"""The worst gap may be so many times the median step of a full chunk."""


@dataclass(frozen=True)
class GapOptions:
    """``streams`` clients are answered while a prompt of ``prompt_tokens`` comes, ``repeat``
    times. With ``embeddings`` a call of ``/v1/embeddings`` comes instead, of so many inputs that
    have as many tokens together."""

    model: str
    streams: int = 3
    prompt_tokens: int = 4096
    repeat: int = 5
    serve: tuple[str, ...] = ()
    """Further options of ``edge-infer serve``."""
    embeddings: int = 0

    def __post_init__(self) -> None:
        for name, least in (("streams", 1), ("prompt_tokens", 64), ("repeat", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}; {least} or more is needed.")
        if not 0 <= self.embeddings <= min(2048, self.prompt_tokens):
            raise ConfigError(
                f"embeddings = {self.embeddings}; at most 2048, and one a prompt token."
            )


@dataclass(frozen=True)
class Window:
    """One prompt among streams, in seconds. ``gaps``: those that touch its prefill; ``steps``:
    those that lie in it, which are steps of a full chunk; ``steady``: those before it."""

    prefill: float
    gaps: list[float]
    steps: list[float]
    steady: list[float]


def window(sent: float, first: float, streams: list[list[float]]) -> Window:
    """From when the prompt was sent and its first token came, and the arrivals of each stream.

    Raises ExecutionError where too little lies between the two for a median.
    """
    pairs = [pair for arrivals in streams for pair in pairwise(arrivals)]
    inside = [b - a for a, b in pairs if a >= sent and b <= first]
    if len(inside) < 3:
        raise ExecutionError(
            f"{len(inside)} gaps lie within the prefill; 3 are needed.",
            remedy="Use a longer prompt.",
        )
    return Window(
        prefill=first - sent,
        gaps=[b - a for a, b in pairs if b > sent and a < first],
        steps=inside,
        steady=[b - a for a, b in pairs if b <= sent],
    )


async def measure(options: GapOptions) -> list[Metric]:
    """Starts a server and measures. Raises ExecutionError for a request that fails."""
    context = options.prompt_tokens + STREAM_TOKENS
    serve = ["--max-model-len", str(context), "--max-num-seqs", str(options.streams + 1)]
    windows, alone = [], []
    async with serving(options.model, [*serve, *options.serve]) as served:
        for i in range(options.repeat):
            ids = random.Random(i)
            alone.append((await _long(served, options, ids)).arrivals[0])
            windows.append(await _window(served, options, ids))
    steps = [stats.median(w.steps) for w in windows]
    worst = [max(w.gaps) for w in windows]
    return [
        Metric.of("gap.worst", "s", "lower", worst),
        Metric.of("step.full_chunk", "s", "lower", steps),
        Metric.of(
            "gap.ratio", "ratio", "lower", [w / s for w, s in zip(worst, steps, strict=True)]
        ),
        Metric.of("gap.before", "s", "lower", [stats.median(w.steady) for w in windows]),
        Metric.of("prefill.beside_streams", "s", "lower", [w.prefill for w in windows]),
        Metric.of("prefill.alone", "s", "lower", alone),
    ]


async def _long(served: Served, options: GapOptions, ids: random.Random) -> TokenAnswer:
    """A prompt of random words and its first token, or the vectors of as many words; arrivals count
    from when it was sent."""
    prompt = ids.choices(served.words, k=options.prompt_tokens)
    sent = time.monotonic()
    if options.embeddings:
        each = options.prompt_tokens // options.embeddings
        inputs = [prompt[i * each : (i + 1) * each] for i in range(options.embeddings)]
        response = await served.client.post("embeddings", json={"input": inputs})
        response.raise_for_status()
        return TokenAnswer(sent, arrivals=[time.monotonic() - sent])
    answer = await served.complete(TokenAnswer(sent), prompt=prompt, max_tokens=1)
    answer.arrivals = [t - sent for t in answer.arrivals]
    return answer


async def _window(served: Served, options: GapOptions, ids: random.Random) -> Window:
    streams = [TokenAnswer(time.monotonic()) for _ in range(options.streams)]
    tasks = [
        asyncio.create_task(
            served.complete(s, prompt=ids.choices(served.words, k=32), max_tokens=STREAM_TOKENS)
        )
        for s in streams
    ]

    async def until(count: list[int]) -> None:
        while any(len(s.arrivals) < n for s, n in zip(streams, count, strict=True)):
            for task in tasks:
                if task.done():
                    task.result()  # raises what ended it
                    raise ExecutionError("A stream ended before the long prompt was computed.")
            await asyncio.sleep(0.002)

    try:
        await until([STEADY_TOKENS] * len(streams))
        long = await _long(served, options, ids)
        first = long.sent + long.arrivals[0]
        await until([len(s.arrivals) + 2 for s in streams])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return window(long.sent, first, [s.arrivals for s in streams])
