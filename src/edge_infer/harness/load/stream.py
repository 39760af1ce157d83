"""One streamed request: when its tokens arrived, or what went wrong."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

LINE_LIMIT = 4 << 20
"""Bytes of one line; a server that sends more is broken."""


@dataclass
class Answer:
    """Times by the monotonic clock, in seconds."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    """One for each event that carried text."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reason: bool = False
    """A finish_reason came; usage may follow it."""
    finished: bool = False
    """The stream ended after it: everything that belongs to the answer is here."""
    error: str | None = None
    retry_after: float = 0.0

    def take(self, document: Any) -> None:
        """Takes in one event. Raises ValueError for what is no event of the API."""
        if not isinstance(document, dict):
            raise ValueError("an event is no object")
        if document.get("error"):
            raise ValueError(f"error event: {_message(document)}")
        usage = document.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"))
            self.completion_tokens = _count(usage.get("completion_tokens"))
        for choice in document.get("choices") or []:
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
            if text:
                self.arrivals.append(time.monotonic())
            if choice.get("finish_reason"):
                self.reason = True


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _message(document: Any) -> str:
    """The message of an error in OpenAI's shape, or the start of whatever came."""
    error = document.get("error") if isinstance(document, dict) else document
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text).split())[:200]


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any], answer: Answer) -> None:
    """Posts ``body`` and fills in ``answer`` as the events come; errors end up in it too.

    Cancelling leaves in the answer what had arrived until then.
    """
    import httpx

    try:
        async with client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await _refused(response, answer)
                return
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                answer.error = f"the answer is {kind or 'of no type'}, not text/event-stream"
                return
            await _events(response, answer)
        answer.finished = answer.reason
        if not answer.finished:
            answer.error = "the stream ended without a finish_reason"
    except httpx.TimeoutException as error:
        answer.error = f"time-out ({type(error).__name__})"
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    except (ValueError, TypeError, AttributeError) as error:
        answer.error = f"broken stream: {error}"


async def _refused(response: httpx.Response, answer: Answer) -> None:
    text = b""
    async for piece in response.aiter_bytes():
        text += piece
        if len(text) > 1 << 16:
            break
    try:
        message = _message(json.loads(text))
    except ValueError:
        message = _message(text.decode(errors="replace"))
    answer.error = f"HTTP {response.status_code}: {message}"
    try:
        answer.retry_after = max(0.0, min(5.0, float(response.headers.get("retry-after", "0"))))
    except ValueError:
        answer.retry_after = 0.0


async def _events(response: httpx.Response, answer: Answer) -> None:
    rest = b""
    async for piece in response.aiter_bytes():
        rest += piece
        *lines, rest = rest.split(b"\n")
        if len(rest) > LINE_LIMIT:
            raise ValueError(f"a line of more than {LINE_LIMIT} bytes")
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # a comment that keeps the connection alive, an event's name
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            answer.take(json.loads(data))
