"""What answers at the socket from the first moment on, while the endpoints are built."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from edge_infer.server.context import ServerContext
from edge_infer.server.lifecycle import running

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from edge_infer.engine.serving import ServingEngine
    from edge_infer.server.config import ServerConfig


class Front:
    """The ASGI application of a server; its lifespan starts and closes ``engine``.

    Importing FastAPI and building the endpoints takes more time than everything else at a start, so
    a thread does it when the engine runs: ``/health`` is answered meanwhile, and other requests
    wait. Raises EdgeInferError for what is wrong with the chat template.
    """

    def __init__(self, engine: ServingEngine, config: ServerConfig) -> None:
        self.context = ServerContext(engine, config)
        self._building: asyncio.Task[ASGIApp] | None = None

    @property
    def failure(self) -> BaseException | None:
        """What kept the endpoints from being built."""
        building = self._building
        if building is None or not building.done() or building.cancelled():
            return None
        return building.exception()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        building = self._building
        assert building is not None, "requests come after the start of the lifespan"
        if not building.done() and scope.get("path") == "/health":
            await self._health(send)
            return
        self.context.in_flight += 1  # a drain waits for those who wait here
        try:
            app = await asyncio.shield(building)
        finally:
            self.context.in_flight -= 1
        await app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with running(self.context):
            self._building = asyncio.create_task(asyncio.to_thread(self._build))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await asyncio.gather(self._building, return_exceptions=True)
        await send({"type": "lifespan.shutdown.complete"})

    def _build(self) -> ASGIApp:
        from edge_infer.server.app import create_app

        return create_app(self.context)

    async def _health(self, send: Send) -> None:
        status, document = health(self.context)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(document).encode()})


def health(context: ServerContext) -> tuple[int, dict[str, Any]]:
    """Status and document of ``/health``."""
    draining = context.draining
    return 503 if draining else 200, {"status": "draining" if draining else "ok"}
