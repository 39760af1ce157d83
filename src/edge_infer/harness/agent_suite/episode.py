"""One episode: the conversation between an agent and a device, bounded in every direction."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edge_infer.errors import ConfigError
from edge_infer.harness.agent_suite.failures import End, name_failure
from edge_infer.harness.agent_suite.tasks import World


class RequestFailure(Exception):
    """A request that brought no reply. ``end`` is how the episode ends by it."""

    def __init__(self, end: End, message: str) -> None:
        super().__init__(message)
        self.end = end
        self.message = message


@dataclass(frozen=True)
class ToolCall:
    """A call as the agent wrote it; ``arguments`` is its JSON text, well-formed or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """What the agent answered: text, calls, or both. ``cut``: it ran into its token limit."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    cut: bool = False
    tokens: int = 0
    """Completion tokens, as the server counts them; 0 where it does not tell."""


class Agent(Protocol):
    """Something that answers a chat with tools."""

    def reply(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], seed: int
    ) -> Reply:
        """The next message. Raises RequestFailure where there is none."""
        ...


@dataclass(frozen=True)
class Limits:
    """Bounds of an episode."""

    calls: int = 40
    """Tool calls; the oracle needs at most 26."""
    replies: int = 40
    seconds: float = 900.0

    def __post_init__(self) -> None:
        for name, high in (("calls", 1000), ("replies", 1000), ("seconds", 86400)):
            value = getattr(self, name)
            if not 1 <= value <= high:
                raise ConfigError(f"{name} = {value}; a number of 1 to {high} is needed.")


@dataclass
class Outcome:
    """What became of an episode."""

    success: bool
    failure: str | None
    end: End
    calls: int
    refused: int
    """Calls that the device refused: unknown tools, malformed arguments, impossible actions."""
    seconds: float
    tokens: int
    goal_at: int | None
    """Calls made when the state was first as expected; 0: it was so from the start."""
    error: str | None
    messages: list[dict[str, Any]] = field(repr=False)

    @property
    def transcript_sha256(self) -> str:
        """Digest of the messages as canonical JSON."""
        text = json.dumps(self.messages, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def run_episode(world: World, agent: Agent, limits: Limits, seed: int = 0) -> Outcome:
    """Lets the agent work until it answers without a call or meets a limit; then scores the state.

    ``seed`` is handed to the agent with every request.
    """
    device = world.device
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": device.guide},
        {"role": "user", "content": world.instruction},
    ]
    tools = device.tools()
    started = time.monotonic()
    tokens, error = 0, None
    end: End = "limit"
    for _ in range(limits.replies):
        if time.monotonic() - started > limits.seconds:
            break
        try:
            reply = agent.reply(messages, tools, seed)
        except RequestFailure as failure:
            end, error = failure.end, failure.message
            break
        tokens += reply.tokens
        messages.append(_as_message(reply))
        if not reply.calls:
            end = "cut off" if reply.cut else "answered"
            break
        for call in reply.calls:
            over = len(device.events) >= limits.calls
            result = (
                "error: the limit of calls is reached"
                if over
                else device.call(call.name, call.arguments)
            )
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if len(device.events) >= limits.calls:
            break
    return Outcome(
        success=world.solved(),
        failure=name_failure(world, end),
        end=end,
        calls=len(device.events),
        refused=sum(event.refused for event in device.events),
        seconds=time.monotonic() - started,
        tokens=tokens,
        goal_at=_goal_at(world),
        error=error,
        messages=messages,
    )


def _as_message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    return message


def _goal_at(world: World) -> int | None:
    if world.initial == world.expected:
        return 0
    after = (i for i, e in enumerate(world.device.events, 1) if e.after == world.expected)
    return next(after, None)
