"""What guessing tokens gains on text that repeats its prompt, and costs on other text: two servers,
with and without, asked in turn."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from edge_infer.errors import ConfigError
from edge_infer.harness.comparison import comparisons, rotation
from edge_infer.harness.load.options import WORDS
from edge_infer.harness.load.served import Served, TokenAnswer, serving
from edge_infer.harness.record import Failure
from edge_infer.harness.schema import Comparison, Metric

PLAIN, NGRAM = "plain", "ngram"
KINDS = ("copy", "other")
_SENTENCES = """\
The valve in the north cellar is opened at six, and closed before the ten o'clock round.
Pump three draws from the upper basin as long as the red lamp on the panel is out.
Whoever reads the meters writes the figures into the green book, with the hour beside them.
A leak is reported to the office first and to the works second, never the other way round.
Keys hang on the board behind the door; number eleven opens the gate to the old canal.
On holidays the rounds begin an hour later, and the book is read by the evening shift.
In frost the pipes along the east wall are emptied, and the fact is noted on the panel.
The barometer is tapped once before it is read, and its glass is wiped with a dry cloth.
""".splitlines()


@dataclass(frozen=True)
class SpeculationOptions:
    """``passes`` of one answer of ``generate_tokens`` for each kind of prompt and each server."""

    model: str
    passes: int = 7
    generate_tokens: int = 128
    serve: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("passes", 3), ("generate_tokens", 8)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}; {least} or more is needed.")


@dataclass
class Found:
    """Speeds in tokens a second by server and kind, a value a pass."""

    speeds: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: {arm: {kind: [] for kind in KINDS} for arm in (PLAIN, NGRAM)}
    )
    failures: list[Failure] = field(default_factory=list)

    def metrics(self, arm: str) -> list[Metric]:
        return [
            Metric.of(f"decode.{kind}", "tok/s", "higher", values)
            for kind, values in self.speeds[arm].items()
        ]


def prompt(kind: str, number: int) -> dict[str, Any]:
    """Parameters of one request. ``copy``: a text twice, which greedy decoding goes on with;
    ``other``: random words, sampled, so that the answer does not fall into repetitions."""
    chance = random.Random(number)
    if kind == "copy":
        text = "\n".join(chance.sample(_SENTENCES, len(_SENTENCES)))
        return {"prompt": f"{text}\n\n{text}\n\n{text[:40]}", "temperature": 0}
    words = " ".join(chance.choices(WORDS, k=200))
    return {"prompt": words, "temperature": 1.0, "seed": number}


async def measure(options: SpeculationOptions) -> Found:
    """Starts both servers and measures. Raises ExecutionError for a request that fails; answers
    that differ are a failure in what is returned."""
    found = Found()
    common = ["--max-model-len", "2048", "--max-num-seqs", "2", *options.serve]
    async with (
        serving(options.model, common) as plain,
        serving(options.model, [*common, "--speculative", "ngram"]) as ngram,
    ):
        servers = {PLAIN: plain, NGRAM: ngram}
        for number in range(options.passes):
            for kind in KINDS:
                texts = {}
                for arm in rotation([PLAIN, NGRAM], number):
                    speed, texts[arm] = await _ask(servers[arm], kind, number, options)
                    found.speeds[arm][kind].append(speed)
                if texts[PLAIN] != texts[NGRAM]:
                    found.failures.append(
                        Failure(
                            stage="decode",
                            code="tokens_differ",
                            message=f"Pass {number}, {kind}: speculation changed the answer.",
                        )
                    )
    return found


async def _ask(
    server: Served, kind: str, number: int, options: SpeculationOptions
) -> tuple[float, list[str]]:
    body = {**prompt(kind, number), "max_tokens": options.generate_tokens}
    answer = await server.complete(TokenAnswer(time.monotonic()), **body)
    spent = answer.arrivals[-1] - answer.arrivals[0]
    return (len(answer.tokens) - 1) / spent, answer.tokens


def compared(arms: list[Any]) -> list[Comparison]:
    """Speculation against none."""
    by_name = {arm.name: arm for arm in arms}
    return comparisons(by_name[NGRAM], by_name[PLAIN])
