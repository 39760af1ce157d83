"""Levels of load: N clients that ask without pause, their latencies, the server's memory."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_infer.errors import ExecutionError
from edge_infer.harness import stats
from edge_infer.harness.files import missing_package
from edge_infer.harness.load.options import LoadOptions, Prompts
from edge_infer.harness.load.stream import Answer, ask
from edge_infer.harness.memory import PeakSampler
from edge_infer.harness.provenance import now, portable, provenance
from edge_infer.harness.record import Failure
from edge_infer.harness.schema import Arm, Artifact, EngineBuild, Metric
from edge_infer.harness.schema_load import Distribution, LoadRun, MemoryPoint

if TYPE_CHECKING:
    import httpx

Progress = Callable[[str], None]
MEMORY_INTERVAL = 0.5


@dataclass(frozen=True)
class Server:
    """What the server says of itself, and how many words make a prompt of the wanted length."""

    model: str
    name: str
    version: str
    words: int


class MemoryWatch(PeakSampler):
    """Peaks, and the course of memory over time."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid, interval=0.05, keep_tree=True)
        self.points: list[MemoryPoint] = []
        self._begun = time.monotonic()

    def _note(self, anonymous: int, rss: int, file_backed: int) -> None:
        super()._note(anonymous, rss, file_backed)
        seconds = time.monotonic() - self._begun
        if not self.points or seconds - self.points[-1].seconds >= MEMORY_INTERVAL:
            self.points.append(
                MemoryPoint(seconds=round(seconds, 3), anonymous=anonymous, file_backed=file_backed)
            )


def load(options: LoadOptions, progress: Progress = lambda text: None) -> Artifact:
    """Runs every level of load in turn.

    Raises ExecutionError where the server cannot be reached or refuses the first request;
    requests that fail later are counted in the artifact.
    """
    if importlib.util.find_spec("httpx") is None:
        raise missing_package("httpx")
    started, clock = now(), time.monotonic()
    source = provenance()
    arms = asyncio.run(_levels(options, progress))
    return Artifact(
        kind="load",
        command=portable(options.command),
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={
            "seconds": options.seconds,
            "prompt_tokens": options.prompt_tokens,
            "generate_tokens": options.generate_tokens,
            "chat": options.chat,
            "ignore_eos": options.ignore_eos,
        },
        provenance=source,
        arms=arms,
    )


async def _levels(options: LoadOptions, progress: Progress) -> list[Arm]:
    import httpx

    headers = {} if options.api_key is None else {"Authorization": f"Bearer {options.api_key}"}
    # A proxy of the environment must not stand between the clients and a local server.
    async with httpx.AsyncClient(
        base_url=options.base + "/",
        headers=headers,
        timeout=httpx.Timeout(options.timeout),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
    ) as client:
        progress("asking the server for its model, trying prompt lengths")
        server = await _introduce(client, options)
        arms = []
        for count in options.clients:
            progress(f"{count} clients for {options.seconds:g} s")
            arms.append(await _level(client, options, server, count))
        return arms


async def _introduce(client: httpx.AsyncClient, options: LoadOptions) -> Server:
    """Model, name and version of the server, after two requests that also warm it up."""
    listed = await _get(client, options.base + "/models")
    entries = listed.get("data") if isinstance(listed, dict) else None
    first = entries[0] if isinstance(entries, list) and entries else {}
    first = first if isinstance(first, dict) else {}
    model = options.model or first.get("id")
    if not isinstance(model, str):
        raise ExecutionError(
            f"{options.base} lists no models.", remedy="Name the model with --model."
        )
    version = await _get(client, options.base.removesuffix("/v1") + "/version")
    return Server(
        model=model,
        name=str(first.get("owned_by") or "unknown"),
        version=str(version.get("version", "unknown")) if isinstance(version, dict) else "unknown",
        words=await _words_of(client, options, model),
    )


async def _get(client: httpx.AsyncClient, url: str) -> Any:
    """A JSON document, or None where the server has none there."""
    import httpx

    try:
        response = await client.get(url)
        return response.json() if response.status_code == 200 else None
    except httpx.HTTPError as error:
        raise ExecutionError(
            f"No server answers at {url}: {type(error).__name__}.",
            remedy="Start it, or correct --url.",
        ) from None
    except ValueError:
        return None


async def _words_of(client: httpx.AsyncClient, options: LoadOptions, model: str) -> int:
    """How many words make a prompt of ``prompt_tokens``, from two prompts that the server counts.

    A template and special tokens are a constant, words a slope. Without counts: one each.
    """
    counted = []
    for words in (16, 80):
        prompts = Prompts(options, model, words, seed=-words)
        answer = Answer(time.monotonic())
        await ask(client, prompts.path, prompts.body(1), answer)
        # One token may bring no text (half a character), but it does bring an end.
        if answer.error is not None:
            raise ExecutionError(f"The first request failed: {answer.error}")
        counted.append(answer.prompt_tokens)
    if counted[0] is None or counted[1] is None or counted[1] <= counted[0]:
        return options.prompt_tokens
    slope = (counted[1] - counted[0]) / 64
    constant = counted[0] - 16 * slope
    return max(1, round((options.prompt_tokens - constant) / slope))


