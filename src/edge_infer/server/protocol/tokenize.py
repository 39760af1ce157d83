"""POST /tokenize and /detokenize, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from edge_infer.server.protocol.chat import MAX_TOOLS, Message, Tool
from edge_infer.server.protocol.common import Strict, TokenId


class TokenizeRequest(Strict):
    """A text, or messages that go through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: list[TokenId]
