"""Single changes of a device: as a change of its state, and as a person would make it.

``apply`` edits the plain state and says what a task asks for; ``perform`` does the same through the
device's tools alone. That both end in the same state is tested for every task.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol
from xml.etree import ElementTree

from edge_infer.harness.agent_suite.home import SCENES, Home
from edge_infer.harness.agent_suite.phone import Phone
from edge_infer.harness.agent_suite.phone_contents import BY_KEY, alarm_text, new_contact
from edge_infer.harness.agent_suite.state import State

Call = tuple[str, dict[str, Any]]
Script = Generator[Call, str, None]
"""Yields tool calls and is sent their results."""
SWIPES = 10


class Edit(Protocol):
    """A change that a task wants, or that somebody made by mistake."""

    def apply(self, state: State) -> None: ...

    def perform(self, device: Any) -> Script: ...


def _locate(label: str, kind: str) -> Generator[Call, str, int]:
    """The id of a node of the present screen, swiping until it is seen."""
    text = yield "screen", {}
    for _ in range(SWIPES):
        root = ElementTree.fromstring(text)
        for node in root:
            if node.get("text") == label and node.get("class") == kind:
                return int(node.get("id", ""))
        if root.get("more_below") != "true":
            break
        text = yield "swipe", {"direction": "up"}
    raise LookupError(f"no {kind} {label!r}")


def _tap(label: str, kind: str = "button") -> Script:
    node = yield from _locate(label, kind)
    yield "tap", {"id": node}


def _type(label: str, text: str, kind: str = "field") -> Script:
    node = yield from _locate(label, kind)
    yield "type", {"id": node, "text": text}


def _go(*labels: str) -> Script:
    """From the home screen through buttons."""
    yield "home", {}
    for label in labels:
        yield from _tap(label)


@dataclass(frozen=True)
class Set:
    """A setting of the phone gets a value; a switch is tapped only where it differs."""

    key: str
    value: bool | int | str

    def apply(self, state: State) -> None:
        state["settings"][self.key] = self.value

    def perform(self, device: Phone) -> Script:
        setting, words = BY_KEY[self.key], device.words
        label = words.setting(self.key)
        yield from _go(words["settings"], words[setting.page])
        if setting.kind == "slider":
            yield from _type(label, str(self.value), "slider")
        elif setting.kind == "choice":
            yield from _tap(label)
            yield from _tap(str(self.value), "radio")
        elif device.state["settings"][self.key] != self.value:
            yield from _tap(label, "switch")


@dataclass(frozen=True)
class AddAlarm:
    """A new alarm, switched on."""

    time: str
    label: str = ""
    repeat: str = "once"

    def _record(self) -> dict[str, Any]:
        return {"time": self.time, "label": self.label, "repeat": self.repeat, "on": True}

    def apply(self, state: State) -> None:
        state["alarms"].append(self._record())

    def perform(self, device: Phone) -> Script:
        words = device.words
        yield from _go(words["clock"], words["alarm.new"])
        yield from _type(words["alarm.time"], self.time)
        if self.label:
            yield from _type(words["alarm.label"], self.label)
        yield from _tap(self.repeat, "radio")
        yield from _tap(words["save"])


@dataclass(frozen=True)
class ChangeAlarm:
    """The alarm with this label and repeat gets another time, or is switched; None leaves it so."""

    label: str
    time: str | None = None
    on: bool | None = None
    repeat: str | None = None
    """Which of several alarms of that label."""

    def _find(self, state: State) -> dict[str, Any]:
        return next(
            a
            for a in state["alarms"]
            if a["label"] == self.label and self.repeat in (None, a["repeat"])
        )

    def apply(self, state: State) -> None:
        alarm = self._find(state)
        if self.time is not None:
            alarm["time"] = self.time
        if self.on is not None:
            alarm["on"] = self.on

    def perform(self, device: Phone) -> Script:
        words = device.words
        alarm = self._find(device.state)
        yield from _go(words["clock"])
        if self.on is not None and alarm["on"] != self.on:
            yield from _tap(alarm_text(alarm), "switch")
        if self.time is not None:
            yield from _go(words["clock"], alarm_text(alarm))
            yield from _type(words["alarm.time"], self.time)
            yield from _tap(words["save"])


@dataclass(frozen=True)
class DeleteAlarm:
    """The alarm with this label, and this repeat where one is given, goes."""

    label: str
    repeat: str | None = None

    def _find(self, state: State) -> dict[str, Any]:
        return ChangeAlarm(self.label, repeat=self.repeat)._find(state)

    def apply(self, state: State) -> None:
        state["alarms"].remove(self._find(state))

    def perform(self, device: Phone) -> Script:
        yield from _go(device.words["clock"], alarm_text(self._find(device.state)))
        yield from _tap(device.words["delete"])


@dataclass(frozen=True)
class Send:
    """A message to a contact."""

    to: str
    text: str

    def apply(self, state: State) -> None:
        state["messages"].append({"with": self.to, "by": "me", "text": self.text})

    def perform(self, device: Phone) -> Script:
        words = device.words
        yield from _go(words["messages"], words["message.new"])
        yield from _type(words["message.to"], self.to)
        yield from _type(words["message.text"], self.text)
        yield from _tap(words["send"])


@dataclass(frozen=True)
class DeleteThread:
    """All messages with a contact go."""

    name: str

    def apply(self, state: State) -> None:
        state["messages"] = [m for m in state["messages"] if m["with"] != self.name]

    def perform(self, device: Phone) -> Script:
        yield from _go(device.words["messages"], self.name)
        yield from _tap(device.words["thread.delete"])


@dataclass(frozen=True)
class AddContact:
    """A new contact."""

    name: str
    number: str

    def apply(self, state: State) -> None:
        state["contacts"].append(new_contact(self.name, self.number))

    def perform(self, device: Phone) -> Script:
        words = device.words
        yield from _go(words["contacts"], words["contact.new"])
        yield from _type(words["contact.name"], self.name)
        yield from _type(words["contact.number"], self.number)
        yield from _tap(words["save"])


@dataclass(frozen=True)
class ChangeContact:
    """A flag or the number of a contact gets a value; ``key``: favourite, blocked or number."""

    name: str
    key: str
    value: bool | str

    def apply(self, state: State) -> None:
        _contact(state, self.name)[self.key] = self.value

    def perform(self, device: Phone) -> Script:
        words = device.words
        yield from _go(words["contacts"], self.name)
        if self.key == "number":
            yield from _tap(words["contact.edit"])
            yield from _type(words["contact.number"], str(self.value))
            yield from _tap(words["save"])
        elif _contact(device.state, self.name)[self.key] != self.value:
            yield from _tap(words[self.key], "switch")


@dataclass(frozen=True)
class DeleteContact:
    """A contact goes; its messages stay."""

    name: str

    def apply(self, state: State) -> None:
        state["contacts"].remove(_contact(state, self.name))

    def perform(self, device: Phone) -> Script:
        yield from _go(device.words["contacts"], self.name)
        yield from _tap(device.words["delete"])


def _contact(state: State, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in state["contacts"] if c["name"] == name)
    return found


class Turn:
    """Values of one device of the home: ``Turn("hall_light", on=True, brightness=40)``."""

    def __init__(self, key: str, **values: bool | int | str) -> None:
        self.key = key
        self.values = values

    def apply(self, state: State) -> None:
        state["devices"][self.key].update(self.values)

    def perform(self, device: Home) -> Script:
        target = device.state["devices"][self.key]
        name = target["name"]
        listed = yield "list_devices", {"room": target["room"]}
        found = next(d for d in json.loads(listed) if d["name"] == name)
        if found["kind"] == "plug":
            if found["on"] != self.values["on"]:
                yield "toggle_plug", {"device_id": found["id"]}
        else:
            yield f"set_{found['kind']}", {"device_id": found["id"], **self.values}


@dataclass(frozen=True)
class Scene:
    """A scene of the home is run."""

    name: str

    def apply(self, state: State) -> None:
        for key, values in SCENES[self.name].items():
            state["devices"][key].update(values)

    def perform(self, device: Home) -> Script:
        yield "list_scenes", {}
        yield "run_scene", {"name": device.scene_label(self.name)}
