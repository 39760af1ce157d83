"""The tools that a request offers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_infer.errors import ConfigError
from edge_infer.server.grammar import GrammarSpec, check

log = logging.getLogger(__name__)

ANY_OBJECT: dict[str, Any] = {"type": "object"}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """``schema``: what its arguments must look like, always of an object and always usable."""

    name: str
    schema: Mapping[str, Any]

    @property
    def properties(self) -> Mapping[str, Any]:
        value = self.schema.get("properties")
        return value if isinstance(value, dict) else {}

    @property
    def required(self) -> Sequence[str]:
        value = self.schema.get("required")
        return value if isinstance(value, list) else []


def declared(tools: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
    """The tools of a request in OpenAI's form, by name.

    A schema that grammars cannot express is an error where the tool says ``strict``; otherwise any
    object may be its arguments, and a warning says so. Raises ConfigError.
    """
    out = {}
    for i, entry in enumerate(tools):
        function = entry.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not _fits(name):
            raise ConfigError(
                f"tools[{i}] has no usable function name: {name!r:.100}.",
                remedy="Names are 1 to 128 letters, digits, underscores, dots and hyphens.",
            )
        out[name] = Tool(name, _schema(name, function))
    return out


def _fits(name: str) -> bool:
    return 0 < len(name) <= 128 and all(c.isalnum() or c in "_.-" for c in name)


def _schema(name: str, function: Mapping[str, Any]) -> Mapping[str, Any]:
    given = function.get("parameters")
    if given is None:
        return NO_ARGUMENTS
    schema = {**ANY_OBJECT, **given} if isinstance(given, dict) else {}
    if schema.get("type") != "object":
        raise ConfigError(
            f"the parameters of tool {name!r} are not a JSON schema of type object.",
            code="invalid_grammar",
        )
    try:
        check(GrammarSpec("json_schema", schema))
    except ConfigError as e:
        if function.get("strict"):
            raise ConfigError(f"tool {name!r}: {e.message}", remedy=e.remedy, code=e.code) from e
        log.warning("Tool %r: %s Its arguments may be any object.", name, e.message)
        return ANY_OBJECT
    return schema