async def _level(
    client: httpx.AsyncClient, options: LoadOptions, server: Server, clients: int
) -> Arm:
    answers: list[Answer] = []
    begun = time.monotonic()

    async def one(index: int) -> None:
        prompts = Prompts(options, server.model, server.words, seed=1000 * clients + index)
        while True:
            answer = Answer(time.monotonic())
            answers.append(answer)
            await ask(client, prompts.path, prompts.body(options.generate_tokens), answer)
            if answer.error is not None:
                # A server that refuses at once must not be asked a thousand times a second.
                await asyncio.sleep(max(0.1, answer.retry_after))

    watch = None if options.pid is None else MemoryWatch(options.pid)
    cpu = time.process_time()
    with watch or contextlib.nullcontext():
        tasks = [asyncio.create_task(one(i)) for i in range(clients)]
        done, _ = await asyncio.wait(tasks, timeout=options.seconds)
        end = time.monotonic()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()  # a client never ends by itself: this raises what ended it
    cpu = (time.process_time() - cpu) / (end - begun)
    found = summarize(answers, clients, begun, end, cpu, watch.points if watch else [])
    return Arm(
        name=f"{clients} clients",
        engine=EngineBuild(name=server.name, version=server.version),
        command=portable(options.command),
        settings={"model": Path(server.model).name},
        memory=watch.report() if watch else None,
        load=found,
        metrics=_metrics(found, answers, end),
        failures=[
            Failure(stage="request", code="request_failed", message=f"{n} times: {text}")
            for text, n in found.errors.items()
        ],
    )


def distribution(samples: Sequence[float], unit: str = "s") -> Distribution | None:
    """Percentiles, or None where there is nothing."""
    if not samples:
        return None
    p50, p95, p99 = (stats.quantile(samples, q) for q in (0.5, 0.95, 0.99))
    return Distribution(
        unit=unit, count=len(samples), min=min(samples), p50=p50, p95=p95, p99=p99, max=max(samples)
    )


def tokens_per_event(answers: Sequence[Answer]) -> float:
    """Tokens by the server's count over events with text, of the answers that have both."""
    whole = [a for a in answers if a.completion_tokens and a.arrivals]
    events = sum(len(a.arrivals) for a in whole)
    return sum(a.completion_tokens or 0 for a in whole) / events if events else 1.0


def summarize(
    answers: Sequence[Answer],
    clients: int,
    begun: float,
    end: float,
    client_cpu: float,
    memory: list[MemoryPoint],
) -> LoadRun:
    """What the clients saw in the window from ``begun`` to ``end`` (monotonic, seconds)."""
    errors = Counter(a.error for a in answers if a.error is not None)
    per_event = tokens_per_event(answers)
    # Tokens without text (special ones, half a character) are in the server's count alone.
    tokens = sum(
        a.completion_tokens
        if a.finished and a.completion_tokens is not None
        else per_event * sum(t <= end for t in a.arrivals)
        for a in answers
    )
    gaps = [
        later - earlier
        for a in answers
        for earlier, later in zip(a.arrivals, a.arrivals[1:], strict=False)
        if later <= end
    ]
    prompts = [a.prompt_tokens for a in answers if a.prompt_tokens is not None]
    return LoadRun(
        clients=clients,
        seconds=end - begun,
        requests=len(answers),
        finished=sum(a.finished and a.error is None for a in answers),
        failed=sum(errors.values()),
        errors={str(text): n for text, n in errors.most_common(20)},
        prompt_tokens=(min(prompts), max(prompts)) if prompts else None,
        generated_tokens=round(tokens),
        tokens_per_event=per_event,
        time_to_first_token=distribution(_first_tokens(answers, end)),
        inter_token=distribution(gaps),
        client_cpu=client_cpu,
        memory=memory,
    )


def _first_tokens(answers: Sequence[Answer], end: float) -> list[float]:
    return [a.arrivals[0] - a.sent for a in answers if a.arrivals and a.arrivals[0] <= end]


def _metrics(found: LoadRun, answers: Sequence[Answer], end: float) -> list[Metric]:
    """The figures that reports and gates read."""
    rate = found.generated_tokens / found.seconds
    metrics = [Metric.of("throughput", "tok/s", "higher", [rate])]
    first = _first_tokens(answers, end)
    if first:
        metrics.append(Metric.of("time_to_first_token", "s", "lower", first))
    if found.inter_token is not None:
        metrics += [
            Metric.of(f"inter_token.{p}", "s", "lower", [getattr(found.inter_token, p)])
            for p in ("p50", "p95", "p99")
        ]
    return metrics
