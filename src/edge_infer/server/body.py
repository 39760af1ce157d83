"""Reading a request's body within bounds of size, time and nesting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from edge_infer.server.errors import ApiError
from edge_infer.server.json_text import loads

if TYPE_CHECKING:
    from starlette.types import Receive


#: Bodies of the largest size that may be held at once.
BODIES_AT_ONCE = 8
#: Bytes of a refused body that are read and dropped.
READ_AT_MOST = 256 << 20


class ClientGone(Exception):
    """The connection closed before the body was complete."""


class Bodies:
    """Reads the bodies of a server's requests: each of at most ``limit`` bytes, within ``seconds``,
    and all that are held at a time of at most eight times the limit."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._room = BODIES_AT_ONCE * limit

    @asynccontextmanager
    async def read(self, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, held until the block ends.

        Raises ApiError 413 past the limit (after the rest was read and dropped, so that the client
        sees the answer, but not for ever), 408 past the time, 503 when others hold too much, and
        ClientGone.
        """
        parts: list[bytes] = []
        try:
            try:
                await asyncio.wait_for(self._receive(receive, parts), self._seconds)
            except asyncio.TimeoutError:
                raise ApiError(
                    f"The request's body did not arrive within {self._seconds:g} s.",
                    status=408,
                    code="request_timeout",
                ) from None
            yield b"".join(parts)
        finally:
            self._room += sum(map(len, parts))

    async def _receive(self, receive: Receive, parts: list[bytes]) -> None:
        size = 0
        refused: ApiError | None = None
        more = True
        while more and size <= max(READ_AT_MOST, 2 * self._limit):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > self._limit:
                refused = self._too_large(size, more)
            elif len(part) > self._room:
                refused = refused or _too_many()
            if refused is None:
                self._room -= len(part)
                parts.append(part)
            else:
                self._room += sum(map(len, parts))
                parts.clear()
        if refused is not None:
            raise refused

    def _too_large(self, size: int, more: bool) -> ApiError:
        return ApiError(
            f"The request's body has {size} bytes{' or more' if more else ''};"
            f" at most {self._limit} are accepted.",
            status=413,
            code="body_too_large",
            remedy="Send less, or raise --body-limit.",
        )


def _too_many() -> ApiError:
    return ApiError(
        "The bodies of other requests take all the memory that bodies may have.",
        status=503,
        code="busy",
        remedy="Ask again later.",
        retry_after=1,
    )


def parse_json(body: bytes, depth: int) -> Any:
    """The JSON value of ``body``.

    Raises ApiError 400 for what is no JSON (NaN and infinities are none), nested deeper than
    ``depth``, or has text that is no valid Unicode.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as e:
        raise _bad(f"byte {e.object[e.start]:#04x} at {e.start} is not UTF-8") from None
    try:
        value = loads(text)
    except json.JSONDecodeError as e:
        raise _bad(f"{e.msg} at line {e.lineno}, column {e.colno}") from None
    except RecursionError:
        raise _too_deep(depth) from None
    except ValueError as e:  # NaN, or an integer of thousands of digits
        raise _bad(str(e)) from None
    _check(value, depth, surrogates="\\u" in text)
    return value


def _check(value: Any, depth: int, surrogates: bool) -> None:
    """Walks a parsed value level by level."""
    level = [value]
    for _ in range(depth + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
                if surrogates:
                    inner.extend(item)
            elif isinstance(item, list):
                inner.extend(item)
            elif surrogates and isinstance(item, str):
                _check_text(item)
        if not inner:
            return
        level = inner
    raise _too_deep(depth)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise _bad(f"a text has a lone surrogate, U+{ord(text[e.start]):04X}") from None


def _bad(what: str) -> ApiError:
    return ApiError(f"The body is not valid JSON: {what:.300}.", code="invalid_json")


def _too_deep(depth: int) -> ApiError:
    return ApiError(f"The body's JSON is nested deeper than {depth} levels.", code="json_too_deep")
