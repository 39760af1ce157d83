"""What the requests of several endpoints share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edge_infer.engine.params import SamplingParams
from edge_infer.server.errors import ApiError, unsupported_parameter

# Each is work for every choice, or every token of one.
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_BIASES = 4096
MAX_STOP_TOKENS = 1024

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """Unknown fields are refused, and nothing is converted from one JSON type to another."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(Strict):
    """Sampling parameters of chat and text completions; None is the model's own default."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def sampling(
        self,
        defaults: dict[str, Any],
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """Parameters for the engine; ``defaults`` are the model's for what was left out."""
        names = (
            *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
            *("frequency_penalty", "seed", "n", "min_tokens", "stop_token_ids"),
            *("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"),
        )
        given = {k: v for k in names if (v := getattr(self, k)) is not None}
        return SamplingParams(
            **{
                **defaults,
                **given,
                "max_tokens": max_tokens,
                "logprobs": logprobs,
                "prompt_logprobs": prompt_logprobs,
                "logit_bias": _token_keys(self.logit_bias or {}),
                "stop": self._stops(),
            }
        )

    def _stops(self) -> list[str]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS:
            raise ApiError(f"stop has {len(stops)} strings; at most {MAX_STOPS}.", param="stop")
        longest = max(map(len, stops), default=0)
        if longest > MAX_STOP_CHARS:
            raise ApiError(
                f"stop has a string of {longest} characters; at most {MAX_STOP_CHARS}.",
                param="stop",
            )
        return [s for s in stops if s]  # clients send [""] for none

    def check_streaming(self) -> None:
        """Raises ApiError 400 for stream options that make no sense."""
        if self.stream_options is None:
            return
        if not self.stream:
            raise ApiError(
                "stream_options needs stream = true.",
                param="stream_options",
                remedy="Set stream, or leave stream_options out.",
            )
        if self.stream_options.include_obfuscation:
            raise unsupported_parameter(
                "stream_options.include_obfuscation", "events carry no padding"
            )


def _token_keys(bias: dict[str, float]) -> dict[int, float]:
    """JSON's keys are text: token ids in decimal."""
    out = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            raise ApiError(
                f"logit_bias has the key {key[:40]!r}; token ids are needed.", param="logit_bias"
            )
        out[int(key)] = value
    return out


class HarmlessFields(Strict):
    """Published parameters that are accepted and change nothing in the output here."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: Literal["auto", "default"] | None = None


def refuse(request: BaseModel, reasons: dict[str, str]) -> None:
    """Raises ApiError 400 for the first parameter of ``reasons`` that the request has."""
    for name, why in reasons.items():
        if getattr(request, name) is not None:
            raise unsupported_parameter(name, why)
