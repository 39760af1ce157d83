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
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edge_infer.engine.embedding import EmbeddingJob
from edge_infer.engine.generation import Delta, Generation, LiveGeneration, call_soon
from edge_infer.engine.llm import LLM, Prompt
from edge_infer.engine.pace import MIN_ROWS, Pace
from edge_infer.engine.params import SamplingParams
from edge_infer.engine.request import Call, Request, TokenConstraint
from edge_infer.errors import (
    ConfigError,
    EdgeInferError,
    EngineStoppedError,
    ExecutionError,
    QueueFullError,
)


@dataclass(frozen=True)
class EngineStats:
    """Numbers of an engine now; ``*_total`` only grow.

    ``waiting`` and ``running`` count choices. KV blocks and bytes are those that running choices
    hold, those that the prefix cache keeps filled beside them, and those of the whole pool.
    ``cached_tokens_total``: prompt tokens that were found in the pool. Guessed and
    accepted tokens are those of speculation. ``idle_seconds``: since the last work, 0 while there
    is some.
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
    guessed_tokens_total: int
    accepted_tokens_total: int
    steps_total: int
    cancelled_total: int
    suspended: bool
    idle_seconds: float


class ServingEngine:
    """Steps ``llm`` in a thread of its own. ``max_waiting``: choices (and calls of :meth:`embed`)
    that may wait beyond the ``max_num_seqs`` that run. ``stream_gap``: seconds that a step may
    take, about, while somebody generates; prompts and embeddings get rows accordingly. None: whole
    chunks.

    Methods may be called from any thread unless they say otherwise. ``llm`` may still be used
    directly; its calls share the steps.
    """

    def __init__(self, llm: LLM, *, max_waiting: int = 256, stream_gap: float | None = 0.2) -> None:
        if isinstance(max_waiting, bool) or not isinstance(max_waiting, int) or max_waiting < 0:
            raise ConfigError(f"max_waiting = {max_waiting!r}; an integer of 0 or more is needed.")
        self.llm = llm
        self._pace = Pace(stream_gap)
        self._limit = llm.max_num_seqs + max_waiting
        self._changed = threading.Condition()  # guards what follows
        self._commands: deque[Callable[[], None]] = deque()
        self._places = 0  # taken by choices and embeddings that are accepted and not finished
        self._stop_at: float | None = None  # when closing: the end of the drain
        self._thread: threading.Thread | None = None
        # Of the stepping thread alone:
        self._live: dict[str, LiveGeneration] = {}
        self._new: list[Request] = []  # not yet in the scheduler
        self._embeddings: deque[tuple[EmbeddingJob, Future[EmbeddingJob]]] = deque()
        self._idle_since = time.monotonic()
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
        the rest and stops. Blocks until then; on an event loop use :meth:`aclose`. Called again,
        it can only shorten the drain."""
        with self._changed:
            until = time.monotonic() + drain_seconds
            self._stop_at = until if self._stop_at is None else min(self._stop_at, until)
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
        call: Call | None = None,
    ) -> Generation:
        """Queues a prompt; called on the event loop that reads the result. ``n`` replaces
        ``params.n``; ``constraint`` makes what restricts the output of one choice. Prompts of one
        ``call`` take turns with others as if they were one.

        Raises ConfigError for a bad prompt or parameter, CapacityError for a prompt that can never
        fit, QueueFullError past ``max_waiting``, EngineStoppedError after :meth:`close`.
        """
        loop = asyncio.get_running_loop()
        params = params if n is None else replace(params, n=n)
        self._accept(params.n)
        try:
            requests = self.llm.new_requests(prompt, params, constraint, call)
        except BaseException:
            self._leave(params.n)
            raise
        generation = Generation(requests, loop, self._cancel)
        live = LiveGeneration(generation, requests)
        self._command(lambda: self._add(live))
        return generation

    async def embed(self, prompts: Sequence[Prompt], pooling: str = "mean") -> list[np.ndarray]:
        """``LLM.embed``, a chunk between the steps of what else runs. Cancelling the task that
        waits ends it."""
        # A thread looks at every token: there may be a million.
        job = await asyncio.to_thread(self.llm.embedding_job, prompts, pooling)
        future: Future[EmbeddingJob] = Future()
        self._accept(1)
        self._command(lambda: self._embeddings.append((job, future)))
        return (await asyncio.wrap_future(future)).vectors

    async def suspend(self) -> bool:
        """Unmaps the weights and frees the KV pool until a request needs them. False, with nothing
        changed, while there is work."""
        return bool(await self._ask(lambda: not self._busy() and self.llm.suspend()))

    async def resume(self) -> None:
        """Loads what :meth:`suspend` gave back, ahead of the next request. Raises what loading
        raises."""
        await self._ask(self.llm.resume)

    def stats(self) -> EngineStats:
        """Never loads a suspended model."""
        counters, plan = self.llm.counters, self.llm.kv_plan
        use = self.llm.kv_use()
        return EngineStats(
            waiting=max(0, self._places - use.running),
            running=use.running,
            kv_blocks_used=use.blocks,
            kv_blocks_cached=use.cached_blocks,
            kv_blocks=sum(plan.blocks),
            kv_bytes_used=use.bytes,
            kv_bytes_cached=use.cached_bytes,
            kv_bytes=plan.bytes,
            prompt_tokens_total=counters.prompt_tokens,
            cached_tokens_total=counters.cached_tokens,
            generated_tokens_total=counters.generated_tokens,
            preemptions_total=counters.preemptions,
            guessed_tokens_total=counters.guessed_tokens,
            accepted_tokens_total=counters.accepted_tokens,
            steps_total=counters.steps,
            cancelled_total=self._cancelled,
            suspended=self.llm.suspended,
            idle_seconds=0.0 if self._busy() else time.monotonic() - self._idle_since,
        )

    def check_room(self, choices: int) -> None:
        """Whether several prompts with so many choices could be queued now.

        Raises ConfigError for more than ever can, QueueFullError and EngineStoppedError.
        """
        self._accept(choices)
        self._leave(choices)

    def _accept(self, n: int) -> None:
        """Takes ``n`` places among what may run or wait."""
        with self._changed:
            if self._stop_at is not None:
                raise _stopped()
            if n > self._limit:
                raise ConfigError(
                    f"{n} choices were asked for; this engine takes at most {self._limit} in all.",
                    remedy="Ask for fewer at a time, or raise max_num_seqs or max_waiting.",
                )
            if self._places + n > self._limit:
                raise QueueFullError(
                    f"{self._places} of at most {self._limit} choices run or wait; {n} more do "
                    "not fit.",
                    retry_after=self._retry_after(),
                    remedy="Ask again later, or raise max_waiting.",
                )
            self._places += n

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

    async def _ask(self, question: Callable[[], object]) -> object:
        """The answer that the stepping thread gives between two steps."""
        answer: Future[object] = Future()

        def command() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except Exception as e:
                answer.set_exception(_as_error(e))

        with self._changed:
            if self._stop_at is not None or self._thread is None:
                raise _stopped()
            self._command(command)
        return await asyncio.wrap_future(answer)

    def _cancel(self, request_id: str) -> None:
        self._command(lambda: self._drop(request_id))

    # --- the stepping thread ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as e:  # nobody may wait for a thread that has died
            with self._changed:
                self._stop_at = 0.0
                commands, self._commands = self._commands, deque()
            with self.llm.lock:
                for command in commands:
                    with contextlib.suppress(Exception):
                        command()
                self._fail(_as_error(e))
                while self._embeddings:
                    self._end_embedding(_as_error(e))
            self._deliver()
            raise

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not (self._commands or self._busy() or self._stop_at is not None):
                    self._changed.wait()
                commands, self._commands = self._commands, deque()
                stop_at = self._stop_at
            self._idle_since = time.monotonic()
            with self.llm.lock:
                for command in commands:
                    command()
                if stop_at is not None and time.monotonic() >= stop_at:
                    self._abort_all()
                elif self._busy():
                    self._step()
                    self._idle_since = time.monotonic()
            self._deliver()
            with self._changed:
                if stop_at is not None and not (self._commands or self._places):
                    return

    def _busy(self) -> bool:
        return bool(self._live or self._embeddings)

    def _step(self) -> None:
        """One step of the scheduler, then rows of an embedding, in a model that may have to be
        loaded first. The two share what the pace gives a step, so that a stream waits no longer
        than it does beside a long prompt."""
        begun, room, rows, decodes = time.perf_counter(), 0, 0, 0
        try:
            scheduler = self.llm.scheduler
            begun = time.perf_counter()  # not what loading took
            new, self._new = self._new, []
            for r in new:
                scheduler.add(r)
            decodes = scheduler.decoding
            room = self._pace.room(self.llm.runner.builder.max_rows, decodes)
            if self._live:
                scheduler.step(prompt_rows=-(-room // 2) if self._embeddings else room)
                rows = scheduler.prompt_rows
        except Exception as e:
            self._fail(_as_error(e))
        if self._embeddings:  # decodes may fill a chunk, for minutes
            rows += self._step_embedding(max(room - rows, MIN_ROWS))
        self._pace.learn(time.perf_counter() - begun, rows, decodes)

    def _step_embedding(self, rows: int) -> int:
        """At most ``rows`` rows of the oldest embedding; returns the number."""
        job, future = self._embeddings[0]
        done = 0
        try:
            if not future.cancelled():
                done = self.llm.step_embedding(job, rows)
            if job.finished or future.cancelled():
                self._end_embedding(None)
        except Exception as e:
            self._end_embedding(_as_error(e))
        return done

    def _end_embedding(self, error: EdgeInferError | None) -> None:
        job, future = self._embeddings.popleft()
        self.llm.end_embedding(job)
        self._leave(1)
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(job)
        else:
            future.set_exception(error)

    def _fail(self, error: EdgeInferError) -> None:
        if not self.llm.suspended:
            self.llm.scheduler.fail_all(error)
        for r in self._new:
            r.fail(error)
        self._new = []

    def _abort_all(self) -> None:
        for live in self._live.values():
            for r in live.unfinished:
                self._abort(r)
        while self._embeddings:
            self._end_embedding(_stopped())

    def _abort(self, request: Request) -> None:
        if request in self._new:
            self._new.remove(request)
            request.finish("abort")
        else:
            self.llm.scheduler.abort(request)

    def _add(self, live: LiveGeneration) -> None:
        self._live[live.requests[0].request_id] = live
        self._new += live.requests

    def _drop(self, request_id: str) -> None:
        live = self._live.pop(request_id, None)
        if live is None:  # it has just finished
            return
        self._cancelled += 1
        for r in live.unfinished:
            self._abort(r)
        self._ended(len(live.unfinished))

    def _deliver(self) -> None:
        """Hands what the step made to the event loops, with one call each."""
        news: dict[asyncio.AbstractEventLoop, list[tuple[LiveGeneration, list[Delta]]]] = {}
        for request_id, live in list(self._live.items()):
            before = len(live.unfinished)
            if deltas := live.deltas():
                news.setdefault(live.loop, []).append((live, deltas))
            self._ended(before - len(live.unfinished))
            if not live.unfinished:
                del self._live[request_id]
        for loop, items in news.items():
            call_soon(loop, partial(_deliver_all, items))

    def _ended(self, choices: int) -> None:
        if choices:
            self._ends.extend([time.monotonic()] * choices)
            self._leave(choices)

    def _leave(self, places: int) -> None:
        with self._changed:
            self._places -= places


def _as_error(error: BaseException) -> EdgeInferError:
    if isinstance(error, EdgeInferError):
        return error
    return ExecutionError(f"The engine failed: {type(error).__name__}: {error}.")


def _deliver_all(items: list[tuple[LiveGeneration, list[Delta]]]) -> None:
    for live, deltas in items:
        live.deliver(deltas)


def _stopped() -> EngineStoppedError:
    return EngineStoppedError("The engine does not run.", remedy="Start it.")
