"""What a caller holds of a request that the serving engine runs, and the engine's side of it."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from edge_infer.engine.outputs import TokenLogprobs
from edge_infer.engine.request import Request
from edge_infer.errors import EdgeInferError


@dataclass(frozen=True)
class Delta:
    """What one choice of a request produced since its last delta.

    ``index``: the choice, 0 to n - 1. ``text`` may lag behind ``token_ids``: it never ends inside a
    character or shows the beginning of a stop string. ``finish_reason``: None while the choice
    runs, then stop, length, abort (the engine stopped) or error (see ``Generation.error``).
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    finish_reason: str | None
    stop_reason: str | int | None


class Generation:
    """One request's deltas: ``async for delta in generation``. Ends when every choice has finished.

    Leaving early cancels: :meth:`cancel`, ``aclose()``, the end of ``async with``, or the
    cancellation of the task that waits. After that it yields nothing more. ``cached_tokens``
    (prompt tokens that needed no computing) and ``prompt_logprobs`` (if asked for: one for each
    prompt token but the first) are known at the first delta. ``error``: why a choice ended with
    ``error``.
    """

    def __init__(
        self,
        requests: list[Request],
        loop: asyncio.AbstractEventLoop,
        cancel: Callable[[str], None],
    ) -> None:
        first = requests[0]
        self.request_id = first.request_id
        self.prompt = first.prompt
        self.prompt_token_ids = first.tokens[: first.prompt_length]
        self.cached_tokens = 0
        self.prompt_logprobs = first.prompt_logprobs
        self.error: EdgeInferError | None = None
        self._cancel = cancel
        self._loop = loop
        self._deltas: deque[Delta] = deque()
        self._news = asyncio.Event()
        self._left = len(requests)  # choices whose end has not been yielded
        self._cancelled = False

    def cancel(self) -> None:
        """Ends the request within a step, from any thread."""
        if not self._cancelled:
            self._cancelled = True
            self._cancel(self.request_id)
            call_soon(self._loop, self._news.set)

    async def aclose(self) -> None:
        if self._left:
            self.cancel()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        while not self._cancelled and self._left and not self._deltas:
            self._news.clear()
            try:
                await self._news.wait()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._cancelled or not self._left:
            raise StopAsyncIteration
        delta = self._deltas.popleft()
        self._left -= delta.finish_reason is not None
        return delta

    def __del__(self) -> None:
        if self._left and not self._cancelled:
            self.cancel()

    def _deliver(self, deltas: list[Delta]) -> None:
        if not self._cancelled:
            self._deltas.extend(deltas)
            self._news.set()


class LiveGeneration:
    """The stepping thread's side of a generation. It does not keep the caller's object alive: one
    that nobody holds any more cancels itself."""

    def __init__(self, generation: Generation, requests: list[Request]) -> None:
        self.generation = weakref.ref(generation)
        self.loop = generation._loop
        self.requests = requests
        self.unfinished = list(self.requests)

    def deltas(self) -> list[Delta]:
        """What is new since the last call."""
        out = []
        for r in self.unfinished:
            tokens, logprobs = r.take_tokens()
            text = r.take_text()
            if tokens or text or r.finished:
                out.append(Delta(r.choice, text, tokens, logprobs, r.finish_reason, r.stop_reason))
        self.unfinished = [r for r in self.unfinished if not r.finished]
        return out

    def deliver(self, deltas: list[Delta]) -> None:
        """Runs on the event loop."""
        generation = self.generation()
        if generation is not None:
            generation.cached_tokens = self.requests[0].cached_tokens
            generation.error = next((r.error for r in self.requests if r.error is not None), None)
            generation._deliver(deltas)


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    # A closed loop raises RuntimeError: nobody waits there any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)
