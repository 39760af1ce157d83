"""An agent behind an OpenAI-compatible URL."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Any

from edge_infer.errors import ConfigError, UnsupportedError
from edge_infer.harness.agent_suite.episode import Reply, RequestFailure, ToolCall
from edge_infer.harness.agent_suite.failures import End

REPLY_LIMIT = 4 << 20
"""Bytes of one reply."""
CALLS_LIMIT = 16
"""Tool calls of one reply; more are not looked at."""


class HttpAgent:
    """Posts to ``URL/chat/completions`` with tools, without streaming.

    ``timeout``: seconds that one request may take altogether. Raises ConfigError for a URL that
    is not http(s), UnsupportedError where httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 512,
        timeout: float = 300.0,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise UnsupportedError(
                "The agent suite needs httpx.", remedy='Install it: pip install "edge-infer[bench]"'
            ) from None
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{url!r} is not an http(s) URL.",
                remedy="Give the base of the API, for example http://127.0.0.1:8000/v1.",
            )
        for name, value, low, high in (
            ("temperature", temperature, 0, 2),
            ("max_tokens", max_tokens, 1, 1 << 20),
            ("timeout", timeout, 0.001, 86400),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{name} = {value}; a number of {low} to {high} is needed.")
        self._httpx = httpx
        self._url = url.rstrip("/") + "/chat/completions"
        self._body = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        self._timeout = timeout
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        # A proxy of the environment must not stand between the suite and a local server.
        self._client = httpx.Client(timeout=timeout, headers=headers, trust_env=False)

    def __enter__(self) -> HttpAgent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def reply(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], seed: int
    ) -> Reply:
        """One request. Raises RequestFailure where it brings no chat reply."""
        body = {**self._body, "messages": messages, "tools": tools, "seed": seed}
        # Escaped, because what an agent wrote may hold characters that UTF-8 has no place for.
        status, text = self._post(json.dumps(body).encode("ascii"))
        if status != 200:
            said = text[:300].decode("utf-8", "replace")
            end: End = "refused" if 400 <= status < 500 else "server error"
            raise RequestFailure(end, f"HTTP {status}: {said}")
        try:
            return parse_reply(json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise RequestFailure("not a reply", f"no chat completion: {error!r}"[:300]) from None

    def _post(self, body: bytes) -> tuple[int, bytes]:
        deadline = time.monotonic() + self._timeout
        httpx = self._httpx
        headers = {"Content-Type": "application/json"}
        try:
            with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                text = bytearray()
                for piece in response.iter_bytes():
                    text += piece
                    if len(text) > REPLY_LIMIT:
                        raise RequestFailure("not a reply", f"more than {REPLY_LIMIT} bytes")
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("the whole reply")
                return response.status_code, bytes(text)
        except httpx.TimeoutException:
            raise RequestFailure("timeout", f"no answer within {self._timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RequestFailure("server error", f"{type(error).__name__}: {error}") from None


def parse_reply(document: Any) -> Reply:
    """A chat completion as a reply. Raises ValueError, KeyError, TypeError or IndexError."""
    choice = document["choices"][0]
    message = choice["message"]
    calls = []
    for index, call in enumerate((message.get("tool_calls") or [])[:CALLS_LIMIT]):
        function = call["function"]
        arguments = function.get("arguments")
        if not isinstance(arguments, str):  # some servers send the object itself
            arguments = json.dumps(arguments if arguments is not None else {})
        identity = call.get("id") or f"call_{index}"
        calls.append(ToolCall(str(identity), str(function["name"]), arguments))
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise TypeError("content is not a string")
    tokens = (document.get("usage") or {}).get("completion_tokens")
    return Reply(
        text=content or "",
        calls=calls,
        cut=choice.get("finish_reason") == "length",
        tokens=tokens if isinstance(tokens, int) else 0,
    )
