"""Calls as tags with one value for each argument: Spark's
``<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value>…</tool_call>``, and Qwen3-Coder's
``<tool_call>\\n<function=name>\\n<parameter=k>\\nv\\n</parameter>\\n…</function>\\n</tool_call>``.

A value whose type is a string is plain text; the others are JSON.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from edge_infer.server.json_text import loads
from edge_infer.server.tools.declared import Tool
from edge_infer.server.tools.format import ToolFormat
from edge_infer.server.tools.lark import LarkBuilder, either, literal
from edge_infer.server.tools.stream import BlockToolStream, ToolStream

_JSON_TYPES = frozenset({"integer", "number", "boolean", "null", "array", "object"})


class XmlFormat(ToolFormat):
    """``value_end``: the tag after a value."""

    opening = "<tool_call>"
    closing = "</tool_call>"
    value_end: str

    def stream(self, tools: Mapping[str, Tool], constrained: bool = False) -> ToolStream:
        return BlockToolStream(self.opening, self.closing, tools, self.new_id, self._parse)

    def _pairs(self, b: LarkBuilder, tool: Tool) -> str:
        """Lark for the arguments, in the order of the schema."""
        if not tool.properties:
            closed = tool.schema.get("additionalProperties") is False
            return "" if closed else f"({self._pair(b, None, b.until(self.value_end))})*"
        out = []
        for key, schema in tool.properties.items():
            pair = b.rule(self._pair(b, key, self._value(b, schema, tool.schema)))
            out.append(pair if key in tool.required else f"{pair}?")
        return " ".join(out)

    def _value(self, b: LarkBuilder, schema: Any, root: Mapping[str, Any]) -> str:
        """Lark for a value and the tag after it."""
        end = f"{self._before_end()} {b.tag(self.value_end)}"
        if isinstance(schema, dict) and _is_json(schema):
            shared = {k: root[k] for k in ("$defs", "definitions") if k in root}
            return f"{b.json({**shared, **schema})} {end}"
        options = schema.get("enum") if isinstance(schema, dict) else None
        if isinstance(options, list) and all(isinstance(v, str) and v for v in options):
            return f"{either([literal(v) for v in options])} {end}"
        return b.until(self.value_end)

    def _before_end(self) -> str:
        return ""

    @abstractmethod
    def _pair(self, b: LarkBuilder, key: str | None, value: str) -> str:
        """Lark for one argument; key None: any key."""

    @abstractmethod
    def _split(self, raw: str) -> tuple[str, list[tuple[str, str]]]:
        """Name, and keys with their values, of a call. Raises ValueError."""

    def _parse(self, raw: str, tools: Mapping[str, Tool]) -> tuple[str, str]:
        name, pairs = self._split(raw)
        tool = tools.get(name)
        if tool is None:
            raise ValueError(f"there is no tool {name[:100]!r}")
        arguments = {k: _convert(v, tool.properties.get(k), k) for k, v in pairs}
        return name, json.dumps(arguments, ensure_ascii=False)


class Spark(XmlFormat):
    name = "spark"
    value_end = "</arg_value>"
    tags = (
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    )
    _PAIR = re.compile(
        r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL
    )

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        return f"{literal(tool.name)} {self._pairs(b, tool)} {b.tag(self.closing)}"

    def _pair(self, b: LarkBuilder, key: str | None, value: str) -> str:
        name = literal(key) if key else "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"
        return f"{b.tag('<arg_key>')} {name} {b.tag('</arg_key>')} {b.tag('<arg_value>')} {value}"

    def _split(self, raw: str) -> tuple[str, list[tuple[str, str]]]:
        name, found, _ = raw.partition("<arg_key>")
        pairs = []
        at = len(name) if found else len(raw)
        while pair := self._PAIR.match(raw, at):
            pairs.append((pair["key"], pair["value"]))
            at = pair.end()
        if raw[at:].strip():
            raise ValueError("its arguments are not in the format")
        return name.strip(), pairs


class QwenXml(XmlFormat):
    name = "qwen-xml"
    value_end = "</parameter>"
    tags = ("<tool_call>", "</tool_call>", "</parameter>", "</function>")
    separator = literal("\n")
    _FUNCTION = re.compile(r"\s*<function=(?P<name>[^>\s]+)>(?P<body>.*)</function>\s*", re.DOTALL)
    _PAIR = re.compile(
        r"\s*<parameter=(?P<key>[^>]+)>\n?(?P<value>.*?)\n?</parameter>\s*", re.DOTALL
    )

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        head = literal(f"\n<function={tool.name}>\n")
        tail = f"{b.tag('</function>')} {literal(chr(10))} {b.tag(self.closing)}"
        return f"{head} {self._pairs(b, tool)} {tail}"

    def _pair(self, b: LarkBuilder, key: str | None, value: str) -> str:
        name = literal(key) if key else "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"
        return f'"<parameter=" {name} ">\\n" {value} {literal(chr(10))}'

    def _before_end(self) -> str:
        return literal("\n")

    def _split(self, raw: str) -> tuple[str, list[tuple[str, str]]]:
        function = self._FUNCTION.fullmatch(raw)
        if function is None:
            raise ValueError("it is not in the format")
        body, at, pairs = function["body"], 0, []
        while pair := self._PAIR.match(body, at):
            pairs.append((pair["key"], pair["value"]))
            at = pair.end()
        if body[at:].strip():
            raise ValueError("its arguments are not in the format")
        return function["name"], pairs


def _is_json(schema: Mapping[str, Any]) -> bool:
    """Whether the value is written as JSON: its type is known and no string."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return all(isinstance(k, str) and k in _JSON_TYPES for k in kinds)


def _convert(text: str, schema: Any, key: str) -> Any:
    if isinstance(schema, dict) and _is_json(schema):
        try:
            return loads(text)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"its argument {key[:100]!r} is not JSON") from e
    if isinstance(schema, dict) and schema.get("type", "") != "string":
        try:  # its type is open: JSON where it is such
            return loads(text)
        except (ValueError, RecursionError):
            return text
    return text
