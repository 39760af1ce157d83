"""Items of the Responses API (messages, calls, results, reasoning) to chat messages."""

from __future__ import annotations

from typing import Any

from edge_infer.server.errors import ApiError, unsupported_parameter

_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
_ROLES = ("user", "system", "developer", "assistant")


def chat_messages(
    history: list[dict[str, Any]], given: str | list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Messages of chat completions for the items of earlier responses and a request's input.

    Raises ApiError 400 that names the item (``input[2].content``) for one that makes no sense.
    """
    chat = _Chat()
    for item in history:
        chat.add(item, "input")
    if isinstance(given, str):
        chat.add({"role": "user", "content": given}, "input")
    else:
        for i, item in enumerate(given):
            chat.add(item, f"input[{i}]")
    return chat.messages


class _Chat:
    """An assistant's reasoning, text and calls are items of their own, but one chat message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning = ""

    def add(self, item: dict[str, Any], at: str) -> None:
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            self._message(item, at)
        elif kind == "function_call":
            self._call(item, at)
        elif kind == "function_call_output":
            content = _text(item.get("output"), f"{at}.output")
            call_id = _string(item, "call_id", at)
            self._reasoning = ""
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            self._reasoning += _text(parts, f"{at}.content") if parts else ""
        else:
            raise unsupported_parameter(at, f"items of type {str(kind)[:100]!r} do not exist here")

    def _message(self, item: dict[str, Any], at: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise ApiError(
                f"{at}.role is {str(role)[:100]!r}; {', '.join(_ROLES)} exist.", param=f"{at}.role"
            )
        message = {"role": role, "content": _text(item.get("content"), f"{at}.content")}
        if role == "assistant" and self._reasoning:
            message["reasoning_content"] = self._reasoning
        self._reasoning = ""
        self.messages.append(message)

    def _call(self, item: dict[str, Any], at: str) -> None:
        call = {
            "id": _string(item, "call_id", at),
            "type": "function",
            "function": {
                "name": _string(item, "name", at),
                "arguments": _string(item, "arguments", at),
            },
        }
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant":
            last = {"role": "assistant", "content": None}
            self.messages.append(last)
        if self._reasoning:
            last["reasoning_content"] = last.get("reasoning_content", "") + self._reasoning
            self._reasoning = ""
        last.setdefault("tool_calls", []).append(call)


def _string(item: dict[str, Any], name: str, at: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ApiError(f"{at}.{name} must be a text.", param=f"{at}.{name}")
    return value


def _text(content: Any, at: str) -> str:
    """The text of a content: itself, or its parts joined by newlines as chat messages' are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(f"{at} must be a text or a list of parts.", param=at)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        field = _TEXTS.get(kind) if isinstance(kind, str) else None
        if field is None:
            raise unsupported_parameter(
                f"{at}[{i}]", f"the model takes text, not parts of type {str(kind)[:100]!r}"
            )
        texts.append(_string(part, field, f"{at}[{i}]"))
    return "\n".join(texts)
