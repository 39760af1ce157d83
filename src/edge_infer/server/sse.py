"""Server-sent events, and answers that stop working when their client has gone."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from edge_infer.errors import EdgeInferError
from edge_infer.server.errors import ApiError, error_document

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from edge_infer.server.config import ServerConfig

T = TypeVar("T")
log = logging.getLogger(__name__)


def data(text: str) -> bytes:
    """One event of type ``message``; ``text`` is JSON, which has no bare line break."""
    return b"data: " + text.encode() + b"\n\n"


class EventStream(Response):
    """Sends the headers at once, then each event as it comes.

    Every ``ping_seconds`` without one, a comment keeps the connection alive. When the client goes,
    or leaves what it was sent unread for ``write_seconds``, ``events`` is closed.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], config: ServerConfig) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._silent_since: float | None = None  # None before the headers and after the last event
        self._ping_seconds = config.ping_seconds
        self._write_seconds = config.write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._pump_task = pump = asyncio.ensure_future(self._pump(send))
        gone = asyncio.ensure_future(_disconnect(receive))
        pings = asyncio.ensure_future(self._ping(send))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done() and not pump.cancelled():
                pump.result()
        finally:
            await _end(pump, gone, pings)
            await self._events.aclose()

    async def _pump(self, send: Send) -> None:
        # No task an event: with many clients they would cost more than the events themselves.
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        self._silent_since = time.monotonic()
        async for body in self._events:
            await self._write(send, body)
            self._silent_since = time.monotonic()
        self._silent_since = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        wait = self._ping_seconds
        while True:
            await asyncio.sleep(wait)
            wait = self._ping_seconds
            if self._silent_since is None:
                continue
            silent = time.monotonic() - self._silent_since
            if silent < self._ping_seconds:
                wait = self._ping_seconds - silent
            else:
                await self._write(send, b": ping\n\n")

    async def _write(self, send: Send, body: bytes) -> None:
        # A timer and not wait_for, which would make a task of every write.
        timer = asyncio.get_running_loop().call_later(self._write_seconds, self._give_up)
        try:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        log.warning("A client read nothing for %g s; its stream ends.", self._write_seconds)
        self._pump_task.cancel()


async def guarded(
    events: AsyncGenerator[bytes, None], request: Request
) -> AsyncGenerator[bytes, None]:
    """``events``; an error in their midst becomes the last event, in the shape of its API."""
    async with aclosing(events):
        try:
            async for event in events:
                yield event
        except Exception as error:
            if not isinstance(error, EdgeInferError):
                log.exception("A stream of %s failed.", request.url.path)
            yield data(json.dumps(error_document(error, request.url.path)))


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError("The client has gone.", status=499, code="client_gone")
    finally:
        await _end(task, gone)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels what still runs and waits for its end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def merged(
    sources: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """The items of several generators as they come, each with its source's index. Ends when all
    have ended; closing it closes them."""
    pending = {asyncio.ensure_future(anext(s)): i for i, s in enumerate(sources)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = pending.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                yield index, item
                pending[asyncio.ensure_future(anext(sources[index]))] = index
    finally:
        await _end(*pending)
        for source in sources:
            await source.aclose()
