"""Which rows run in the next step: decodes first, then prefill in what is left of the chunk.

Half of what is left goes to the oldest prompt, so that none starves, the rest to those with the
least left to compute, so that a short prompt does not wait for a long one. A request's tokens do
not depend on these choices (rows carry their own numerics), only its speed does.
"""

from __future__ import annotations

import itertools
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from edge_infer.engine.kv_blocks import SequenceBlocks
from edge_infer.engine.request import Request
from edge_infer.engine.runner import DRAFT_ROWS, ModelRunner, Piece
from edge_infer.engine.speculative import NgramProposer
from edge_infer.errors import EdgeInferError, ExecutionError


class _Share(NamedTuple):
    """Rows of a request in the next step: ``rows`` tokens that it has, then a guess."""

    request: Request
    rows: int
    guess: Sequence[int] = ()


@dataclass
class Counters:
    """What a scheduler has done since it was made. ``prompt_tokens``: of requests that were
    admitted."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of those: found in the pool
    generated_tokens: int = 0
    preemptions: int = 0
    guessed_tokens: int = 0  # by speculation
    accepted_tokens: int = 0  # of those


class Scheduler:
    """Continuous batching over one runner. Not thread-safe: one thread steps it."""

    def __init__(self, runner: ModelRunner, counters: Counters | None = None) -> None:
        self.runner = runner
        self.waiting: list[Request] = []  # both oldest first
        self.running: list[Request] = []
        self.counters = counters if counters is not None else Counters()
        self.prompt_rows = 0  # of the last step
        self._arrivals = itertools.count()

    def add(self, request: Request) -> None:
        """Queues a request, which must fit the pool (``PoolPlan.check_possible``)."""
        request.order = next(self._arrivals)
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
        for r in self.waiting:
            r.fail(error)
        self.waiting.clear()

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def decoding(self) -> int:
        """Requests that the next step gives a token without more rows of their prompt."""
        return sum(r.left == 1 for r in self.running)

    def step(self, *, prompt_rows: int | None = None) -> list[Request]:
        """Runs one step and returns the requests that got a token, or ended, in it.
        ``prompt_rows``: at most so many rows for prompts, beside what decodes leave of a chunk."""
        shares = self._compose(prompt_rows)
        self.prompt_rows = sum(s.rows for s in shares if s.request.left > 1)
        if not shares:
            # Blocks that others hold, as embeddings do, come back by themselves.
            if self.busy and not self.runner.blocks.used_blocks():
                raise ExecutionError("No request can run although some are waiting.")
            return []
        for s in shares:
            self._has_rows(s.request)
        logits = self._run(shares)
        self.counters.steps += 1
        now = time.perf_counter()
        touched = []
        for share, rows in zip(shares, logits, strict=True):
            r = share.request
            r.computed += share.rows
            if rows:
                r.computed += self._take_all(share, rows, now)
            elif r.max_tokens == 0 and r.left == 0:
                r.finish("length")
            if rows or r.finished:
                touched.append(r)
            assert r.blocks is not None
            self.runner.blocks.commit(r.blocks, r.chain, r.tokens, r.computed)
            self.runner.blocks.drop_unseen(r.blocks, r.computed)
            if r.finished:
                self._leave(r)
        return touched

    def _run(self, shares: list[_Share]) -> list[list[Any]]:
        """Computes the rows of a step, and gives each share the logits ([vocab]) that its next
        tokens are sampled from."""
        out: list[list[Any]] = [[] for _ in shares]
        scored = [i for i, s in enumerate(shares) if s.request.scoring]
        plain = [i for i, s in enumerate(shares) if not (scored and s.request.scoring)]
        if plain:
            self.runner.run([self._piece(shares[i]) for i in plain])
            outputs = self.runner.output_rows("logits")
            for row, (piece, _) in zip(outputs, self.runner.output_order(), strict=False):
                out[plain[piece]].append(row)
        if scored:
            order, logits = self.runner.score([self._piece(shares[i]) for i in scored])
            for piece, i in enumerate(scored):
                mine = [row for row, (p, _) in enumerate(order) if p == piece]
                r, rows = shares[i].request, logits[mine[0] : mine[-1] + 1]
                ok = self._guarded(r, partial(r.score, r.computed, rows))
                if ok and r.max_tokens and r.left == shares[i].rows:
                    out[i].append(rows[-1])
        return out

    def _take_all(self, share: _Share, logits: list[Any], now: float) -> int:
        """Gives a request the tokens after its last one, as far as its guess was right, from
        ``logits`` ([vocab] for each). Returns how much of the guess was."""
        r, right = share.request, 0
        for row, guess in zip(logits, [*share.guess, None], strict=True):
            self._take(r, row, now)
            if r.finished or r.tokens[-1] != guess:
                break
            right += 1
        if share.guess and r.proposer is not None:
            r.proposer.learn(len(share.guess), right)
            self.counters.guessed_tokens += len(share.guess)
            self.counters.accepted_tokens += right
        return right

    def _take(self, request: Request, logits: Any, now: float) -> None:
        """Gives a request its next token."""
        if self._guarded(request, partial(request.take, logits, now)):
            self.counters.generated_tokens += 1

    def _guarded(self, request: Request, work: Callable[[], None]) -> bool:
        """Does work of one request. Trouble of its own (no token allowed, a constraint that raises)
        ends it alone, and gives False: the others go on."""
        try:
            work()
        except EdgeInferError as e:
            request.fail(e)
        except Exception as e:
            request.fail(ExecutionError(f"Sampling failed: {type(e).__name__}: {e}."))
        else:
            return True
        return False

    def _piece(self, share: _Share) -> Piece:
        r = share.request
        assert r.blocks is not None
        last = r.computed + share.rows == len(r.tokens) and r.max_tokens > 0
        tokens, count = r.tokens, share.rows
        if share.guess:
            tokens, count = [*tokens, *share.guess], count + len(share.guess)
        every = bool(share.guess) or r.scoring
        return Piece(tokens, r.computed, count, r.prompt_length, r.blocks, last, every)

    def _compose(self, prompt_rows: int | None) -> list[_Share]:
        """Shares of the next step, with their blocks reserved. When the pool is full the youngest
        running request gives its blocks back and starts again later."""
        shares: list[_Share] = []
        for r in [r for r in self.running if r.left == 1]:
            if r in self.running and self._reserve(r, r.computed + 1):
                shares.append(_Share(r, 1))
        if not self.waiting and len(shares) == len(self.running):  # all decode, none was preempted
            return self._speculate(shares) if self.runner.options.speculative else shares
        self._admit()
        decoding = {s.request for s in shares}
        prompts = [r for r in self.running if r not in decoding]
        for r in prompts:
            self._adopt_more(r)
        room = self.runner.builder.max_rows - len(shares)
        if prompt_rows is not None:
            room = min(room, prompt_rows)
        counts = divide(room, [r.left for r in prompts])
        scored = self.runner.scored_rows
        for r, count in zip(prompts, counts, strict=True):
            if r.scoring:
                count = min(count, scored)
                scored -= count
            if count and r in self.running and self._reserve(r, r.computed + count):
                shares.append(_Share(r, count))
        shares = [s for s in shares if s.request in self.running]
        if self.runner.options.speculative:
            shares = self._speculate(shares)
        return shares

    def _speculate(self, shares: list[_Share]) -> list[_Share]:
        """Adds guesses to the requests that decode, in rows and blocks that nobody needs."""
        room = self.runner.builder.max_rows - sum(s.rows for s in shares)
        room = min(room, DRAFT_ROWS)
        out = []
        for s in shares:
            r, guess = s.request, []
            if r.computed >= r.prompt_length and r.left == 1:
                r.proposer = r.proposer or NgramProposer()
                # The step gives one token more than was guessed.
                left = r.max_tokens - (len(r.tokens) - r.prompt_length) - 1
                guess = r.proposer.propose(r.tokens, min(room, left))
                end = r.computed + 1 + len(guess)
                if guess and (r.blocks is None or not self.runner.blocks.reserve(r.blocks, end)):
                    guess = []
            room -= len(guess)
            out.append(_Share(r, s.rows, guess))
        return out

    def _admit(self) -> None:
        """Lets waiting requests run while there are places and the pool has room for all their
        tokens."""
        while len(self.running) < self.runner.options.max_num_seqs:
            r = self._next()
            if r is None:
                return
            blocks, cached = self.runner.blocks.new_sequence(), 0
            if self._adopts(r):
                cached = self.runner.blocks.adopt(blocks, r.chain, r.tokens)
            if self.running and not self.runner.blocks.has_room(blocks, len(r.tokens)):
                self.runner.blocks.free(blocks)
                return
            self.waiting.remove(r)
            self._start(r, blocks, cached)

    def _next(self) -> Request | None:
        """Who runs next: of the calls with the fewest running, the one that has waited longest
        since it came or last had a turn. So one with many choices or prompts makes nobody wait for
        all of them, and is not kept out by newcomers either."""
        ready = [r for r in self.waiting if self._prompt_ready(r)]
        running = Counter(id(r.call) for r in self.running)
        return min(
            ready, key=lambda r: (running[id(r.call)], max(r.order, r.call.turn)), default=None
        )

    def _adopts(self, request: Request) -> bool:
        """Whether a request may take over what others computed; log-probabilities of a prompt need
        every row of it."""
        shares = self.runner.options.enable_prefix_caching or request.leader is not None
        return shares and not request.scoring

    def _prompt_ready(self, request: Request) -> bool:
        """False while the first choice of the same prompt still computes what both share."""
        leader = request.leader
        return leader is None or leader.finished or leader.computed >= leader.prompt_length

    def _start(self, request: Request, blocks: SequenceBlocks, cached: int) -> None:
        request.leader = None
        request.blocks = blocks
        request.computed = cached
        request.fresh = True
        request.call.turn = next(self._arrivals)
        insort(self.running, request, key=_order)

    def _adopt_more(self, request: Request) -> None:
        """While a request waits for its first rows, others may compute a beginning it shares."""
        if not (request.fresh and self._adopts(request)):
            return
        blocks, seq = self.runner.blocks, request.blocks
        if seq is not None and blocks.known(request.chain, request.tokens) > request.computed:
            blocks.free(seq)
            request.computed = blocks.adopt(seq, request.chain, request.tokens)

    def _has_rows(self, request: Request) -> None:
        request.fresh = False
        if request.metrics.first_scheduled is None:
            request.metrics.first_scheduled = time.perf_counter()
            request.cached_tokens = min(request.computed, request.prompt_length)
            self.counters.prompt_tokens += request.prompt_length
            self.counters.cached_tokens += request.cached_tokens

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
        insort(self.waiting, request, key=_order)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        if request.blocks is not None:
            self.runner.blocks.free(request.blocks)
            request.blocks = None


def divide(rows: int, left: list[int]) -> list[int]:
    """Rows of a step for each prompt, oldest first, with ``left`` tokens to compute."""
    counts = [0] * len(left)
    if left:
        counts[0] = min(left[0], -(-rows // 2))
    rest = rows - sum(counts)
    for i in sorted(range(len(left)), key=left.__getitem__):
        more = min(left[i] - counts[i], rest)
        counts[i] += more
        rest -= more
    return counts


def _order(request: Request) -> int:
    return request.order
