"""Llama 3, and models that are told to answer with JSON: the answer is
``{"name": …, "parameters": {…}}``, more calls follow after semicolons. Nothing else marks it."""

from __future__ import annotations

import re

from edge_infer.server.tools.declared import Tool
from edge_infer.server.tools.format import OBJECT_HEADER, JsonToolFormat
from edge_infer.server.tools.lark import LarkBuilder, literal


class Llama3(JsonToolFormat):
    name = "llama3"
    opening = ""
    tags = ()
    header = OBJECT_HEADER
    shape = '{"name":"'
    footer = re.compile(r"\s*\}\s*")
    again = re.compile(r"\s*\}\s*;\s*")
    at_start = True

    def calls(self, b: LarkBuilder, call: str, parallel: bool) -> str:
        return f"{call} ({literal('; ')} {call})*" if parallel else call

    def text_and_calls(self, b: LarkBuilder, call: str, offered: list[Tool], parallel: bool) -> str:
        # An answer that begins as our reader expects of a call must be one.
        names = "|".join(re.escape(t.name).replace("\\-", "-") for t in offered)
        space = r"[ \n\r\t]*"
        head = space.join(
            ["", r"\{", '"name"', ":", f'"({names})"', ",", '"(parameters|arguments)"', ":", r"\{"]
        )
        b.terminal("PLAIN", rf"/(.|\n)*/ & ~/{head}(.|\n)*/")
        return f"PLAIN | {self.calls(b, call, parallel)}"

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        head = literal('{"name": "' + tool.name + '", "parameters": ')
        return f"{head} {b.json(tool.schema)} {literal('}')}"
