"""POST /v1/completions: the request, and the documents of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from edge_infer.engine.outputs import TokenLogprobs
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.server.errors import unsupported_parameter
from edge_infer.server.protocol.chat import finite
from edge_infer.server.protocol.common import HarmlessFields, SamplingFields, TokenId
from edge_infer.server.protocol.structured import ResponseFormat, StructuredOutputs

DEFAULT_MAX_TOKENS = 16  # the published default


class CompletionRequest(SamplingFields, HarmlessFields):
    """The published request, and extensions with vLLM's names."""

    model: str | None = None
    prompt: Annotated[str | list[str] | list[TokenId] | list[list[TokenId]], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None  # 0: the prompt's own log-probabilities
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

    def prompt(self, ids: list[int], text: str, logprobs: list[TokenLogprobs]) -> dict[str, Any]:
        """The document of an echoed prompt: ``text``, its tokens ``ids``, and the log-probabilities
        of all but the first, which has none."""
        entries = [self._entry(e) for e in logprobs]
        first = self._text(ids[0])
        raw = [self.tokenizer.token_bytes(i, skip_special_tokens=False) for i in ids]
        self.offset = len(text)
        return {
            "tokens": [first, *(e[0] for e in entries)],
            "token_logprobs": [None, *(e[1] for e in entries)],
            "top_logprobs": [None, *(e[2] for e in entries)],
            "text_offset": offsets(raw, text),
        }

    def document(self, logprobs: list[TokenLogprobs]) -> dict[str, Any]:
        """The document of generated tokens."""
        entries = [self._entry(e) for e in logprobs]
        places = []
        for text, _, _ in entries:
            places.append(self.offset)
            self.offset += len(text)
        return {
            "tokens": [e[0] for e in entries],
            "token_logprobs": [e[1] for e in entries],
            "top_logprobs": [e[2] for e in entries],
            "text_offset": places,
        }

    def _entry(self, entry: TokenLogprobs) -> tuple[str, float, dict[str, float]]:
        text, value = self._text(entry.chosen.token_id), finite(entry.chosen.logprob)
        top: dict[str, float] = {}
        for t in [*entry.top, entry.chosen]:  # best first; parts of characters share a text
            top.setdefault(self._text(t.token_id), finite(t.logprob))
        return text, value, top

    def _text(self, token_id: int) -> str:
        if token_id not in self._texts:
            raw = self.tokenizer.token_bytes(token_id, skip_special_tokens=False)
            self._texts[token_id] = raw.decode("utf-8", errors="replace")
        return self._texts[token_id]


def offsets(tokens: list[bytes], text: str) -> list[int]:
    """Characters of ``text`` before each of its tokens. One that the text does not show (BOS, the
    space that a tokenizer puts in front of the first word) takes no room."""
    shown, at, characters, out = text.encode(), 0, 0, []
    for token in tokens:
        out.append(characters)
        # A normalizer may have changed what lies between, so a little further is looked at too.
        for raw in (token, token.removeprefix(b" ")):
            found = shown.find(raw, at, at + len(raw) + 16)
            if found >= 0:
                end = found + len(raw)
                characters += sum(byte & 0xC0 != 0x80 for byte in shown[at:end])
                at = end
                break
    return out
