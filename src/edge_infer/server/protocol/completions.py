"""POST /v1/completions: the request, and the documents of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from edge_infer.engine.outputs import TokenLogprobs
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.server.errors import ApiError, unsupported_parameter
from edge_infer.server.protocol.chat import finite
from edge_infer.server.protocol.common import HarmlessFields, SamplingFields, TokenId
from edge_infer.server.protocol.structured import ResponseFormat, StructuredOutputs

DEFAULT_MAX_TOKENS = 16  # the published default


class CompletionRequest(SamplingFields, HarmlessFields):
    """The published request, and extensions with vLLM's names."""

    model: str | None = None
    prompt: Annotated[str | list[str] | list[TokenId] | list[list[TokenId]], Field(min_length=1)]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    def check(self) -> None:
        """Raises ApiError 400 for what cannot be honoured."""
        self.check_streaming()
        if self.suffix:
            raise unsupported_parameter("suffix", "the model only continues text")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported_parameter("best_of", "choices are not ranked", "Use n.")
        if self.echo and self.logprobs is not None:
            raise ApiError(
                "logprobs with echo would need those of the prompt, which are not computed.",
                param="logprobs",
                remedy="Leave one of them out.",
                code="unsupported_parameter",
            )

    def prompts(self) -> list[str | list[int]]:
        """Each prompt: text or token ids."""
        prompt: Any = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        return [prompt] if isinstance(prompt[0], int) else list(prompt)


@dataclass
class CompletionLogprobs:
    """Collects one choice's log-probabilities in the form of text completions.

    ``offset``: characters before the next token's text, as ``text_offset`` counts them.
    """

    tokenizer: Tokenizer
    offset: int = 0
    _texts: dict[int, str] = field(default_factory=dict)

    def document(self, logprobs: list[TokenLogprobs]) -> dict[str, Any]:
        tokens, values, tops, offsets = [], [], [], []
        for entry in logprobs:
            text = self._text(entry.chosen.token_id)
            tokens.append(text)
            values.append(finite(entry.chosen.logprob))
            top = {self._text(t.token_id): finite(t.logprob) for t in entry.top}
            tops.append({**top, text: values[-1]})
            offsets.append(self.offset)
            self.offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _text(self, token_id: int) -> str:
        if token_id not in self._texts:
            raw = self.tokenizer.token_bytes(token_id, skip_special_tokens=False)
            self._texts[token_id] = raw.decode("utf-8", errors="replace")
        return self._texts[token_id]
