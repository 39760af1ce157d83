"""Reading a request's body within bounds of size, time and nesting."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NoReturn

from edge_infer.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import Receive


class ClientGone(Exception):
    """The connection closed before the body was complete."""


async def read_body(receive: Receive, limit: int, seconds: float) -> bytes:
    """The whole body.

    Raises ApiError 413 past ``limit`` bytes (after the rest was read and dropped, so that the
    client sees the answer), 408 when it takes longer than ``seconds``, ClientGone.
    """
    try:
        return await asyncio.wait_for(_read(receive, limit), seconds)
    except asyncio.TimeoutError:
        raise ApiError(
            f"The request's body did not arrive within {seconds:g} s.",
            status=408,
            code="request_timeout",
        ) from None


async def _read(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        else:
            parts.clear()
        more = message.get("more_body", False)
    if size > limit:
        raise ApiError(
            f"The request's body has {size} bytes; at most {limit} are accepted.",
            status=413,
            code="body_too_large",
            remedy="Send less, or raise --body-limit.",
        )
    return b"".join(parts)


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
        value = json.loads(text, parse_constant=_not_a_number)
    except json.JSONDecodeError as e:
        raise _bad(f"{e.msg} at line {e.lineno}, column {e.colno}") from None
    except RecursionError:
        raise _too_deep(depth) from None
    except ValueError as e:  # an integer of thousands of digits
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


def _not_a_number(name: str) -> NoReturn:
    raise _bad(f"{name} is no JSON number")


def _bad(what: str) -> ApiError:
    return ApiError(f"The body is not valid JSON: {what:.300}.", code="invalid_json")


def _too_deep(depth: int) -> ApiError:
    return ApiError(f"The body's JSON is nested deeper than {depth} levels.", code="json_too_deep")
