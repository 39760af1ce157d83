"""Hermes and Qwen: ``<tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from edge_infer.server.tools.declared import Tool
from edge_infer.server.tools.format import ToolFormat
from edge_infer.server.tools.lark import LarkBuilder, literal
from edge_infer.server.tools.stream import JsonToolStream, ToolStream

_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_FOOTER = re.compile(r"\s*\}\s*</tool_call>")


class Hermes(ToolFormat):
    name = "hermes"
    opening = "<tool_call>"
    tags = ("<tool_call>", "</tool_call>")
    separator = literal("\n")

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        head = literal('\n{"name": "' + tool.name + '", "arguments": ')
        return f"{head} {b.json(tool.schema)} {literal('}' + chr(10))} {b.tag('</tool_call>')}"

    def stream(self, tools: Mapping[str, Tool], constrained: bool = False) -> ToolStream:
        return JsonToolStream(
            self.opening,
            tools,
            self.new_id,
            header=_HEADER,
            shape='{"name":"',
            footer=_FOOTER,
            constrained=constrained,
        )
