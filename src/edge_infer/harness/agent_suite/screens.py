"""A device that is seen as a tree of nodes and worked by taps, typing and swipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.etree import ElementTree

from pydantic import Field

from edge_infer.harness.agent_suite.device import Arguments, Device, NoArguments, ToolError
from edge_infer.harness.agent_suite.state import State

ROWS = 8
"""Rows that fit the screen; more need a swipe."""


@dataclass
class Node:
    """A row of the screen. ``path``: what of the state it shows."""

    kind: Literal["button", "switch", "slider", "field", "radio", "text"]
    text: str
    tap: Callable[[], None] | None = None
    enter: Callable[[str], None] | None = None
    checked: bool | None = None
    value: str | None = None
    path: str | None = None


@dataclass
class Screen:
    """A place in the phone. ``draft``: what is typed there and not yet saved."""

    title: str
    rows: Callable[[], list[Node]]
    top: int = 0
    draft: dict[str, Any] = field(default_factory=dict)


class NodeId(Arguments):
    id: int


class Typed(NodeId):
    text: str = Field(max_length=500)


class Swipe(Arguments):
    direction: Literal["up", "down"] = Field(description="up shows the rows further down")


class ScreenDevice(Device):
    """The tools of a screen. A subclass gives the rows of each place, anew at every drawing."""

    def __init__(self, state: State, home: Callable[[], list[Node]]) -> None:
        super().__init__(state)
        self._stack = [Screen("Home", home)]
        self._offer("screen", "The screen as it is.", NoArguments, lambda _: self._xml())
        self._offer("tap", "Taps a button, switch or choice.", NodeId, self._tap)
        self._offer(
            "type", "Replaces the text of a field or the value of a slider.", Typed, self._type
        )
        self._offer("swipe", "Moves the list.", Swipe, self._swipe)
        self._offer("back", "Leaves this screen without saving.", NoArguments, self._back)
        self._offer("home", "Goes to the home screen.", NoArguments, self._go_home)

    def _open(self, title: str, rows: Callable[[Screen], list[Node]], **draft: Any) -> None:
        screen = Screen(title, lambda: rows(screen), draft=draft)
        self._stack.append(screen)

    def _leave(self) -> None:
        self._stack.pop()

    def _xml(self) -> str:
        screen = self._stack[-1]
        rows = screen.rows()
        screen.top = min(screen.top, max(0, len(rows) - 1) // ROWS * ROWS)
        end = screen.top + ROWS
        root = ElementTree.Element("screen", title=screen.title)
        root.set("more_above", str(screen.top > 0).lower())
        root.set("more_below", str(end < len(rows)).lower())
        for index, row in enumerate(rows[screen.top : end], start=screen.top + 1):
            node = ElementTree.SubElement(root, "node", {"id": str(index), "class": row.kind})
            node.set("text", row.text)
            if row.checked is not None:
                node.set("checked", str(row.checked).lower())
            if row.value is not None:
                node.set("value", row.value)
            if row.path is not None:
                self.shown.add(row.path)
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode")

    def _visible(self, number: int) -> Node:
        screen = self._stack[-1]
        rows = screen.rows()
        if not screen.top < number <= min(screen.top + ROWS, len(rows)):
            raise ToolError(f"there is no node {number} on the visible part of the screen")
        return rows[number - 1]

    def _tap(self, arguments: NodeId) -> str:
        node = self._visible(arguments.id)
        if node.tap is None:
            raise ToolError(f"nothing happens when a {node.kind} is tapped")
        node.tap()
        return self._xml()

    def _type(self, arguments: Typed) -> str:
        node = self._visible(arguments.id)
        if node.enter is None:
            raise ToolError(f"one cannot type into a {node.kind}")
        node.enter(arguments.text)
        return self._xml()

    def _swipe(self, arguments: Swipe) -> str:
        screen = self._stack[-1]
        moved = screen.top + (ROWS if arguments.direction == "up" else -ROWS)
        if 0 <= moved < len(screen.rows()):
            screen.top = moved
        return self._xml()

    def _back(self, arguments: NoArguments) -> str:
        if len(self._stack) > 1:
            self._stack.pop()
        return self._xml()

    def _go_home(self, arguments: NoArguments) -> str:
        del self._stack[1:]
        return self._xml()
