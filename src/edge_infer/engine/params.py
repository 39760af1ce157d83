"""How a request is sampled and when it ends. Names follow vLLM's where the meaning is the same."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_infer.errors import ConfigError

_FLOAT32_MAX = 3.4028234663852886e38


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1, ``top_p`` 1 and ``min_p`` 0 are off.
    ``max_tokens`` None: until the context is full; 0 generates nothing, for the prompt's
    log-probabilities alone. ``stop``: strings that end the text (not part
    of it unless ``include_stop_str_in_output``); ``stop_token_ids``: tokens that end it.
    ``n``: completions of the prompt, 1 to 128. ``seed``: the same seed gives the same tokens
    whatever runs beside the request; completion i draws with seed + i. ``logprobs``:
    None for none, n for the chosen token's and the n most likely ones'; ``prompt_logprobs``: the
    same for the tokens of the prompt, all of which are then computed, cached or not.
    ``keep_special_token_ids``: special tokens that ``skip_special_tokens`` leaves in the text.
    ``detokenize`` False leaves the text empty: a prompt of token ids then never loads the
    tokenizer.

    Raises ConfigError for a value out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    keep_special_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, needed: str) -> None:
            if not ok:
                raise ConfigError(f"{name} = {getattr(self, name)!r}; {needed} is needed.")

        def integer(name: str, low: float, high: float = math.inf) -> bool:
            value = getattr(self, name)
            return type(value) is int and low <= value <= high

        def finite(name: str) -> bool:
            value = getattr(self, name)
            return _is_number(value) and abs(value) <= sys.float_info.max

        check(integer("n", 1, 128), "n", "an integer of 1 to 128")
        check(finite("temperature") and self.temperature >= 0, "temperature", "0 or more")
        check(integer("top_k", -1), "top_k", "-1, 0 or more")
        check(finite("top_p") and 0 < self.top_p <= 1, "top_p", "a number in (0, 1]")
        check(finite("min_p") and 0 <= self.min_p <= 1, "min_p", "a number in [0, 1]")
        positive = finite("repetition_penalty") and self.repetition_penalty > 0
        check(positive, "repetition_penalty", "a positive number")
        for name in ("presence_penalty", "frequency_penalty"):
            check(finite(name) and -2 <= getattr(self, name) <= 2, name, "a number in [-2, 2]")
        known = self.max_tokens is None or integer("max_tokens", 0)
        check(known, "max_tokens", "None or 0 and more")
        check(integer("min_tokens", 0), "min_tokens", "0 or more")
        check(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            "at most max_tokens",
        )
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name) is None or integer(name, 0, 1000)
            check(wanted, name, "None or an integer of 0 to 1000")
        check(self.seed is None or integer("seed", -math.inf), "seed", "None or an integer")
        listed = self.stop is None or isinstance(self.stop, (str, list, tuple))
        check(listed, "stop", "None, a string or a list of strings")
        check(all(isinstance(s, str) and s for s in self.stop_strings), "stop", "non-empty strings")
        check(self.detokenize or not self.stop_strings, "detokenize", "True, for stop strings,")
        ids = isinstance(self.stop_token_ids, (list, tuple, set, frozenset)) and all(
            type(i) is int for i in self.stop_token_ids
        )
        check(ids, "stop_token_ids", "a list of integers")
        check(isinstance(self.logit_bias, Mapping), "logit_bias", "a mapping of token id to number")
        for token, bias in self.logit_bias.items():
            known = _is_number(bias) and (bias == -math.inf or abs(bias) <= _FLOAT32_MAX)
            if not (type(token) is int and token >= 0 and known):
                raise ConfigError(
                    f"logit_bias has {token!r}: {bias!r}; token id to a float32 or -inf is needed."
                )

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)
