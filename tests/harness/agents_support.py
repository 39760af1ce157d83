"""Scripted agents as something that answers chats, for the tests of the agent suite."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from edge_infer.harness.agent_suite.edits import Script
from edge_infer.harness.agent_suite.episode import Reply, ToolCall
from edge_infer.harness.agent_suite.tasks import World


class Scripted:
    """One script as an agent: each request brings its next call, with the last result sent in."""

    def __init__(self, world: World, script: Callable[[World], Script]) -> None:
        self._script = script(world)
        self._calls = 0

    def reply(self, messages: list[dict[str, Any]], tools: list[Any], seed: int) -> Reply:
        try:
            if self._calls == 0:
                name, arguments = next(self._script)
            else:
                name, arguments = self._script.send(messages[-1]["content"])
        except StopIteration:
            return Reply(text="Done.")
        self._calls += 1
        return Reply(calls=[ToolCall(f"call_{self._calls}", name, json.dumps(arguments))])
