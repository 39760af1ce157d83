"""Mistral: ``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]``, and since its eleventh tokenizer
``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping

from edge_infer.server.grammar import GrammarSpec
from edge_infer.server.tools.declared import Tool
from edge_infer.server.tools.format import ToolFormat, json_alternative
from edge_infer.server.tools.lark import LarkBuilder, either, literal
from edge_infer.server.tools.stream import JsonToolStream, ToolStream

_ALPHABET = string.ascii_letters + string.digits
_LIST_HEADER = re.compile(
    r'\s*\[?\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=\{)'
)
_ID = r'(?:\s*,\s*"id"\s*:\s*"[^"]*")?'  # which templates show in earlier calls
_HEADER = re.compile(r"\s*(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*(?=\{)")


class Mistral(ToolFormat):
    name = "mistral"
    opening = "[TOOL_CALLS]"
    tags: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        return f"{literal(tool.name)} {b.tag('[ARGS]')} {b.json(tool.schema)}"

    def stream(self, tools: Mapping[str, Tool], constrained: bool = False) -> ToolStream:
        return JsonToolStream(
            self.opening,
            tools,
            self.new_id,
            header=_HEADER,
            shape=None,
            footer=re.compile(r"\s*"),
            constrained=constrained,
        )

    def new_id(self) -> str:
        """Nine letters and digits: the templates of this family refuse anything else."""
        return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class MistralList(Mistral):
    """One list of calls after one tag."""

    name = "mistral-list"
    tags = ("[TOOL_CALLS]",)

    def grammar(
        self,
        tools: Mapping[str, Tool],
        choice: str = "auto",
        parallel: bool = True,
        text: GrammarSpec | None = None,
    ) -> GrammarSpec:
        b = LarkBuilder()
        offered = list(tools.values()) if choice in ("auto", "required") else [tools[choice]]
        call = b.rule(either([self.call(b, tool) for tool in offered]))
        more = f"({literal(', ')} {call})*" if parallel else ""
        listed = f'" "? "[" {call} {more} "]"'
        if choice != "auto":
            return b.spec(f"{b.tag(self.opening)} {listed}")
        if text is not None:
            return b.spec(f"{json_alternative(b, text)} | {b.tag(self.opening)} {listed}")
        return b.spec(f"ANY | {b.until(self.opening)} {listed}")

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        head = literal('{"name": "' + tool.name + '", "arguments": ')
        return f"{head} {b.json(tool.schema)} {literal('}')}"

    def stream(self, tools: Mapping[str, Tool], constrained: bool = False) -> ToolStream:
        return JsonToolStream(
            self.opening,
            tools,
            self.new_id,
            header=_LIST_HEADER,
            shape=None,
            footer=re.compile(rf"{_ID}\s*\}}\s*\]"),
            again=re.compile(rf"{_ID}\s*\}}\s*,\s*"),
            constrained=constrained,
        )
