"""A phone with settings, a clock, messages and contacts, seen as a screen tree in XML."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from edge_infer.harness.agent_suite.device import ToolError
from edge_infer.harness.agent_suite.phone_contents import (
    BY_KEY,
    REPEATS,
    SETTINGS,
    Words,
    alarm_text,
    new_contact,
)
from edge_infer.harness.agent_suite.screens import Node, Screen, ScreenDevice
from edge_infer.harness.agent_suite.state import State, record_path

GUIDE = (
    "You operate a phone through tools. Every tool answers with the screen as XML: nodes have an "
    "id, a class, a text, and a value or checked where they have one. Tap buttons and switches by "
    "id, type into fields and sliders, swipe up to see rows further down. Do exactly what is "
    "asked: change nothing else, and do nothing where it is already so. When it is done, answer "
    "with one short sentence and call no more tools."
)


def clock_time(text: str) -> str:
    """``7:5`` and ``07:05`` as ``07:05``. Raises ToolError where it is no time of day."""
    match = re.fullmatch(r"\s*(\d{1,2}):(\d{1,2})\s*", text, re.ASCII)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59:
        raise ToolError(f"{text[:40]!r} is not a time; write hours and minutes as 07:30")
    return f"{int(match[1]):02}:{int(match[2]):02}"


class Phone(ScreenDevice):
    """The phone as an agent sees it. ``reordered``: the rows of most screens are shuffled."""

    kind = "phone"
    guide = GUIDE

    def __init__(self, state: State, rng: random.Random, *, renamed: bool, reordered: bool) -> None:
        super().__init__(state, self._home_rows)
        self.words = Words(renamed)
        self._settings = [s for s in SETTINGS if s.key in state["settings"]]
        self._pages = list(dict.fromkeys(s.page for s in SETTINGS))
        self._apps = ["settings", "clock", "messages", "contacts"]
        if reordered:
            for rows in (self._settings, self._pages, self._apps):
                rng.shuffle(rows)
            rng.shuffle(state["contacts"])
            rng.shuffle(state["alarms"])

    def _home_rows(self) -> list[Node]:
        places = {
            "settings": self._settings_rows,
            "clock": self._clock_rows,
            "messages": self._messages_rows,
            "contacts": self._contacts_rows,
        }
        return [
            Node("button", self.words[app], partial(self._open, self.words[app], places[app]))
            for app in self._apps
        ]

    def _settings_rows(self, screen: Screen) -> list[Node]:
        def opener(page: str) -> Callable[[], None]:
            return lambda: self._open(self.words[page], lambda _: self._page_rows(page))

        return [Node("button", self.words[page], opener(page)) for page in self._pages]

    def _page_rows(self, page: str) -> list[Node]:
        return [self._setting(s.key) for s in self._settings if s.page == page]

    def _setting(self, key: str) -> Node:
        setting, values = BY_KEY[key], self.state["settings"]
        label, path, value = self.words.setting(key), f"settings/{key}", values[key]
        if setting.kind == "switch":
            return Node(
                "switch", label, partial(values.update, {key: not value}), checked=value, path=path
            )
        if setting.kind == "choice":
            opened = partial(self._open, label, lambda _: self._choice_rows(key))
            return Node("button", label, opened, value=value, path=path)

        def slide(text: str) -> None:
            number = re.fullmatch(r"\s*(\d{1,3})\s*%?\s*", text, re.ASCII)
            if number is None or int(number[1]) > 100:
                raise ToolError("a slider takes a number from 0 to 100")
            values[key] = int(number[1])

        return Node("slider", label, enter=slide, value=str(value), path=path)

    def _choice_rows(self, key: str) -> list[Node]:
        values = self.state["settings"]
        return [
            Node(
                "radio",
                choice,
                partial(values.update, {key: choice}),
                checked=values[key] == choice,
                path=f"settings/{key}",
            )
            for choice in BY_KEY[key].choices
        ]

    def _clock_rows(self, screen: Screen) -> list[Node]:
        rows = []
        for alarm in self.state["alarms"]:
            text = alarm_text(alarm)
            path = record_path("alarms", alarm)
            rows.append(Node("button", text, partial(self._edit_alarm, alarm), path=path))
            rows.append(
                Node(
                    "switch",
                    text,
                    partial(alarm.update, on=not alarm["on"]),
                    checked=alarm["on"],
                    path=path,
                )
            )
        rows.append(Node("button", self.words["alarm.new"], partial(self._edit_alarm, None)))
        return rows

    def _edit_alarm(self, alarm: dict[str, Any] | None) -> None:
        start = {"time": "08:00", "label": "", "repeat": "once", "on": True}
        title = self.words["alarm.new"] if alarm is None else alarm_text(alarm)
        self._open(title, lambda screen: self._alarm_rows(screen, alarm), **(alarm or start))

    def _alarm_rows(self, screen: Screen, alarm: dict[str, Any] | None) -> list[Node]:
        draft, alarms = screen.draft, self.state["alarms"]

        def save() -> None:
            if alarm is None:
                alarms.append(dict(draft))
            else:
                alarm.update(draft)
            self._leave()

        def delete() -> None:
            # By identity: two alarms may be equal.
            alarms[:] = [other for other in alarms if other is not alarm]
            self._leave()

        rows = [
            Node(
                "field",
                self.words["alarm.time"],
                value=draft["time"],
                enter=lambda text: draft.update(time=clock_time(text)),
            ),
            self._field("alarm.label", draft, "label"),
        ]
        for repeat in REPEATS:
            rows.append(
                Node(
                    "radio",
                    repeat,
                    partial(draft.update, repeat=repeat),
                    checked=draft["repeat"] == repeat,
                )
            )
        rows.append(Node("button", self.words["save"], save))
        if alarm is not None:
            rows.append(Node("button", self.words["delete"], delete))
        return rows

    def _field(self, word: str, draft: dict[str, Any], key: str) -> Node:
        def enter(text: str) -> None:
            # Control characters have no place in XML.
            draft[key] = "".join(c for c in " ".join(text.split()) if c.isprintable())

        return Node("field", self.words[word], enter=enter, value=draft[key])

    def _messages_rows(self, screen: Screen) -> list[Node]:
        people = list(dict.fromkeys(m["with"] for m in self.state["messages"]))
        rows = [Node("button", name, partial(self._open_thread, name)) for name in people]
        new = partial(self._open, self.words["message.new"], self._compose_rows, to="", text="")
        return [*rows, Node("button", self.words["message.new"], new)]

    def _open_thread(self, name: str) -> None:
        self._open(name, lambda screen: self._thread_rows(screen, name), text="")

    def _thread_rows(self, screen: Screen, name: str) -> list[Node]:
        messages = self.state["messages"]

        def send() -> None:
            self._send(name, screen.draft["text"])
            screen.draft["text"] = ""

        def delete() -> None:
            messages[:] = [m for m in messages if m["with"] != name]
            self._leave()

        said = [m for m in messages if m["with"] == name]
        return [
            *(
                Node("text", f"{m['by']}: {m['text']}", path=record_path("messages", m))
                for m in said
            ),
            self._field("message.text", screen.draft, "text"),
            Node("button", self.words["send"], send),
            Node("button", self.words["thread.delete"], delete),
        ]

    def _compose_rows(self, screen: Screen) -> list[Node]:
        draft = screen.draft

        def send() -> None:
            wanted = draft["to"].casefold()
            names = [
                c["name"]
                for c in self.state["contacts"]
                if wanted in (c["name"].casefold(), c["number"])
            ]
            if not names:
                raise ToolError(f"no contact has the name or number {draft['to']!r}")
            self._send(names[0], draft["text"])
            self._leave()
            self._open_thread(names[0])

        return [
            self._field("message.to", draft, "to"),
            self._field("message.text", draft, "text"),
            Node("button", self.words["send"], send),
        ]

    def _send(self, name: str, text: str) -> None:
        if not text:
            raise ToolError("the message is empty")
        self.state["messages"].append({"with": name, "by": "me", "text": text})

    def _contacts_rows(self, screen: Screen) -> list[Node]:
        new = partial(
            self._open, self.words["contact.new"], self._new_contact_rows, name="", number=""
        )
        rows = [
            Node(
                "button",
                contact["name"],
                partial(self._open_contact, contact),
                path=record_path("contacts", contact),
            )
            for contact in self.state["contacts"]
        ]
        return [*rows, Node("button", self.words["contact.new"], new)]

    def _new_contact_rows(self, screen: Screen) -> list[Node]:
        draft, contacts = screen.draft, self.state["contacts"]

        def save() -> None:
            if not draft["name"] or not draft["number"]:
                raise ToolError("a contact needs a name and a number")
            if any(c["name"].casefold() == draft["name"].casefold() for c in contacts):
                raise ToolError(f"there is a contact {draft['name']!r} already")
            contacts.append(new_contact(**draft))
            self._leave()

        return [
            self._field("contact.name", draft, "name"),
            self._field("contact.number", draft, "number"),
            Node("button", self.words["save"], save),
        ]

    def _open_contact(self, contact: dict[str, Any]) -> None:
        self._open(contact["name"], lambda screen: self._contact_rows(screen, contact))

    def _contact_rows(self, screen: Screen, contact: dict[str, Any]) -> list[Node]:
        contacts = self.state["contacts"]

        def flag(key: str) -> Node:
            flip = partial(contact.update, {key: not contact[key]})
            return Node(
                "switch",
                self.words[key],
                flip,
                checked=contact[key],
                path=record_path("contacts", contact),
            )

        def delete() -> None:
            contacts[:] = [other for other in contacts if other is not contact]
            self._leave()

        def edit() -> None:
            self._open(
                contact["name"], lambda s: self._number_rows(s, contact), number=contact["number"]
            )

        return [
            Node("text", contact["number"], path=record_path("contacts", contact)),
            flag("favourite"),
            flag("blocked"),
            Node("button", self.words["contact.edit"], edit),
            Node("button", self.words["delete"], delete),
        ]

    def _number_rows(self, screen: Screen, contact: dict[str, Any]) -> list[Node]:
        def save() -> None:
            if not screen.draft["number"]:
                raise ToolError("a contact needs a number")
            contact["number"] = screen.draft["number"]
            self._leave()

        return [
            self._field("contact.number", screen.draft, "number"),
            Node("button", self.words["save"], save),
        ]
