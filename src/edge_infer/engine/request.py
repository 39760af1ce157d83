"""One request on its way through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edge_infer import _native
from edge_infer.engine.detokenizer import Detokenizer
from edge_infer.engine.kv_blocks import SequenceBlocks
from edge_infer.engine.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    TokenLogprobs,
)
from edge_infer.engine.params import SamplingParams
from edge_infer.engine.prefix_cache import BlockChain
from edge_infer.engine.speculative import NgramProposer
from edge_infer.errors import ConfigError, EdgeInferError

_SEEDS = 1 << 64


class TokenConstraint(Protocol):
    """What restricts the output of one request: a grammar's matcher, say.

    Called on the thread that steps the engine. An exception ends only the request that it serves.
    """

    def mask(self) -> np.ndarray | None:
        """Which tokens may come next: uint32 words [ceil(vocab / 32)], bit ``t % 32`` of word
        ``t // 32`` set where token ``t`` is allowed (EOS too); None allows all."""

    def allows(self, token: int) -> bool:
        """Whether the mask has this token: asked before the mask, which may cost much more."""

    def accept(self, token: int) -> None:
        """Takes the token that was chosen. Not called for the EOS or stop token that ends it."""

    def finished(self) -> bool:
        """Whether only EOS may follow: the request then ends with ``stop``."""


@dataclass
class Call:
    """What was asked for in one go: choices of a prompt, several prompts. ``turn``: when one of
    them was last admitted, by the scheduler's count."""

    turn: int = -1


