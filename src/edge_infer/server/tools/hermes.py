"""Hermes and Qwen: ``<tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>``."""

from __future__ import annotations

import re

from edge_infer.server.tools.declared import Tool
from edge_infer.server.tools.format import OBJECT_HEADER, JsonToolFormat
from edge_infer.server.tools.lark import LarkBuilder, literal


class Hermes(JsonToolFormat):
    name = "hermes"
    opening = "<tool_call>"
    tags = ("<tool_call>", "</tool_call>")
    separator = literal("\n")
    header = OBJECT_HEADER
    shape = '{"name":"'
    footer = re.compile(r"\s*\}\s*</tool_call>")

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        head = literal('\n{"name": "' + tool.name + '", "arguments": ')
        return f"{head} {b.json(tool.schema)} {literal('}' + chr(10))} {b.tag('</tool_call>')}"
