"""What a family's format of tool calls provides: a grammar and a reader."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping

from edge_infer.errors import ConfigError
from edge_infer.server.grammar import GrammarSpec
from edge_infer.server.tools.declared import ANY_OBJECT, Tool
from edge_infer.server.tools.lark import LarkBuilder, either
from edge_infer.server.tools.stream import JsonToolStream, ToolStream

#: The beginning of a call as an object, up to its arguments.
OBJECT_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


class ToolFormat(ABC):
    """One family's way to write calls: each begins with ``opening``.

    ``tags``: texts of the format that may be special tokens, which must stay in the text.
    """

    name: str
    opening: str
    tags: tuple[str, ...]
    separator = ""  # Lark, between two calls

    def grammar(
        self,
        tools: Mapping[str, Tool],
        choice: str = "auto",
        parallel: bool = True,
        text: GrammarSpec | None = None,
    ) -> GrammarSpec:
        """What an answer may be.

        ``choice``: ``auto`` (text and calls, whose format is enforced once they begin),
        ``required`` (calls only), or the name of the tool to call. ``parallel``: more than one
        call. ``text``: with auto, what the answer must be where it is no call (a JSON grammar).
        Raises ConfigError for a combination that cannot be expressed.
        """
        b = LarkBuilder()
        offered = list(tools.values()) if choice in ("auto", "required") else [tools[choice]]
        call = b.rule(either([self.call(b, tool) for tool in offered]))
        if choice != "auto":
            return b.spec(self.calls(b, call, parallel))
        if text is not None:
            return b.spec(f"{_json_text(b, text)} | {self.calls(b, call, parallel)}")
        return b.spec(self.text_and_calls(b, call, offered, parallel))

    def calls(self, b: LarkBuilder, call: str, parallel: bool) -> str:
        """Lark for calls alone; ``call`` is the rule of one, after the opening tag."""
        first = f"{b.tag(self.opening)} {call}"
        return f"{first} ({self.separator} {first})*" if parallel else first

    def text_and_calls(self, b: LarkBuilder, call: str, offered: list[Tool], parallel: bool) -> str:
        """Lark for text that may have calls in it."""
        found = f"{b.until(self.opening)} {call}"
        return f"({found})* ANY" if parallel else f"ANY | {found}"

    @abstractmethod
    def call(self, b: LarkBuilder, tool: Tool) -> str:
        """Lark for one call, after the opening tag."""

    @abstractmethod
    def stream(self, tools: Mapping[str, Tool], constrained: bool = False) -> ToolStream:
        """A reader of one answer. ``constrained``: the grammar is enforced, so arguments may go out
        while they are written."""

    def new_id(self) -> str:
        """An id for a call."""
        return f"call_{uuid.uuid4().hex[:24]}"


class JsonToolFormat(ToolFormat):
    """A format whose arguments are JSON; the attributes are those of :class:`JsonToolStream`."""

    header: re.Pattern[str]
    shape: str | None = None
    footer: re.Pattern[str]
    again: re.Pattern[str] | None = None
    at_start = False

    def stream(self, tools: Mapping[str, Tool], constrained: bool = False) -> ToolStream:
        return JsonToolStream(
            self.opening,
            tools,
            self.new_id,
            header=self.header,
            shape=self.shape,
            footer=self.footer,
            again=self.again,
            at_start=self.at_start,
            constrained=constrained,
        )


def _json_text(b: LarkBuilder, text: GrammarSpec) -> str:
    if text.kind == "json_object":
        return b.json(ANY_OBJECT)
    if text.kind != "json_schema":
        raise ConfigError(
            f"tools cannot be combined with a {text.kind} grammar.",
            remedy="Use tool_choice none, or a JSON schema.",
            code="invalid_grammar",
        )
    return b.json(text.value)
