"""How long a server takes from the start of its process until it answers."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from edge_infer.errors import ConfigError
from edge_infer.harness.load.served import Served, TokenAnswer, connected, process
from edge_infer.harness.schema import Metric


@dataclass(frozen=True)
class StartOptions:
    """``repeat`` starts, one after the other; all are kept, the first with a cold cache too."""

    model: str
    repeat: int = 5
    serve: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise ConfigError(f"repeat = {self.repeat}; 1 or more is needed.")


async def measure(options: StartOptions) -> list[Metric]:
    """Seconds to the first 200 of ``/health``, the CPU time that the server had taken then, and
    seconds to the first token of a text prompt that is sent then; all from the start of the
    process. Raises ExecutionError."""
    health, cpu, token = [], [], []
    for _ in range(options.repeat):
        with process(options.model, options.serve) as server:
            async with connected(server) as client:
                health.append(time.monotonic() - server.started)
                times = psutil.Process(server.child.pid).cpu_times()
                cpu.append(times.user + times.system)
                answer = await Served(client, []).complete(
                    TokenAnswer(time.monotonic()), prompt="The sea is", max_tokens=1
                )
                token.append(answer.arrivals[0] - server.started)
    return [
        Metric.of("start.health", "s", "lower", health),
        Metric.of("start.health_cpu", "s", "lower", cpu),
        Metric.of("start.first_token", "s", "lower", token),
    ]
