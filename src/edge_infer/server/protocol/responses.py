"""POST /v1/responses: the request, and how it reads as a chat request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from edge_infer.server.errors import ApiError, unsupported_parameter
from edge_infer.server.protocol.chat import ChatRequest, FunctionName
from edge_infer.server.protocol.common import HarmlessFields, Strict, refuse
from edge_infer.server.protocol.response_items import chat_messages
from edge_infer.server.protocol.translate import chat_request

LOGPROBS = "message.output_text.logprobs"


class FunctionTool(Strict):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Strict):
    type: Literal["function"]
    name: str


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(Strict):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(Strict):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponseStreamOptions(Strict):
    include_obfuscation: bool | None = None


class ResponsesRequest(HarmlessFields):
    """The published request; ``top_k`` to ``chat_template_kwargs`` are extensions with the names
    that chat completions have."""

    model: str | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    include: list[str] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Literal["disabled", "auto"] | None = None
    background: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None  # of built-in tools: there are none
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Known, and refused with a reason.
    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None

    def check(self) -> None:
        """Raises ApiError 400 for what cannot be honoured."""
        refuse(self, _REFUSED)
        if self.background:
            raise unsupported_parameter("background", "a response lives as long as its request")
        if self.truncation == "auto":
            raise unsupported_parameter("truncation", "nothing is cut from a conversation")
        for item in self.include or ():
            if item != LOGPROBS:
                raise unsupported_parameter("include", f"{item[:100]!r} does not exist here")
        if self.top_logprobs and LOGPROBS not in (self.include or ()):
            raise ApiError(f"top_logprobs needs include = [{LOGPROBS!r}].", param="top_logprobs")
        if self.stream_options is not None and not self.stream:
            raise ApiError("stream_options needs stream = true.", param="stream_options")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise unsupported_parameter(
                "stream_options.include_obfuscation", "events carry no padding"
            )
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise unsupported_parameter("text.verbosity", "the model has no such setting")
        for name in ("summary", "generate_summary", "context", "mode"):
            if self.reasoning is not None and getattr(self.reasoning, name) is not None:
                raise unsupported_parameter(f"reasoning.{name}", "reasoning is given as it is")

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def chat(self, history: list[dict[str, Any]]) -> ChatRequest:
        """The chat request that asks for the same; ``history`` are the items of earlier responses.

        Raises ApiError 400, naming the parameter, for items and formats that cannot be honoured.
        """
        self.check()
        messages = chat_messages(history, self.input)
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        tools, choice = self._tools()
        fields: dict[str, Any] = {
            "messages": messages,
            "tools": tools,
            "tool_choice": choice,
            "response_format": self._format(),
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning and self.reasoning.effort,
        }
        if self.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        for name in _SAME:
            fields[name] = getattr(self, name)
        return chat_request(fields)

    def _tools(self) -> tuple[list[dict[str, Any]] | None, Any]:
        """Tools and choice in the shape of chat completions."""
        tools, choice = self.tools, self.tool_choice
        if isinstance(choice, AllowedTools):
            allowed = {t.name for t in choice.tools}
            unknown = allowed - {t.name for t in tools or ()}
            if unknown:
                raise ApiError(
                    f"tool_choice allows {min(unknown)[:100]!r}, which is not in tools.",
                    param="tool_choice",
                )
            tools = [t for t in tools or () if t.name in allowed]
            choice = choice.mode
        if isinstance(choice, NamedTool):
            choice_document: Any = {"type": "function", "function": {"name": choice.name}}
        else:
            choice_document = choice
        if tools is None:
            return None, choice_document
        functions = [t.model_dump(exclude={"type"}, exclude_none=True) for t in tools]
        return [{"type": "function", "function": f} for f in functions], choice_document

    def _format(self) -> dict[str, Any] | None:
        wanted = self.text.format if self.text is not None else None
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return {"type": "json_object"}
        if wanted.json_schema is None:
            raise ApiError("text.format.schema is missing.", param="text.format.schema")
        schema = {"name": wanted.name, "schema": wanted.json_schema, "strict": wanted.strict}
        return {
            "type": "json_schema",
            "json_schema": {k: v for k, v in schema.items() if v is not None},
        }


_SAME = (
    *("model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop"),
    *("parallel_tool_calls", "chat_template_kwargs"),
)
_REFUSED = {
    "access_programs": "there are none",
    "background_options": "a response lives as long as its request",
    "context_management": "nothing is cut from a conversation",
    "conversation": "conversations are not kept; use previous_response_id",
    "image": "the model takes text",
    "moderation": "there is no moderation model",
    "prompt": "no prompts are kept; send instructions and input",
}
