"""POST /v1/chat/completions: the request, and the documents of its answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from edge_infer.engine.outputs import TokenLogprobs
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.server.errors import ApiError, unsupported_parameter
from edge_infer.server.json_text import loads
from edge_infer.server.pipeline import Choice, ToolCall, Usage
from edge_infer.server.protocol.common import (
    HarmlessFields,
    SamplingFields,
    Strict,
    refuse,
)
from edge_infer.server.protocol.structured import ResponseFormat, StructuredOutputs

MAX_TOOLS = 128  # the published limit
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class CalledFunction(Strict):
    name: str
    arguments: str


class CalledTool(Strict):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # of a streamed delta that was kept


class Message(Strict):
    """One message; which fields a role may have is checked by :func:`template_messages`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # Parts of an answer that clients send back as they got it.
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None


class FunctionDefinition(Strict):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(SamplingFields, HarmlessFields):
    """The published request, and extensions with vLLM's names."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    modalities: list[str] | None = None
    verbosity: str | None = None
    store: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    # Known, and refused with a reason.
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    moderation: Any = None
    prediction: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        """Raises ApiError 400 for what cannot be honoured."""
        refuse(self, _REFUSED)
        self.check_streaming()
        if self.store:
            raise unsupported_parameter("store", "chat completions are not kept")
        if self.modalities is not None and self.modalities != ["text"]:
            raise unsupported_parameter("modalities", "answers are text")
        if self.verbosity not in (None, "medium"):
            raise unsupported_parameter("verbosity", "the model has no such setting")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError("top_logprobs needs logprobs = true.", param="top_logprobs")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ApiError(
                "max_tokens and max_completion_tokens differ.",
                param="max_tokens",
                remedy="Give one of them.",
            )

    @property
    def answer_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


_REFUSED = {
    "audio": "answers are text",
    "function_call": "it is deprecated; use tool_choice",
    "functions": "it is deprecated; use tools",
    "moderation": "there is no moderation model",
    "prediction": "predicted outputs are not built; --speculative ngram copies from the prompt",
    "web_search_options": "the server reaches no network",
}
#: Fields of a message by the roles that may have them.
_FIELD_ROLES = {
    "tool_calls": ("assistant",),
    "reasoning_content": ("assistant",),
    "refusal": ("assistant",),
    "annotations": ("assistant",),
    "tool_call_id": ("tool",),
}


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates see them. ``developer`` becomes ``system``, the name that
    templates know; a call's arguments become an object.

    Raises ApiError 400, naming the message, for one that makes no sense in its role.
    """
    return [_template_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def _template_message(message: Message, at: str) -> dict[str, Any]:
    for field, roles in _FIELD_ROLES.items():
        if getattr(message, field) and message.role not in roles:
            raise ApiError(
                f"{at}.{field}: a message of role {message.role} has none.", param=f"{at}.{field}"
            )
    for field in ("audio", "function_call"):
        if getattr(message, field) is not None:
            raise unsupported_parameter(f"{at}.{field}", "it is not part of a text chat")
    out: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{at}.content"),
    }
    if message.name is not None:
        out["name"] = message.name
    if message.role == "tool":
        if message.tool_call_id is None:
            raise ApiError(
                f"{at}.tool_call_id is missing: it tells which call the result belongs to.",
                param=f"{at}.tool_call_id",
            )
        out["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        out["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call, f"{at}.tool_calls[{i}].function.arguments"),
                },
            }
            for i, call in enumerate(message.tool_calls)
        ]
    if out["content"] is None:
        if message.refusal:
            out["content"] = message.refusal
        elif message.role != "assistant" or not message.tool_calls:
            raise ApiError(f"{at}.content is missing.", param=f"{at}.content")
        else:
            out["content"] = ""  # templates of most models join it with text
    return out


def _text(content: str | list[dict[str, Any]] | None, at: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in ("text", "refusal"):
            raise unsupported_parameter(
                f"{at}[{i}]", f"the model takes text, not parts of type {str(kind)[:100]!r}"
            )
        if not isinstance(text, str):
            raise ApiError(f"{at}[{i}].{kind} is missing.", param=f"{at}[{i}]")
        texts.append(text)
    return "\n".join(texts)


def _arguments(call: CalledTool, at: str) -> dict[str, Any]:
    try:
        value = loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiError(f"{at} must be a JSON object as text.", param=at)
    return value


# ---- answers


def usage_document(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def choice_document(choice: Choice, tokenizer: Tokenizer) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.content if choice.content or not choice.tool_calls else None,
        "refusal": None,
    }
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [call_document(c) for c in choice.tool_calls]
    logprobs = choice.logprobs
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None if logprobs is None else logprobs_document(logprobs, tokenizer),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }


def call_document(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def logprobs_document(logprobs: list[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """OpenAI's ``logprobs`` of a chat choice."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token_id, skip_special_tokens=False)
        text = raw.decode("utf-8", errors="replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}

    return {
        "content": [
            {
                **entry(t.chosen.token_id, t.chosen.logprob),
                "top_logprobs": [entry(top.token_id, top.logprob) for top in t.top],
            }
            for t in logprobs
        ],
        "refusal": None,
    }


def finite(logprob: float) -> float:
    """A log-probability that JSON can carry: OpenAI writes -9999 for zero probability."""
    return max(logprob, -9999.0)