class Request:
    """Tokens, sampling state and blocks of one sequence: one of ``params.n`` choices.

    ``tokens`` is the prompt followed by what was generated; ``computed`` how many of them have
    their keys and values in the pool. ``choice`` counts from 0; its seed is ``params.seed +
    choice`` (modulo 2^64), so choice 0 is what n = 1 would give. ``call``: what all requests of
    one caller's call share; calls take turns.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        vocab_size: int,
        max_tokens: int,
        eos_token_ids: frozenset[int],
        detokenizer: Detokenizer | None,
        arrival: float,
        choice: int = 0,
        constraint: TokenConstraint | None = None,
        call: Call | None = None,
    ) -> None:
        self.request_id = request_id
        self.call = call or Call()
        self.choice = choice
        self.constraint = constraint
        self.prompt = prompt
        self.params = params
        self.prompt_length = len(prompt_token_ids)
        self.tokens = list(prompt_token_ids)
        self.computed = 0
        self.fresh = True  # has not had a row since it was last admitted
        self.cached_tokens = 0  # of the prompt: found in the pool before its first row
        self.blocks: SequenceBlocks | None = None
        self.chain = BlockChain(self.prompt_length)
        self.proposer: NgramProposer | None = None  # with speculation
        self.leader: Request | None = None  # whose prompt this one waits for, to share its blocks
        self.order = 0  # of arrival at the scheduler
        self.max_tokens = max_tokens
        self.detokenizer = detokenizer
        self.metrics = RequestMetrics(arrival)
        self.finish_reason: str | None = None
        self.error: EdgeInferError | None = None
        self.stop_reason: str | int | None = None
        self.logprobs: list[TokenLogprobs] | None = [] if params.logprobs is not None else None
        # One a prompt token but the first; the choices of a prompt share those of the first choice.
        wanted = params.prompt_logprobs is not None and choice == 0
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if wanted else None
        self.new_text = ""  # text that no stream has taken yet
        self._delivered = 0  # generated tokens that take_tokens has given out
        self._eos = frozenset() if params.ignore_eos else eos_token_ids
        self._stop_tokens = frozenset(params.stop_token_ids)
        self._mask = None
        unknown = next((t for t in params.logit_bias if t >= vocab_size), None)
        if unknown is not None:
            raise ConfigError(
                f"logit_bias has token {unknown}, which is outside the vocabulary of {vocab_size}."
            )
        self.sampler: Any = _native.SamplingState(
            vocab_size,
            temperature=params.temperature,
            top_k=min(max(params.top_k, 0), vocab_size),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=dict(params.logit_bias),
            seed=None if params.seed is None else (params.seed + choice) % _SEEDS,
            num_logprobs=-1 if params.logprobs is None else params.logprobs,
        )
        self.sampler.add_prompt(prompt_token_ids)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def left(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 when the request decodes."""
        return len(self.tokens) - self.computed

    @property
    def scoring(self) -> bool:
        """Whether log-probabilities of the prompt are still to be computed, which takes the logits
        of every row."""
        done = self.prompt_logprobs
        return done is not None and len(done) < self.prompt_length - 1

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def score(self, start: int, logits: Any) -> None:
        """Takes the prompt's log-probabilities from the logits f32 [rows, vocab] of its tokens from
        ``start`` on. Raises ExecutionError for logits that are no numbers."""
        assert self.prompt_logprobs is not None
        first = len(self.prompt_logprobs) + 1  # more rows than that were computed before: preempted
        tokens = self.tokens[first : min(start + len(logits) + 1, self.prompt_length)]
        rows = logits[first - 1 - start :][: len(tokens)]
        ids = np.asarray(tokens, np.int32)
        for result in _native.token_logprobs(rows, ids, self.params.prompt_logprobs):
            self.prompt_logprobs.append(_logprobs(result))

    def take(self, logits: Any, now: float) -> None:
        """Samples the next token from ``logits`` [vocab], and ends the request where it should
        end. Raises ExecutionError, with nothing taken, when no token can be chosen."""
        result = self._choose(logits)
        token = int(result.token)
        self.tokens.append(token)
        if self.metrics.first_token is None:
            self.metrics.first_token = now
        self.metrics.last_token = now
        if self.logprobs is not None:
            self.logprobs.append(_logprobs(result))
        count = len(self.tokens) - self.prompt_length
        is_stop = (
            token in self._eos or token in self._stop_tokens
        ) and count >= self.params.min_tokens
        self.new_text += "" if is_stop else self._push(token)
        if is_stop:
            self.stop_reason = token if token in self._stop_tokens else None
            self.finish("stop")
        elif self.detokenizer is not None and self.detokenizer.stopped is not None:
            self.stop_reason = self.detokenizer.stopped
            self.finish("stop")
        elif self._constraint_ends(token):
            self.finish("stop")
        elif count >= self.max_tokens:
            self.finish("length")

    def _choose(self, logits: Any) -> Any:
        """Samples a token and counts it. With a constraint the token is drawn from all first: the
        mask is needed only where it is not allowed, and the second draw is another one, so each
        token has the probability that a draw under the mask gives it. Exactly that without
        top_k, top_p and min_p; these choose from the model's own distribution first, and from the
        masked one only in the second draw."""
        if self.constraint is None:
            return self.sampler.sample(logits, self._kept_out(logits))
        result = self.sampler.pick(logits, self._kept_out(logits))
        if not self.constraint.allows(int(result.token)):
            result = self.sampler.pick(logits, self._allowed(logits), again=True)
        self.sampler.accept(result.token)
        return result

    def _constraint_ends(self, token: int) -> bool:
        if self.constraint is None:
            return False
        self.constraint.accept(token)
        return self.constraint.finished()

    def _allowed(self, logits: Any) -> Any:
        """The mask of tokens that may come next; None when everything is allowed."""
        stops = self._kept_out(logits)
        mask = self.constraint.mask() if self.constraint is not None else None
        if mask is None or stops is None:
            return stops if mask is None else mask
        both = mask & stops
        # A grammar that is complete before min_tokens may leave nothing but EOS.
        return both if both.any() else mask

    def _kept_out(self, logits: Any) -> Any:
        """The mask that keeps stop tokens out until min_tokens; None when everything is allowed."""
        stops = self._eos | self._stop_tokens
        if len(self.tokens) - self.prompt_length >= self.params.min_tokens or not stops:
            return None
        if self._mask is None:
            self._mask = allow_all_but(stops, len(logits))
        return self._mask

    def _push(self, token: int) -> str:
        return self.detokenizer.push(token) if self.detokenizer is not None else ""

    def fail(self, error: EdgeInferError) -> None:
        """Ends the request with an error, which whoever waits for it raises."""
        self.error = error
        self.finish("error")

    def finish(self, reason: str) -> None:
        if self.finished:
            return
        self.finish_reason = reason
        if self.detokenizer is not None and self.detokenizer.stopped is None:
            self.new_text += self.detokenizer.finish()

    def take_text(self) -> str:
        """The text since the last call: of several steps when other requests ran them."""
        text, self.new_text = self.new_text, ""
        return text

    def take_tokens(self) -> tuple[list[int], list[TokenLogprobs] | None]:
        """The generated tokens since the last call, with their log-probabilities."""
        start, self._delivered = self._delivered, len(self.tokens) - self.prompt_length
        logprobs = None if self.logprobs is None else self.logprobs[start:]
        return self.tokens[self.prompt_length + start :], logprobs

    def completion(self) -> CompletionOutput:
        return CompletionOutput(
            text=self.detokenizer.text if self.detokenizer is not None else "",
            token_ids=self.generated,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=self.logprobs,
        )


def output(choices: Sequence[Request]) -> RequestOutput:
    """The result of one prompt from its choices; the metrics are those of the first."""
    first = choices[0]
    return RequestOutput(
        request_id=first.request_id,
        prompt=first.prompt,
        prompt_token_ids=first.tokens[: first.prompt_length],
        outputs=[r.completion() for r in choices],
        finished=all(r.finished for r in choices),
        metrics=first.metrics,
        cached_tokens=first.cached_tokens,
        prompt_logprobs=None if first.prompt_logprobs is None else [None, *first.prompt_logprobs],
    )


def _logprobs(result: Any) -> TokenLogprobs:
    top = [Logprob(int(i), float(p)) for i, p in result.top]
    return TokenLogprobs(Logprob(int(result.token), float(result.logprob)), top)


def allow_all_but(tokens: frozenset[int], vocab_size: int) -> Any:
    """A bit mask (uint32 words, bit set: allowed) over the vocabulary."""
    mask = np.full(-(-vocab_size // 32), 0xFFFFFFFF, np.uint32)
    for t in tokens:
        if t < vocab_size:
            mask[t // 32] &= np.uint32(0xFFFFFFFF ^ (1 << (t % 32)))
    return mask
