"""Mistral: ``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]``, and since its eleventh tokenizer
``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

from __future__ import annotations

import re
import secrets
import string

from edge_infer.server.tools.declared import Tool
from edge_infer.server.tools.format import JsonToolFormat
from edge_infer.server.tools.lark import LarkBuilder, literal

_ALPHABET = string.ascii_letters + string.digits
_LIST_HEADER = re.compile(
    r'\s*\[?\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=\{)'
)
_ID = r'(?:\s*,\s*"id"\s*:\s*"[^"]*")?'  # which templates show in earlier calls
_HEADER = re.compile(r"\s*(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*(?=\{)")


class Mistral(JsonToolFormat):
    name = "mistral"
    opening = "[TOOL_CALLS]"
    tags: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    header = _HEADER
    footer = re.compile(r"\s*")

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        return f"{literal(tool.name)} {b.tag('[ARGS]')} {b.json(tool.schema)}"

    def new_id(self) -> str:
        """Nine letters and digits: the templates of this family refuse anything else."""
        return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class MistralList(Mistral):
    """One list of calls after one tag."""

    name = "mistral-list"
    tags = ("[TOOL_CALLS]",)
    header = _LIST_HEADER
    footer = re.compile(rf"{_ID}\s*\}}\s*\]")
    again = re.compile(rf"{_ID}\s*\}}\s*,\s*")

    def calls(self, b: LarkBuilder, call: str, parallel: bool) -> str:
        return f"{b.tag(self.opening)} {self._list(call, parallel)}"

    def text_and_calls(self, b: LarkBuilder, call: str, offered: list[Tool], parallel: bool) -> str:
        return f"ANY | {b.until(self.opening)} {self._list(call, parallel)}"

    def _list(self, call: str, parallel: bool) -> str:
        more = f"({literal(', ')} {call})*" if parallel else ""
        return f'" "? "[" {call} {more} "]"'

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        head = literal('{"name": "' + tool.name + '", "arguments": ')
        return f"{head} {b.json(tool.schema)} {literal('}')}"
