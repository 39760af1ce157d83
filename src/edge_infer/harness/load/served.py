"""A server of ours for a measurement: started, asked token by token, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from edge_infer.errors import ExecutionError
from edge_infer.harness.load.options import WORDS
from edge_infer.harness.load.stream import Answer, ask

if TYPE_CHECKING:
    import httpx

START_SECONDS = 600.0
STOP_SECONDS = 20.0


@dataclass
class TokenAnswer(Answer):
    """An answer asked for with log-probabilities: every token comes with an event then, also one
    without text. ``tokens``: their texts."""

    tokens: list[str] = field(default_factory=list)

    def take(self, document: Any) -> None:
        before = len(self.arrivals)
        super().take(document)
        del self.arrivals[before:]
        for choice in document.get("choices") or []:
            found = (choice.get("logprobs") or {}).get("tokens") or []
            self.tokens += found
            if found:
                self.arrivals.append(time.monotonic())


@dataclass(frozen=True)
class Served:
    """A running server: ``client`` sends to its API, ``words`` are ids of common words."""

    client: httpx.AsyncClient
    words: list[int]

    async def complete(self, answer: TokenAnswer, **body: Any) -> TokenAnswer:
        """Streams a text completion of full length. Cancelling keeps what had come."""
        request = {
            "logprobs": 0,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **body,
        }
        await ask(self.client, "completions", request, answer)
        if answer.error is not None:
            raise ExecutionError(f"A request failed: {answer.error}")
        return answer


@dataclass
class Process:
    """``edge-infer serve`` as a child. ``started``: when it was, by the monotonic clock."""

    child: subprocess.Popen[bytes]
    url: str
    started: float
    log: IO[bytes]

    def check(self) -> None:
        """Raises ExecutionError when it has ended."""
        if self.child.poll() is not None:
            self.log.seek(0)
            text = self.log.read().decode(errors="replace")
            raise ExecutionError(f"The server ended: {' '.join(text.split())[-600:]}")


@contextlib.contextmanager
def process(model: str, options: Sequence[str]) -> Any:
    """Starts ``edge-infer serve`` on a free port, and stops it at the end."""
    port = _free_port()
    command = [sys.executable, "-m", "edge_infer.cli", "serve", model, "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        started = time.monotonic()
        child = subprocess.Popen(
            [*command, "--log-level", "warning", *options], stdout=log, stderr=log
        )
        try:
            yield Process(child, f"http://127.0.0.1:{port}", started, log)
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@asynccontextmanager
async def connected(server: Process, timeout: float = 600.0) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose requests go to the server's API, once its ``/health`` answers."""
    import httpx

    async with httpx.AsyncClient(
        base_url=server.url + "/v1/",
        timeout=timeout,
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    ) as client:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(server.url + "/health")).status_code == 200:
                    break
            server.check()
            if time.monotonic() - server.started > START_SECONDS:
                raise ExecutionError(f"The server did not start within {START_SECONDS:g} s.")
            await asyncio.sleep(0.005)
        yield client


@asynccontextmanager
async def serving(model: str, options: Sequence[str] = ()) -> AsyncIterator[Served]:
    """A server that is ready and warm."""
    with process(model, options) as server:
        async with connected(server) as client:
            answer = await client.post(server.url + "/tokenize", json={"prompt": " ".join(WORDS)})
            answer.raise_for_status()
            served = Served(client, answer.json()["tokens"])
            await served.complete(
                TokenAnswer(time.monotonic()), prompt=served.words[:64], max_tokens=8
            )
            yield served


def _free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
