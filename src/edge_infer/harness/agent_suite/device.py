"""What every simulated device is: tools, a state, and a log of what was done to it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from edge_infer.harness.agent_suite.state import Flat, State, differing, flatten

RESULT_LIMIT = 8000
"""Characters of one tool result; the devices' own stay far below."""
ARGUMENT_LIMIT = 4000


class ToolError(Exception):
    """A call that the device refuses; the agent reads the message as the tool's result."""


class Arguments(BaseModel):
    """Base of a tool's arguments; a misspelt one is an error, not ignored."""

    model_config = ConfigDict(extra="forbid")


class NoArguments(Arguments):
    """A tool without arguments."""


@functools.cache
def _parameters(arguments: type[Arguments]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, without pydantic's titles."""
    schema = arguments.model_json_schema()
    return {
        "type": "object",
        "properties": {
            name: {k: v for k, v in field.items() if k != "title"}
            for name, field in schema.get("properties", {}).items()
        },
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class Tool:
    """A function that the agent may call. ``run`` gets the checked arguments."""

    name: str
    description: str
    arguments: type[Arguments]
    run: Callable[[Any], str]

    def as_openai(self) -> dict[str, Any]:
        """The entry of ``tools`` in a chat request."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": _parameters(self.arguments),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Event:
    """One tool call: what was asked, whether it was refused, and what it changed."""

    tool: str
    arguments: str
    refused: bool
    changed: frozenset[str]
    """Paths of the state."""
    after: Flat
    """The whole state after the call."""


class Device:
    """A simulated device: its state is reached through :meth:`call` alone."""

    kind: str
    guide: str
    """The system message: what the device is and how its tools are meant."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []
        self.shown: set[str] = set()
        """Paths whose control or value the agent was shown."""
        self._tools: dict[str, Tool] = {}
        self._flat = flatten(state)

    def _offer(
        self, name: str, description: str, arguments: type[Arguments], run: Callable[[Any], str]
    ) -> None:
        self._tools[name] = Tool(name, description, arguments, run)

    def tools(self) -> list[dict[str, Any]]:
        """The tools in the form of a chat request."""
        return [tool.as_openai() for tool in self._tools.values()]

    def call(self, name: str, arguments: str) -> str:
        """Runs a tool. Whatever is wrong with the call is the result's text, never an exception."""
        refused = False
        try:
            result = self._run(name, arguments)
        except ToolError as error:
            refused, result = True, f"error: {error}"
        after = flatten(self.state)
        self.events.append(Event(name, arguments, refused, differing(self._flat, after), after))
        self._flat = after
        return result[:RESULT_LIMIT]

    def _run(self, name: str, arguments: str) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolError(f"there is no tool {name[:80]!r}; there are {', '.join(self._tools)}")
        if len(arguments) > ARGUMENT_LIMIT:
            raise ToolError(f"{len(arguments)} characters of arguments; at most {ARGUMENT_LIMIT}")
        try:
            document = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise ToolError("the arguments are not valid JSON") from None
        if not isinstance(document, Mapping):
            raise ToolError("the arguments must be a JSON object")
        try:
            checked = tool.arguments.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "arguments"
            raise ToolError(f"{where}: {first['msg']}") from None
        return tool.run(checked)
