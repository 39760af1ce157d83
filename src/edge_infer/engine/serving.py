"""The engine as a service: one thread steps it, asyncio callers read what it generates.

Callers never wait for a step. What they ask for goes into a list of commands, which the stepping
thread carries out before its next step; after each step it hands all new tokens to the event loops
in one call each.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from edge_infer.engine.llm import LLM, Prompt
from edge_infer.engine.outputs import TokenLogprobs
from edge_infer.engine.params import SamplingParams
from edge_infer.engine.request import Request, TokenConstraint
from edge_infer.errors import (
    ConfigError,
    EdgeInferError,
    EngineStoppedError,
    ExecutionError,
    QueueFullError,
)


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


@dataclass(frozen=True)
class EngineStats:
    """Numbers of an engine now; ``*_total`` only grow.

    ``waiting`` and ``running`` count choices. KV blocks and bytes are those that running choices
    hold, those that the prefix cache keeps filled beside them, and those of the whole pool.
    ``cached_tokens_total``: prompt tokens that were found in the pool.
    """

    waiting: int
    running: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks: int
    kv_bytes_used: int
    kv_bytes_cached: int
    kv_bytes: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generated_tokens_total: int
    preemptions_total: int
    steps_total: int
    cancelled_total: int


class Generation:
    """One request's deltas: ``async for delta in generation``. Ends when every choice has finished.

    Leaving early cancels: :meth:`cancel`, ``aclose()``, the end of ``async with``, or the
    cancellation of the task that waits. After that it yields nothing more. ``cached_tokens``:
    prompt tokens that needed no computing, known at the first delta. ``error``: why a choice ended
    with ``error``.
    """

    def __init__(
        self, engine: ServingEngine, requests: list[Request], loop: asyncio.AbstractEventLoop
    ) -> None:
        first = requests[0]
        self.request_id = first.request_id
        self.prompt = first.prompt
        self.prompt_token_ids = first.tokens[: first.prompt_length]
        self.cached_tokens = 0
        self.error: EdgeInferError | None = None
        self._engine = engine
        self._requests = requests
        self._loop = loop
        self._deltas: deque[Delta] = deque()
        self._news = asyncio.Event()
        self._left = len(requests)  # choices whose end has not been yielded
        self._cancelled = False

    def cancel(self) -> None:
        """Ends the request within a step, from any thread."""
        if not self._cancelled:
            self._cancelled = True
            self._engine._cancel(self.request_id)
            _call_soon(self._loop, self._news.set)

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


class _Live:
    """The stepping thread's side of a generation. It does not keep the caller's object alive: one
    that nobody holds any more cancels itself."""

    def __init__(self, generation: Generation) -> None:
        self.generation = weakref.ref(generation)
        self.loop = generation._loop
        self.requests = generation._requests
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


class ServingEngine:
    """Steps ``llm`` in a thread of its own. ``max_waiting``: choices that may wait beyond the
    ``max_num_seqs`` that run.

    Methods may be called from any thread unless they say otherwise. ``llm`` may still be used
    directly; its calls share the steps.
    """

    def __init__(self, llm: LLM, *, max_waiting: int = 256) -> None:
        if isinstance(max_waiting, bool) or not isinstance(max_waiting, int) or max_waiting < 0:
            raise ConfigError(f"max_waiting = {max_waiting!r}; an integer of 0 or more is needed.")
        self.llm = llm
        self._limit = llm.runner.options.max_num_seqs + max_waiting
        self._changed = threading.Condition()  # guards what follows
        self._commands: deque[Callable[[], None]] = deque()
        self._choices = 0  # accepted and not finished
        self._stop_at: float | None = None  # when closing: the end of the drain
        self._thread: threading.Thread | None = None
        # Of the stepping thread alone:
        self._live: dict[str, _Live] = {}
        self._cancelled = 0
        self._ends: deque[float] = deque(maxlen=32)  # when the last choices finished

    def start(self) -> None:
        """Starts stepping. Raises EngineStoppedError after :meth:`close`."""
        with self._changed:
            if self._stop_at is not None:
                raise _stopped()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
                self._thread.start()

    def close(self, drain_seconds: float = 0.0) -> None:
        """Takes no new requests, goes on with what there is for at most ``drain_seconds``, aborts
        the rest and stops. Blocks until then; on an event loop use :meth:`aclose`."""
        with self._changed:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + drain_seconds
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()
        else:
            self._stop_at = 0.0
            self._run()

    async def aclose(self, drain_seconds: float = 0.0) -> None:
        """:meth:`close`, without blocking the event loop."""
        await asyncio.to_thread(self.close, drain_seconds)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        n: int | None = None,
        constraint: Callable[[], TokenConstraint] | None = None,
    ) -> Generation:
        """Queues a prompt; called on the event loop that reads the result. ``n`` replaces
        ``params.n``; ``constraint`` makes what restricts the output of one choice.

        Raises ConfigError for a bad prompt or parameter, CapacityError for a prompt that can never
        fit, QueueFullError past ``max_waiting``, EngineStoppedError after :meth:`close`.
        """
        loop = asyncio.get_running_loop()
        params = params if n is None else replace(params, n=n)
        self._accept(params.n)
        try:
            requests = self.llm.new_requests(prompt, params, constraint)
        except BaseException:
            with self._changed:
                self._choices -= params.n
            raise
        generation = Generation(self, requests, loop)
        live = _Live(generation)
        self._command(lambda: self._add(live))
        return generation

    def stats(self) -> EngineStats:
        blocks, scheduler = self.llm.runner.blocks, self.llm.scheduler
        counters, plan = scheduler.counters, self.llm.runner.plan
        running = len(scheduler.running)
        return EngineStats(
            waiting=max(0, self._choices - running),
            running=running,
            kv_blocks_used=blocks.used_blocks(),
            kv_blocks_cached=blocks.cached_blocks(),
            kv_blocks=sum(plan.blocks),
            kv_bytes_used=blocks.used_bytes(),
            kv_bytes_cached=blocks.cache.idle_bytes(),
            kv_bytes=plan.bytes,
            prompt_tokens_total=counters.prompt_tokens,
            cached_tokens_total=counters.cached_tokens,
            generated_tokens_total=counters.generated_tokens,
            preemptions_total=counters.preemptions,
            steps_total=counters.steps,
            cancelled_total=self._cancelled,
        )

    def _accept(self, n: int) -> None:
        """Takes ``n`` places among what may run or wait."""
        with self._changed:
            if self._stop_at is not None:
                raise _stopped()
            if n > self._limit:
                raise ConfigError(
                    f"n = {n}; this engine takes at most {self._limit} choices in all.",
                    remedy="Lower n, or raise max_num_seqs or max_waiting.",
                )
            if self._choices + n > self._limit:
                raise QueueFullError(
                    f"{self._choices} of at most {self._limit} choices run or wait; {n} more do "
                    "not fit.",
                    retry_after=self._retry_after(),
                    remedy="Ask again later, or raise max_waiting.",
                )
            self._choices += n

    def _retry_after(self) -> int:
        """Seconds until a place may be free, from how fast the last choices finished: 1 to 60."""
        ends = list(self._ends)
        if len(ends) < 2:
            return 1
        return min(60, max(1, math.ceil((ends[-1] - ends[0]) / (len(ends) - 1))))

    def _command(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    def _cancel(self, request_id: str) -> None:
        self._command(lambda: self._drop(request_id))

    # --- the stepping thread ----------------------------------------------------------------

    def _run(self) -> None:
        scheduler = self.llm.scheduler
        while True:
            with self._changed:
                while not (self._commands or self._live or self._stop_at is not None):
                    self._changed.wait()
                commands, self._commands = self._commands, deque()
                stop_at = self._stop_at
            with self.llm.lock:
                for command in commands:
                    command()
                if stop_at is not None and time.monotonic() >= stop_at:
                    for live in self._live.values():
                        for r in live.unfinished:
                            scheduler.abort(r)
                elif self._live:
                    self._step()
            self._deliver()
            if stop_at is not None and not self._live and not self._commands:
                return

    def _step(self) -> None:
        try:
            self.llm.scheduler.step()
        except EdgeInferError as e:
            self.llm.scheduler.fail_all(e)
        except Exception as e:
            self.llm.scheduler.fail_all(ExecutionError(f"A step failed: {type(e).__name__}: {e}."))

    def _add(self, live: _Live) -> None:
        self._live[live.requests[0].request_id] = live
        for r in live.requests:
            self.llm.scheduler.add(r)

    def _drop(self, request_id: str) -> None:
        live = self._live.pop(request_id, None)
        if live is None:  # it has just finished
            return
        self._cancelled += 1
        for r in live.unfinished:
            self.llm.scheduler.abort(r)
        self._ended(len(live.unfinished))

    def _deliver(self) -> None:
        """Hands what the step made to the event loops, with one call each."""
        news: dict[asyncio.AbstractEventLoop, list[tuple[_Live, list[Delta]]]] = {}
        for request_id, live in list(self._live.items()):
            before = len(live.unfinished)
            if deltas := live.deltas():
                news.setdefault(live.loop, []).append((live, deltas))
            self._ended(before - len(live.unfinished))
            if not live.unfinished:
                del self._live[request_id]
        for loop, items in news.items():
            _call_soon(loop, partial(_deliver_all, items))

    def _ended(self, choices: int) -> None:
        if choices:
            self._ends.extend([time.monotonic()] * choices)
            with self._changed:
                self._choices -= choices


def _deliver_all(items: list[tuple[_Live, list[Delta]]]) -> None:
    for live, deltas in items:
        live.deliver(deltas)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    # A closed loop raises RuntimeError: nobody waits there any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def _stopped() -> EngineStoppedError:
    return EngineStoppedError("The engine is stopping.", remedy="Start it again.")
