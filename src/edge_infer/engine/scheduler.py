"""Which rows run in the next step: decodes first, then prefill in what is left of the chunk.

A request's tokens do not depend on these choices (rows carry their own numerics), only its speed
does.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from edge_infer.engine.request import Request
from edge_infer.engine.runner import ModelRunner, Piece
from edge_infer.errors import EdgeInferError, ExecutionError


@dataclass(frozen=True)
class _Share:
    request: Request
    count: int


@dataclass
class Counters:
    """What a scheduler has done since it was made. ``prompt_tokens``: of requests that were
    admitted."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """Continuous batching over one runner. Not thread-safe: one thread steps it."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # oldest first
        self.counters = Counters()

    def add(self, request: Request) -> None:
        """Queues a request, which must fit the pool (``BlockManager.check_possible``)."""
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Ends a request wherever it is; its blocks are free when this returns."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._leave(request)
        request.finish("abort")

    def fail_all(self, error: EdgeInferError) -> None:
        """Ends every request with ``error``."""
        for r in list(self.running):
            self._leave(r)
            r.fail(error)
        while self.waiting:
            self.waiting.popleft().fail(error)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[Request]:
        """Runs one step and returns the requests that got a token, or ended, in it."""
        shares = self._compose()
        if not shares:
            if self.busy:
                raise ExecutionError("No request can run although some are waiting.")
            return []
        pieces = [self._piece(s) for s in shares]
        self.runner.run(pieces)
        self.counters.steps += 1
        now = time.perf_counter()
        logits = self.runner.output("logits")
        rows = {piece: row for row, (piece, _) in enumerate(self.runner.output_order())}
        touched = []
        for i, share in enumerate(shares):
            r = share.request
            r.computed += share.count
            assert r.blocks is not None
            self.runner.blocks.drop_unseen(r.blocks, r.computed)
            if i in rows:
                self._take(r, logits[rows[i]], now)
                touched.append(r)
                if r.finished:
                    self._leave(r)
        return touched

    def _take(self, request: Request, logits: Any, now: float) -> None:
        """Gives a request its next token. Trouble of its own (no token allowed, a constraint that
        raises) ends it alone: the others go on."""
        try:
            request.take(logits, now)
            self.counters.generated_tokens += 1
        except EdgeInferError as e:
            request.fail(e)
        except Exception as e:
            request.fail(ExecutionError(f"Sampling failed: {type(e).__name__}: {e}."))

    def _piece(self, share: _Share) -> Piece:
        r = share.request
        assert r.blocks is not None
        last = r.computed + share.count == len(r.tokens)
        return Piece(r.tokens, r.computed, share.count, r.prompt_length, r.blocks, last)

    def _compose(self) -> list[_Share]:
        """Shares of the next step, with their blocks reserved. When the pool is full the youngest
        running request gives its blocks back and starts again later."""
        budget = self.runner.builder.max_rows
        shares: list[_Share] = []
        # A request one token short of complete decodes; the others still prefill (or recompute).
        order = sorted(self.running, key=lambda r: len(r.tokens) - r.computed > 1)
        for r in order:
            if r not in self.running:
                continue  # preempted for an older one
            count = min(len(r.tokens) - r.computed, budget)
            if count == 0 or not self._reserve(r, r.computed + count):
                continue
            shares.append(_Share(r, count))
            budget -= count
        shares = [s for s in shares if s.request in self.running]
        while budget > 0 and self.waiting and len(self.running) < self.runner.options.max_num_seqs:
            r = self.waiting[0]
            count = min(len(r.tokens), budget)
            blocks = self.runner.blocks.new_sequence()
            if not self.runner.blocks.reserve(blocks, count):
                break
            self.waiting.popleft()
            r.blocks = blocks
            if r.metrics.first_scheduled is None:
                self.counters.prompt_tokens += r.prompt_length
            r.metrics.first_scheduled = r.metrics.first_scheduled or time.perf_counter()
            self.running.append(r)
            shares.append(_Share(r, count))
            budget -= count
        return shares

    def _reserve(self, request: Request, tokens: int) -> bool:
        assert request.blocks is not None
        while not self.runner.blocks.reserve(request.blocks, tokens):
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.computed = 0
        request.metrics.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        if request.blocks is not None:
            self.runner.blocks.free(request.blocks)
            request.blocks = None
