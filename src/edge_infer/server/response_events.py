"""A chat generation's events as a Response of the Responses API: its items, its stream of events.

One builder makes both: a response that is not streamed is the last state of the same events.
"""

from __future__ import annotations

import time
from typing import Any

from edge_infer.engine.tokenizer import Tokenizer
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
from edge_infer.server.protocol.chat import logprobs_document

#: The part of a message or reasoning item that holds its text: (part type, event name).
_PARTS = {
    "message": ("output_text", "response.output_text"),
    "reasoning": ("reasoning_text", "response.reasoning_text"),
}


class ResponseBuilder:
    """``document`` is the response so far; the methods change it and return what a stream shows.

    ``document`` must have the request's own fields; ``with_logprobs`` keeps those of the text.
    """

    def __init__(
        self, document: dict[str, Any], tokenizer: Tokenizer, *, with_logprobs: bool = False
    ) -> None:
        self.document = {**document, "status": "in_progress", "output": []}
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._sequence = 0
        self._open: dict[str, Any] | None = None  # the item that still grows
        self._pieces: list[str] = []  # its text

    def begin(self) -> list[dict[str, Any]]:
        return [self._whole("response.created"), self._whole("response.in_progress")]

    def add(self, event: Event) -> list[dict[str, Any]]:
        """What one event of the generation adds."""
        if isinstance(event, Content):
            return self._text("message", event.text, event)
        if isinstance(event, Reasoning):
            return self._text("reasoning", event.text)
        if isinstance(event, ToolCallStart):
            return self._start_call(event)
        if isinstance(event, ToolCallArguments):
            self._pieces.append(event.text)
            name = "response.function_call_arguments.delta"
            return [self._item_event(name, delta=event.text)]
        if isinstance(event, Finished):
            cut = event.finish_reason == "length"
            shown = self._close("incomplete" if cut else "completed")
            self.document["status"] = "incomplete" if cut else "completed"
            if cut:
                self.document["incomplete_details"] = {"reason": "max_output_tokens"}
            return shown
        self.document["usage"] = usage_document(event)
        return []

    def end(self) -> list[dict[str, Any]]:
        """The last event of a generation that ended by itself."""
        self.document["completed_at"] = time.time()
        return [self._whole(f"response.{self.document['status']}")]

    def fail(self, code: str, message: str) -> list[dict[str, Any]]:
        """The last event of a generation that an error ended."""
        shown = self._close("incomplete")
        self.document["status"] = "failed"
        self.document["error"] = {"code": code, "message": message}
        return [*shown, self._whole("response.failed")]

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _whole(self, kind: str) -> dict[str, Any]:
        return self._event(kind, response={**self.document, "output": [*self.document["output"]]})

    def _item_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self._open is not None
        at = {"item_id": self._open["id"], "output_index": len(self.document["output"])}
        return self._event(kind, **at, **fields)

    def _part_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._item_event(kind, content_index=0, **fields)

    def _start(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        shown = self._close("completed")
        self._open = item
        self._pieces = []
        index = len(self.document["output"])
        # A copy, since the item changes before this event may be serialised.
        added = self._event("response.output_item.added", output_index=index, item={**item})
        return [*shown, added]

    def _text(self, kind: str, text: str, content: Content | None = None) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []
        if self._open is None or self._open["type"] != kind:
            if not text:  # log-probabilities of markup: they belong to no text
                return []
            own: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
            item = {"type": kind, "id": new_id(_ID[kind]), "status": "in_progress"}
            shown += self._start({**item, **own, "content": []})
            shown.append(self._part_event("response.content_part.added", part=_part(kind, "")))
        self._pieces.append(text)
        extra: dict[str, Any] = {}
        if kind == "message":
            extra["logprobs"] = self._logprobs(content)
        shown.append(self._part_event(f"{_PARTS[kind][1]}.delta", delta=text, **extra))
        return shown

    def _logprobs(self, content: Content | None) -> list[dict[str, Any]]:
        if not self._with_logprobs or content is None or not content.logprobs:
            return []
        assert self._open is not None
        found: list[dict[str, Any]]
        found = logprobs_document(content.logprobs, self._tokenizer)["content"]
        self._open.setdefault("_logprobs", []).extend(found)
        return found

    def _start_call(self, event: ToolCallStart) -> list[dict[str, Any]]:
        return self._start(
            {
                "type": "function_call",
                "id": new_id("fc_"),
                "call_id": event.id,
                "name": event.name,
                "arguments": "",
                "status": "in_progress",
            }
        )

    def _close(self, status: str) -> list[dict[str, Any]]:
        """Completes the open item, if there is one."""
        item, text = self._open, "".join(self._pieces)
        if item is None:
            return []
        if item["type"] == "function_call":
            item["arguments"] = text
            name = "response.function_call_arguments.done"
            shown = [self._item_event(name, arguments=text, name=item["name"])]
        else:
            logprobs = item.pop("_logprobs", [])
            part = _part(item["type"], text, logprobs)
            extra = {"logprobs": logprobs} if item["type"] == "message" else {}
            name = f"{_PARTS[item['type']][1]}.done"
            shown = [
                self._part_event(name, text=text, **extra),
                self._part_event("response.content_part.done", part=part),
            ]
            item["content"] = [part]
        item["status"] = status
        index = len(self.document["output"])
        shown.append(self._event("response.output_item.done", output_index=index, item=item))
        self.document["output"].append(item)
        self._open = None
        return shown


_ID = {"message": "msg_", "reasoning": "rs_"}


def _part(kind: str, text: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _PARTS[kind][0], "text": text}
    if kind == "message":
        part |= {"annotations": [], "logprobs": logprobs or []}
    return part


def usage_document(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
