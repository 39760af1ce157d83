"""POST /v1/messages (Anthropic's API): the request, and how it reads as a chat request."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from edge_infer.server.errors import ApiError, unsupported_parameter
from edge_infer.server.protocol.chat import ChatRequest
from edge_infer.server.protocol.common import Strict, refuse
from edge_infer.server.protocol.translate import chat_request

Block = dict[str, Any]


class InputMessage(Strict):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class CustomTool(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: bool | None = None


class ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    format: OutputFormat | None = None
    effort: str | None = None


class TokenCountRequest(Strict):
    """What the prompt is made of."""

    model: str
    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Accepted without effect: prefixes are cached without being marked.
    cache_control: Any = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    # Known, and refused with a reason.
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    def check(self) -> None:
        """Raises ApiError 400 for what cannot be honoured."""
        refuse(self, _REFUSED)
        thinking = self.thinking
        if thinking is None or thinking.type in ("disabled", "adaptive"):
            return
        if thinking.type == "enabled":
            raise unsupported_parameter(
                "thinking.budget_tokens",
                "reasoning has no budget of its own",
                'Use {"type": "adaptive"}; max_tokens bounds reasoning and answer together.',
            )
        raise unsupported_parameter("thinking", f"{thinking.type!r} does not exist here")

    @property
    def shows_thinking(self) -> bool:
        """Clients that did not ask for thinking expect the first block to be text."""
        thinking = self.thinking
        return bool(thinking and thinking.type == "adaptive" and thinking.display != "omitted")

    def chat(self, **fields: Any) -> ChatRequest:
        """The chat request that asks for the same.

        Raises ApiError 400, naming the parameter, for blocks and tools that cannot be honoured.
        """
        self.check()
        messages = chat_messages(self.system, self.messages)
        fields |= {
            "model": self.model,
            "messages": messages,
            "reasoning_effort": self._effort(),
        }
        if messages[-1]["role"] == "assistant":  # the beginning of the answer
            fields["continue_final_message"] = True
        fields |= self._tools()
        if self.output_config is not None and self.output_config.format is not None:
            schema = {"name": "format", "schema": self.output_config.format.json_schema}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return chat_request(fields)

    def _effort(self) -> str | None:
        """Without thinking there is no reasoning; adaptive leaves it to the model."""
        effort = self.output_config.effort if self.output_config is not None else None
        if self.thinking is not None and self.thinking.type == "adaptive":
            return effort
        if effort is not None:
            raise unsupported_parameter(
                "output_config.effort",
                "it sets the amount of reasoning, of which there is none without thinking",
                'Set thinking to {"type": "adaptive"}.',
            )
        return "none"

    def _tools(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.tools:
            out["tools"] = [_function(tool) for tool in self.tools]
        choice = self.tool_choice
        if choice is None:
            return out
        out["tool_choice"] = {"any": "required"}.get(choice.type, choice.type)
        if choice.type == "tool":
            if choice.name is None:
                raise ApiError("tool_choice.name is missing.", param="tool_choice.name")
            out["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        if choice.disable_parallel_tool_use is not None:
            out["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        return out


class MessagesRequest(TokenCountRequest):
    """The published request, and ``seed``."""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    seed: int | None = None

    def chat(self, **fields: Any) -> ChatRequest:
        return super().chat(
            **fields,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop_sequences,
            seed=self.seed,
        )


_REFUSED = {
    "container": "there is no code execution",
    "context_management": "nothing is cut from a conversation",
    "diagnostics": "there are none",
    "inference_geo": "the model runs on this machine",
    "mcp_servers": "the server reaches no network",
    "speed": "there is one",
    "user_profile_id": "there are no profiles",
    "workspace_id": "there are no workspaces",
}


def _function(tool: CustomTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def chat_messages(
    system: str | list[Block] | None, messages: list[InputMessage]
) -> list[dict[str, Any]]:
    """Messages of chat completions. Neighbours of one role become one message, as in Anthropic's
    API; tool results become messages of their own.

    Raises ApiError 400 that names the block for one that makes no sense.
    """
    out: list[dict[str, Any]] = []
    if system:
        out.append({"role": "system", "content": _text(system, "system")})
    names: dict[str, str] = {}  # of calls, by id
    for i, message in enumerate(messages):
        at = f"messages[{i}].content"
        if isinstance(message.content, str):
            _say(out, message.role, message.content)
            continue
        for j, block in enumerate(message.content):
            _add_block(out, names, message.role, block, f"{at}[{j}]")
    if all(message["role"] == "system" for message in out):
        raise ApiError("messages has no content of a user.", param="messages")
    return out


def _say(out: list[dict[str, Any]], role: str, text: str) -> None:
    last = out[-1] if out else {}
    if last.get("role") == role and not last.get("tool_calls"):
        last["content"] = f"{last['content']}\n{text}" if last["content"] else text
    else:
        out.append({"role": role, "content": text})


def _add_block(
    out: list[dict[str, Any]], names: dict[str, str], role: str, block: Block, at: str
) -> None:
    kind = block.get("type")
    if kind == "text":
        _say(out, role, _string(block, "text", at))
    elif kind == "tool_result" and role == "user":
        call_id = _string(block, "tool_use_id", at)
        if call_id not in names:
            raise ApiError(
                f"{at}.tool_use_id: no tool_use block before it has the id {call_id[:100]!r}.",
                param=f"{at}.tool_use_id",
            )
        content = _text(block.get("content") or "", f"{at}.content")
        if block.get("is_error"):  # chat templates know no other way to say so
            content = f"Error: {content}"
        result = {"role": "tool", "tool_call_id": call_id, "content": content}
        out.append({**result, "name": names[call_id]})
    elif kind in ("tool_use", "thinking", "redacted_thinking") and role == "assistant":
        if not out or out[-1]["role"] != "assistant":
            out.append({"role": "assistant", "content": ""})
        if kind == "tool_use":
            call = _call(block, at)
            names[call["id"]] = call["function"]["name"]
            out[-1].setdefault("tool_calls", []).append(call)
        elif kind == "thinking":
            thought = _string(block, "thinking", at)
            out[-1]["reasoning_content"] = out[-1].get("reasoning_content", "") + thought
    else:
        raise unsupported_parameter(
            at, f"blocks of type {str(kind)[:100]!r} do not exist here for the role {role}"
        )


def _call(block: Block, at: str) -> dict[str, Any]:
    if not isinstance(block.get("input"), dict):
        raise ApiError(f"{at}.input must be an object.", param=f"{at}.input")
    name = _string(block, "name", at)
    arguments = json.dumps(block["input"], ensure_ascii=False)
    function = {"name": name, "arguments": arguments}
    return {"id": _string(block, "id", at), "type": "function", "function": function}


def _string(block: Block, name: str, at: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise ApiError(f"{at}.{name} must be a text.", param=f"{at}.{name}")
    return value


def _text(content: str | list[Any], at: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for i, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise unsupported_parameter(f"{at}[{i}]", "the model takes blocks of text only")
        texts.append(_string(block, "text", f"{at}[{i}]"))
    return "\n".join(texts)
