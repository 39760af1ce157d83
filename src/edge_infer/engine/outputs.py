"""What a finished or running request gives back."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Logprob:
    """Natural-log probability of a token under the model's own distribution (before penalties)."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class TokenLogprobs:
    """The chosen token's logprob and the most likely ones, best first."""

    chosen: Logprob
    top: list[Logprob]


@dataclass
class RequestMetrics:
    """Seconds, by ``time.perf_counter``. ``prefill_seconds``: first scheduled to first token;
    ``decode_seconds``: first token to last."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    preemptions: int = 0

    @property
    def prefill_seconds(self) -> float:
        if self.first_token is None or self.first_scheduled is None:
            return 0.0
        return self.first_token - self.first_scheduled

    @property
    def decode_seconds(self) -> float:
        if self.first_token is None or self.last_token is None:
            return 0.0
        return self.last_token - self.first_token


@dataclass
class CompletionOutput:
    """Generated text and tokens. ``finish_reason``: stop (a stop string, stop token or EOS),
    length, abort, error, or None while running; ``stop_reason``: the stop string or token id, None
    for EOS."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None


@dataclass
class RequestOutput:
    """One prompt's result; ``outputs`` has its ``n`` completions. ``cached_tokens``: prompt
    tokens whose keys and values were in the pool already; ``prompt_logprobs``: one a prompt
    token if asked for, None for the first, which nothing comes before."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(0.0))
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
