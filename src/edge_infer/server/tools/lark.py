"""Grammars of tool calls, put together rule by rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from edge_infer.server.grammar import GrammarSpec, json_schema, literal

ANY_TEXT = r"/(.|\n)*/"


class LarkBuilder:
    """Collects rules; each method returns the name of a rule, or text to use inside one."""

    def __init__(self) -> None:
        self._rules: list[str] = []
        self._tags: list[str] = []
        self._named: set[str] = set()

    def rule(self, body: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def terminal(self, name: str, body: str) -> None:
        self._rules.append(f"{name}: {body}")

    def named(
        self, wanted: tuple[str, str], rules: Callable[[], dict[str, str]]
    ) -> tuple[str, str]:
        """Rules with names of their own, added once."""
        if wanted[0] not in self._named:
            self._named.update(wanted)
            self._rules += [f"{name}: {body}" for name, body in rules().items()]
        return wanted

    def json(self, schema: Any) -> str:
        """Any JSON value of the schema."""
        return self.rule(f"%json {json.dumps(json_schema(schema), ensure_ascii=False)}")

    def tag(self, text: str) -> str:
        """A text that is one special token where the model has such."""
        return f"tag_{self._number(text)}"

    def until(self, text: str) -> str:
        """Any text, up to and with the tag."""
        return f"until_tag_{self._number(text)}"

    def spec(self, start: str) -> GrammarSpec:
        source = "\n".join([f"start: {start}", *self._rules, f"ANY: {ANY_TEXT}"])
        return GrammarSpec("structure", source, tuple(self._tags))

    def _number(self, text: str) -> int:
        if text not in self._tags:
            self._tags.append(text)
        return self._tags.index(text)


def either(options: list[str]) -> str:
    return "(" + " | ".join(options) + ")"


__all__ = ["ANY_TEXT", "LarkBuilder", "either", "literal"]
