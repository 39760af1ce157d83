"""A server on a tiny random model, on a real socket, in a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from edge_infer import LLM
from edge_infer.engine.serving import ServingEngine
from edge_infer.server import process
from edge_infer.server.config import ServerConfig
from edge_infer.server.front import Front


class RunningServer:
    """``url``; ``http``: a client whose requests go there; ``context``: the server's own."""

    def __init__(self, url: str, context: Any) -> None:
        self.url = url
        self.context = context
        self.http = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, **body: Any) -> httpx.Response:
        body.setdefault("messages", [{"role": "user", "content": "Hello"}])
        body.setdefault("max_tokens", 12)
        return self.post("/v1/chat/completions", **body)


@contextmanager
def running(
    model: Path, config: ServerConfig | None = None, *, max_waiting: int = 256, **options: Any
) -> Iterator[RunningServer]:
    """Serves ``model``; ``options`` are the LLM's."""
    llm = LLM(model, **{"threads": 1, **options})
    engine = ServingEngine(llm, max_waiting=max_waiting)
    front = Front(engine, config or ServerConfig(model_names=("tiny",)))
    sock = process.bind("127.0.0.1", 0)
    server = process.Server(front)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server ended while it started"
            threading.Event().wait(0.01)
        running = RunningServer(process.address_of(sock), front.context)
        with running.http:
            yield running
    finally:
        server.should_exit = True
        thread.join(30)
