"""A chat generation's events as a message of Anthropic's API: its blocks, its stream of events."""

from __future__ import annotations

from typing import Any

from edge_infer.server.json_text import loads
from edge_infer.server.pipeline import (
    Content,
    Event,
    Finished,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
    Usage,
    new_id,
)

_FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


class MessageBuilder:
    """``document`` is the message so far; the methods change it and return what a stream shows."""

    def __init__(self, model: str, *, shows_thinking: bool) -> None:
        self.document: dict[str, Any] = {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_document(Usage(0, 0)),
        }
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: dict[str, Any] | None = None  # the block that still grows
        self._pieces: list[str] = []

    def begin(self, prompt_tokens: int) -> list[dict[str, Any]]:
        self.document["usage"] = usage_document(Usage(prompt_tokens, 0))
        return [{"type": "message_start", "message": {**self.document, "content": []}}]

    def add(self, event: Event) -> list[dict[str, Any]]:
        """What one event of the generation adds."""
        if isinstance(event, Content):
            return self._grow({"type": "text", "text": ""}, event.text)
        if isinstance(event, Reasoning):
            if not self._shows_thinking:
                return []
            return self._grow({"type": "thinking", "thinking": "", "signature": ""}, event.text)
        if isinstance(event, ToolCallStart):
            block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
            return [*self._close(), self._start(block)]
        if isinstance(event, ToolCallArguments):
            return [self._delta(event.text)]
        if isinstance(event, Finished):
            shown = self._close()
            self.document |= stop_fields(event)
            return shown
        self.document["usage"] = usage_document(event)
        return []

    def end(self) -> list[dict[str, Any]]:
        """The last events of a generation."""
        delta = {k: self.document[k] for k in ("stop_reason", "stop_sequence")}
        usage = self.document["usage"]
        return [
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]

    def _grow(self, block: dict[str, Any], text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        if self._open is not None and self._open["type"] == block["type"]:
            return [self._delta(text)]
        return [*self._close(), self._start(block), self._delta(text)]

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        self._open = block
        self._pieces = []
        self._index += 1
        # A copy, since the block changes before this event may be serialised.
        return {"type": "content_block_start", "index": self._index, "content_block": {**block}}

    def _delta(self, text: str) -> dict[str, Any]:
        assert self._open is not None
        self._pieces.append(text)
        kind = self._open["type"]
        delta = {"type": _DELTAS[kind], _FIELDS[kind]: text}
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        block, text = self._open, "".join(self._pieces)
        if block is None:
            return []
        self._open = None
        if block["type"] != "tool_use":
            block[_FIELDS[block["type"]]] = text
            self.document["content"].append(block)
        elif (arguments := _object(text)) is not None:
            block["input"] = arguments
            self.document["content"].append(block)
        # else: cut by max_tokens in the middle. No object, so no call that a client could make.
        return [{"type": "content_block_stop", "index": self._index}]


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def stop_fields(event: Finished) -> dict[str, Any]:
    """``stop_reason`` and ``stop_sequence`` of a choice that is complete."""
    if event.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if event.finish_reason == "tool_calls":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(event.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": event.stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def usage_document(usage: Usage) -> dict[str, Any]:
    """Token counts; ``input_tokens`` are those that the cache did not have."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
