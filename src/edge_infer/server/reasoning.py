"""Reasoning in model text: what stands between two tags is told apart from the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edge_infer.server.grammar import ReasoningPrefix
from edge_infer.server.tools.stream import overlap

Part = tuple[Literal["reasoning", "text"], str]

#: Opening and closing tags of the families, looked for in the chat template in this order.
_TAGS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought\n", "<channel|>"),
    ("<reasoning>", "</reasoning>"),
)


@dataclass(frozen=True)
class ReasoningFormat:
    """The tags around a model's reasoning."""

    open_tag: str
    close_tag: str

    def starts_open(self, prompt: str) -> bool:
        """Whether the rendered prompt ends inside reasoning: its template has opened it."""
        return prompt.rstrip().endswith(self.open_tag.rstrip())

    def prefix(self, prompt: str) -> ReasoningPrefix:
        """For a grammar that describes the answer only."""
        return ReasoningPrefix(self.open_tag, self.close_tag, self.starts_open(prompt))

    def splitter(self, prompt: str) -> ReasoningSplitter:
        return ReasoningSplitter(self.open_tag, self.close_tag, self.starts_open(prompt))


def reasoning_for(chat_template: str | None) -> ReasoningFormat | None:
    """The tags that the chat template writes or cuts at; None for models that do not reason."""
    for open_tag, close_tag in _TAGS:
        if chat_template and close_tag in chat_template:
            return ReasoningFormat(open_tag, close_tag)
    return None


class ReasoningSplitter:
    """One answer's text to reasoning and text, in pieces of any size.

    Reasoning comes first or not at all; later tags are text. White space around the tags is
    dropped. ``starts_open``: the prompt ends with the opening tag. Reasoning that never ends stays
    reasoning.
    """

    def __init__(self, open_tag: str, close_tag: str, starts_open: bool = False) -> None:
        self._open_tag = open_tag
        self._close_tag = close_tag
        self._state: Literal["start", "reasoning", "after", "text"] = (
            "reasoning" if starts_open else "start"
        )
        self._buffer = ""
        self._space = ""  # inside reasoning: dropped when the closing tag follows
        self._begun = False  # reasoning has had text

    def feed(self, text: str) -> list[Part]:
        """Takes the next piece of text."""
        self._buffer += text
        return self._read(False)

    def finish(self) -> list[Part]:
        """Ends the text: gives out what was held back."""
        return self._read(True)

    def _read(self, ended: bool) -> list[Part]:
        out: list[Part] = []
        if self._state == "start":
            begin = self._buffer.lstrip()
            if begin.startswith(self._open_tag):
                self._state = "reasoning"
                self._buffer = begin[len(self._open_tag) :]
            elif ended or not self._open_tag.startswith(begin):
                self._state = "text"
        if self._state == "reasoning":
            at = self._buffer.find(self._close_tag)
            keep = 0 if ended else overlap(self._buffer, self._close_tag)
            end = at if at >= 0 else len(self._buffer) - keep
            self._reason(self._buffer[:end], out)
            self._buffer = self._buffer[end:]
            if at >= 0:
                self._buffer = self._buffer[len(self._close_tag) :]
                self._state = "after"
        if self._state == "after":
            self._buffer = self._buffer.lstrip()
            if self._buffer:
                self._state = "text"
        if self._state == "text" and self._buffer:
            out.append(("text", self._buffer))
            self._buffer = ""
        return out

    def _reason(self, text: str, out: list[Part]) -> None:
        text = self._space + text
        if not self._begun:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._begun = True
            out.append(("reasoning", kept))
