"""Gemma's function calls: ``call:name{key:value,…}`` between two tags, keys without quotes, and
strings between two tags of their own. FunctionGemma and Gemma 4 differ in the tags only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edge_infer.server.json_text import loads
from edge_infer.server.tools.declared import Tool
from edge_infer.server.tools.format import ToolFormat
from edge_infer.server.tools.lark import LarkBuilder, either, literal
from edge_infer.server.tools.stream import BlockToolStream, ToolStream

_MAX_DEPTH = 64
_HEAD = re.compile(r"\s*call:\s*(?P<name>[^\s{}]+)\s*(?=\{)")
_KEY = re.compile(r"\s*(?P<key>[^:{}\[\],]+?)\s*:")
_BARE = re.compile(r"[^,{}\[\]]+")
_NUMBERS = {
    "integer": r"/-?(0|[1-9][0-9]{0,17})/",
    "number": r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/",
}


class Gemma(ToolFormat):
    """``quote``: the tag on both sides of a string."""

    def __init__(self, name: str, opening: str, closing: str, quote: str) -> None:
        self.name = name
        self.opening = opening
        self.closing = closing
        self.quote = quote
        self.tags = (opening, closing, quote)

    def call(self, b: LarkBuilder, tool: Tool) -> str:
        arguments = self._object(b, tool.schema, tool.schema, 0)
        return f"{literal('call:' + tool.name)} {arguments} {b.tag(self.closing)}"

    def stream(self, tools: Mapping[str, Tool], constrained: bool = False) -> ToolStream:
        return BlockToolStream(self.opening, self.closing, tools, self.new_id, self._parse)

    def _object(
        self, b: LarkBuilder, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
    ) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            if schema.get("additionalProperties") is False:
                return '"{" "}"'
            return self._any(b)[0]
        required = schema.get("required") or []
        # Properties in their order: what follows number i, and what an object may begin with.
        tail = ""
        head = ""
        for key, value in reversed(properties.items()):
            pair = b.rule(f"{literal(key + ':')} {self._value(b, value, root, depth + 1)}")
            follows = b.rule(f'"," {pair} {tail}')
            if key in required:
                head, tail = f"{pair} {tail}", follows
            else:
                head = f"({pair} {tail} | {head})" if head else f"({pair} {tail})?"
                tail = b.rule(f"{follows} | {tail}") if tail else f"{follows}?"
        return b.rule(f'"{{" {head} "}}"')

    def _value(self, b: LarkBuilder, schema: Any, root: Mapping[str, Any], depth: int) -> str:
        if not isinstance(schema, dict) or depth > 8:
            return self._any(b)[1]
        if isinstance(schema.get("enum"), list):
            return b.rule(either([self._constant(b, v) for v in schema["enum"]]))
        if isinstance(schema.get("anyOf"), list):
            return b.rule(either([self._value(b, s, root, depth + 1) for s in schema["anyOf"]]))
        kind = schema.get("type")
        if isinstance(kind, list):
            each = [self._value(b, {**schema, "type": k}, root, depth + 1) for k in kind]
            return b.rule(either(each))
        if kind == "string":
            return b.rule(self._string(b))
        if kind in _NUMBERS:
            return b.rule(_NUMBERS[kind])
        if kind == "boolean":
            return '("true" | "false")'
        if kind == "null":
            return '"null"'
        if kind == "array":
            item = self._value(b, schema.get("items"), root, depth + 1)
            return b.rule(f'"[" ({item} ("," {item})*)? "]"')
        if kind == "object":
            return self._object(b, schema, root, depth)
        return self._any(b)[1]

    def _constant(self, b: LarkBuilder, value: Any) -> str:
        if isinstance(value, str):
            return (
                f"{b.tag(self.quote)} {literal(value)} {b.tag(self.quote)}"
                if value
                else (f"{b.tag(self.quote)} {b.tag(self.quote)}")
            )
        return literal(json.dumps(value))

    def _string(self, b: LarkBuilder) -> str:
        return f"{b.tag(self.quote)} {b.until(self.quote)}"

    def _any(self, b: LarkBuilder) -> tuple[str, str]:
        """(any object, any value) in this syntax."""
        return b.named(
            ("any_object", "any_value"),
            lambda: {
                "any_object": '"{" (any_pair ("," any_pair)*)? "}"',
                "any_pair": '/[A-Za-z_][A-Za-z0-9_.-]{0,63}/ ":" any_value',
                "any_array": '"[" (any_value ("," any_value)*)? "]"',
                "any_value": f'{self._string(b)} | {_NUMBERS["number"]} | "true" | "false" | "null"'
                " | any_object | any_array",
            },
        )

    def _parse(self, raw: str, tools: Mapping[str, Tool]) -> tuple[str, str]:
        head = _HEAD.match(raw)
        if head is None:
            raise ValueError("its beginning is not in the format")
        if head["name"] not in tools:
            raise ValueError(f"there is no tool {head['name'][:100]!r}")
        value, end = self._read(raw, head.end(), 0)
        if raw[end:].strip():
            raise ValueError("text follows its arguments")
        return head["name"], json.dumps(value, ensure_ascii=False)

    def _read(self, raw: str, at: int, depth: int) -> tuple[Any, int]:
        """The value at ``at``, and where it ends."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"its arguments are more than {_MAX_DEPTH} deep")
        while at < len(raw) and raw[at].isspace():
            at += 1
        if raw.startswith(self.quote, at):
            start = at + len(self.quote)
            end = raw.find(self.quote, start)
            if end < 0:
                raise ValueError("a string of its arguments does not end")
            return raw[start:end], end + len(self.quote)
        if raw.startswith("{", at):
            return self._read_object(raw, at + 1, depth)
        if raw.startswith("[", at):
            return self._read_array(raw, at + 1, depth)
        bare = _BARE.match(raw, at)
        if bare is None:
            raise ValueError("a value of its arguments is missing")
        value = loads(bare[0])  # a number, true, false or null
        return value, bare.end()

    def _read_object(self, raw: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
        out: dict[str, Any] = {}
        if (end := _closes(raw, at, "}")) is not None:
            return out, end
        while True:
            key = _KEY.match(raw, at)
            if key is None:
                raise ValueError("a key of its arguments is missing")
            name = key["key"].removeprefix(self.quote).removesuffix(self.quote)
            out[name], at = self._read(raw, key.end(), depth + 1)
            if (end := _closes(raw, at, "}")) is not None:
                return out, end
            at = _comma(raw, at)

    def _read_array(self, raw: str, at: int, depth: int) -> tuple[list[Any], int]:
        out: list[Any] = []
        if (end := _closes(raw, at, "]")) is not None:
            return out, end
        while True:
            value, at = self._read(raw, at, depth + 1)
            out.append(value)
            if (end := _closes(raw, at, "]")) is not None:
                return out, end
            at = _comma(raw, at)


def _closes(raw: str, at: int, bracket: str) -> int | None:
    while at < len(raw) and raw[at].isspace():
        at += 1
    return at + 1 if raw.startswith(bracket, at) else None


def _comma(raw: str, at: int) -> int:
    after = _closes(raw, at, ",")
    if after is None:
        raise ValueError("a bracket of its arguments does not close")
    return after
