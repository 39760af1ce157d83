"""What a model's text turns into where it may hold tool calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextPart:
    """Text beside the calls."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins; ``call_index`` counts from 0 within the answer."""

    call_index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of a call's arguments, which together are one JSON object."""

    call_index: int
    text: str


ToolEvent = TextPart | CallStart | CallArguments
