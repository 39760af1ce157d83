"""What the engine generates for one choice, as events: reasoning, text, tool calls, the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_infer.engine.outputs import TokenLogprobs
from edge_infer.server.pipeline import (
    Content,
    Event,
    Finished,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
)
from edge_infer.server.reasoning import ReasoningSplitter
from edge_infer.server.tools import CallArguments, CallStart, ToolStream

if TYPE_CHECKING:
    from edge_infer.engine.serving import Delta


class ChoiceReader:
    """Deltas of choice ``index`` to events. ``splitter``: None for a model that does not reason;
    ``calls``: None where no tool may be called. ``reasons``: the prompt ends inside reasoning."""

    def __init__(
        self,
        index: int,
        splitter: ReasoningSplitter | None = None,
        calls: ToolStream | None = None,
        reasons: bool = False,
    ) -> None:
        self.index = index
        self.tokens = 0
        self.reasoning_tokens = 0  # those that came while reasoning went on
        self._splitter = splitter
        self._calls = calls
        self._reasons = reasons
        self._called = False
        self._logprobs: list[TokenLogprobs] | None = None  # not yet given out

    def take(self, delta: Delta) -> list[Event]:
        """The events that the delta completes."""
        self.tokens += len(delta.token_ids)
        if delta.logprobs is not None:
            self._logprobs = (self._logprobs or []) + delta.logprobs
        ended = delta.finish_reason is not None
        events = self._split(delta.text, ended)
        self.reasoning_tokens += len(delta.token_ids) if self._reasons else 0
        if delta.finish_reason is not None:
            if self._logprobs:
                events.append(self._content(""))
            called = self._called and delta.finish_reason == "stop"
            reason = "tool_calls" if called else delta.finish_reason
            events.append(Finished(self.index, reason, delta.stop_reason))
        return events

    def _split(self, text: str, ended: bool) -> list[Event]:
        if self._splitter is None:
            return self._read(text, ended)
        events: list[Event] = []
        parts = self._splitter.feed(text) + (self._splitter.finish() if ended else [])
        for kind, piece in parts:
            self._reasons = kind == "reasoning"
            if self._reasons:
                events.append(Reasoning(self.index, piece))
            else:
                events.extend(self._read(piece, False))
        return events + self._read("", ended)

    def _read(self, text: str, ended: bool) -> list[Event]:
        """Events of text that is no reasoning."""
        if self._calls is None:
            return [self._content(text)] if text else []
        events: list[Event] = []
        for part in self._calls.feed(text) + (self._calls.finish() if ended else []):
            if isinstance(part, CallStart):
                self._called = True
                events.append(ToolCallStart(self.index, part.call_index, part.id, part.name))
            elif isinstance(part, CallArguments):
                events.append(ToolCallArguments(self.index, part.call_index, part.text))
            else:
                events.append(self._content(part.text))
        return events

    def _content(self, text: str) -> Content:
        logprobs, self._logprobs = self._logprobs, [] if self._logprobs is not None else None
        return Content(self.index, text, logprobs)
