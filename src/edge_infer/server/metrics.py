"""Prometheus metrics: times measured here, everything else read from the engine when asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from edge_infer.device.usage import own_memory

if TYPE_CHECKING:
    from edge_infer.engine.serving import ServingEngine

_TTFT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
_GAP = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_E2E = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)

#: Fields of the engine's statistics: name, kind and meaning of the metric.
_STATS = {
    "waiting": ("requests_waiting", "gauge", "Sequences that wait for a slot."),
    "running": ("requests_running", "gauge", "Sequences that run."),
    "kv_blocks_used": ("kv_blocks_used", "gauge", "Blocks of the KV pool in use."),
    "kv_blocks_cached": ("kv_blocks_cached", "gauge", "Blocks that only the prefix cache holds."),
    "kv_blocks": ("kv_blocks_total", "gauge", "Blocks of the KV pool."),
    "kv_bytes_used": ("kv_used_bytes", "gauge", "Bytes of the KV pool in use."),
    "kv_bytes_cached": ("kv_cached_bytes", "gauge", "Bytes that only the prefix cache holds."),
    "kv_bytes": ("kv_total_bytes", "gauge", "Bytes of the KV pool."),
    "prompt_tokens_total": ("prompt_tokens", "counter", "Prompt tokens computed."),
    "cached_tokens_total": (
        "cached_prompt_tokens",
        "counter",
        "Prompt tokens found in the prefix cache.",
    ),
    "generated_tokens_total": ("generated_tokens", "counter", "Tokens generated."),
    "preemptions_total": ("preemptions", "counter", "Sequences preempted."),
    "guessed_tokens_total": ("guessed_tokens", "counter", "Tokens guessed by speculation."),
    "accepted_tokens_total": ("accepted_tokens", "counter", "Guesses that proved right."),
    "steps_total": ("steps", "counter", "Steps of the engine."),
    "cancelled_total": ("cancelled", "counter", "Sequences cancelled."),
}
_PREFIX = "edge_infer_"


class Metrics:
    """Metrics of one server, in a registry of their own."""

    def __init__(self, engine: ServingEngine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        self.http = Counter(
            f"{_PREFIX}http_responses",
            "HTTP answers by status.",
            ["status"],
            registry=self.registry,
        )
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "Request to first token.", _TTFT
        )
        self._gap = self._histogram(
            "inter_token_seconds", "Between tokens of a choice; those of one step count once.", _GAP
        )
        self._whole = self._histogram("generation_seconds", "Request to last token.", _E2E)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(_PREFIX + name, text, buckets=buckets, registry=self.registry)

    def clock(self) -> Clock:
        """Times one generation, from now."""
        return Clock(self._ttft, self._gap, self._whole)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


class Clock:
    """Times of one generation."""

    def __init__(self, ttft: Histogram, gap: Histogram, whole: Histogram) -> None:
        self._ttft = ttft
        self._gap = gap
        self._whole = whole
        self._start = time.perf_counter()
        self._last: dict[int, float] = {}

    def tick(self, choice: int, finished: bool) -> None:
        """A token of a choice has come."""
        now = time.perf_counter()
        if choice in self._last:
            self._gap.observe(now - self._last[choice])
        else:
            self._ttft.observe(now - self._start)
        self._last[choice] = now
        if finished:
            self._whole.observe(now - self._start)


class _EngineCollector:
    """The engine's statistics and the memory of this process, at the moment of the scrape."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for field, (name, kind, text) in _STATS.items():
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            yield family(_PREFIX + name, text, value=getattr(stats, field))
        loaded = float(not stats.suspended)
        yield GaugeMetricFamily(f"{_PREFIX}model_loaded", "0 while unloaded.", value=loaded)
        memory = GaugeMetricFamily(
            f"{_PREFIX}memory_bytes", "Resident memory of this process.", labels=["kind"]
        )
        use = own_memory()
        memory.add_metric(["anonymous"], use.anonymous)
        memory.add_metric(["file"], use.file_backed)
        yield memory
