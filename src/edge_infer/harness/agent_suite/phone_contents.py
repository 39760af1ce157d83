"""What is in the phone at first, and what its controls are called: two wordings of one phone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from edge_infer.harness.agent_suite.state import State


@dataclass(frozen=True)
class Setting:
    """One control on a page of the settings. ``decoy``: it is there only in the decoy variant."""

    key: str
    page: str
    label: str
    renamed: str
    default: bool | int | str
    choices: tuple[str, ...] = ()
    decoy: bool = False

    @property
    def kind(self) -> Literal["switch", "slider", "choice"]:
        if self.choices:
            return "choice"
        return "switch" if isinstance(self.default, bool) else "slider"


SETTINGS = (
    Setting("wifi", "network", "Wi-Fi", "Wireless network", True),
    Setting("wifi_scanning", "network", "Wi-Fi scanning", "Wireless search", True, decoy=True),
    Setting("mobile_data", "network", "Mobile data", "Cellular internet", True),
    Setting("bluetooth", "network", "Bluetooth", "Short-range devices", True),
    Setting("airplane", "network", "Airplane mode", "Flight mode", False),
    Setting("hotspot", "network", "Hotspot", "Share my connection", False),
    Setting("roaming", "network", "Data roaming", "Internet abroad", False),
    Setting("brightness", "display", "Brightness", "Screen light", 60),
    Setting("adaptive", "display", "Adaptive brightness", "Automatic screen light", True),
    Setting("dark_mode", "display", "Dark mode", "Night look", False),
    Setting("dark_keyboard", "display", "Dark keyboard", "Night keyboard", False, decoy=True),
    Setting("rotate", "display", "Rotate screen", "Turn picture with the phone", True),
    Setting(
        "font_size", "display", "Font size", "Letter size", "medium", ("small", "medium", "large")
    ),
    Setting(
        "timeout",
        "display",
        "Screen timeout",
        "Screen goes off after",
        "1 minute",
        ("30 seconds", "1 minute", "5 minutes", "10 minutes"),
    ),
    Setting(
        "dream_timeout",
        "display",
        "Screen saver timeout",
        "Screen saver goes off after",
        "1 minute",
        ("30 seconds", "1 minute", "5 minutes", "10 minutes"),
        decoy=True,
    ),
    Setting("ring_volume", "sound", "Ring volume", "Loudness of calls", 70),
    Setting("media_volume", "sound", "Media volume", "Loudness of music", 50),
    Setting("alarm_volume", "sound", "Alarm volume", "Loudness of alarms", 80),
    Setting("call_volume", "sound", "In-call volume", "Loudness in a call", 55, decoy=True),
    Setting("vibrate", "sound", "Vibrate on ring", "Shake for calls", True),
    Setting("do_not_disturb", "sound", "Do not disturb", "Quiet time", False),
    Setting("ringtone", "sound", "Ringtone", "Call melody", "Bells", ("Bells", "Harp", "Rain")),
    Setting("saver", "battery", "Battery saver", "Save power", False),
    Setting("saver_auto", "battery", "Adaptive battery", "Learn power use", True),
    Setting("percentage", "battery", "Battery percentage", "Charge as a number", False),
    Setting("location", "privacy", "Location", "Where I am", True),
    Setting("location_history", "privacy", "Location history", "Where I was", True, decoy=True),
    Setting("camera", "privacy", "Camera access", "Apps may film", True),
    Setting("microphone", "privacy", "Microphone access", "Apps may listen", True),
    Setting(
        "lock_screen",
        "privacy",
        "Notifications on lock screen",
        "What the lock screen tells",
        "everything",
        ("everything", "names only", "nothing"),
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}
REPEATS = ("once", "every day", "weekdays", "weekends")

WORDS: dict[str, tuple[str, str]] = {
    "settings": ("Settings", "Preferences"),
    "clock": ("Clock", "Time"),
    "messages": ("Messages", "Chats"),
    "contacts": ("Contacts", "People"),
    "network": ("Network", "Connections"),
    "display": ("Display", "Screen"),
    "sound": ("Sound", "Audio"),
    "battery": ("Battery", "Power"),
    "privacy": ("Privacy", "Permissions"),
    "alarm.new": ("Add alarm", "New wake-up"),
    "alarm.time": ("Time", "Rings at"),
    "alarm.label": ("Label", "Called"),
    "save": ("Save", "Done"),
    "delete": ("Delete", "Remove"),
    "message.new": ("New message", "Write to someone"),
    "message.to": ("To", "Recipient"),
    "message.text": ("Message", "Your text"),
    "send": ("Send", "Deliver"),
    "thread.delete": ("Delete conversation", "Remove this chat"),
    "contact.new": ("Add contact", "New person"),
    "contact.name": ("Name", "Called"),
    "contact.number": ("Number", "Telephone"),
    "contact.edit": ("Edit number", "Change telephone"),
    "favourite": ("Favourite", "Starred"),
    "blocked": ("Blocked", "Refuse calls"),
}


class Words:
    """One of the two wordings."""

    def __init__(self, renamed: bool) -> None:
        self.renamed = renamed

    def __getitem__(self, key: str) -> str:
        return WORDS[key][self.renamed]

    def setting(self, key: str) -> str:
        """The label of a setting."""
        return BY_KEY[key].renamed if self.renamed else BY_KEY[key].label


def new_contact(
    name: str, number: str, *, favourite: bool = False, blocked: bool = False
) -> dict[str, Any]:
    """A record of the contacts."""
    return {"name": name, "number": number, "favourite": favourite, "blocked": blocked}


def initial_state(rng: random.Random) -> State:
    """The phone before a task sets it up."""
    return {
        "settings": {s.key: s.default for s in SETTINGS if not s.decoy},
        "alarms": [
            {"time": "06:45", "label": "Work", "repeat": "weekdays", "on": True},
            {"time": "09:30", "label": "Swimming", "repeat": "weekends", "on": False},
            {"time": "13:00", "label": "Pills", "repeat": "every day", "on": True},
            {"time": "22:15", "label": "Bed", "repeat": "every day", "on": rng.random() < 0.5},
        ],
        "contacts": [
            new_contact("Anna Berg", "555 0101", favourite=True),
            new_contact("Bruno Costa", "555 0102"),
            new_contact("Chen Li", "555 0103"),
            new_contact("Dana Fox", "555 0104"),
            new_contact("Emil Sand", "555 0105", blocked=True),
            new_contact("Farah Noor", "555 0106"),
            new_contact("Greta Holm", "555 0107"),
            new_contact("Hugo Weiss", "555 0108"),
            new_contact("Ines Prado", "555 0109"),
        ],
        "messages": [
            {"with": "Anna Berg", "by": "them", "text": "Are we still on for Friday?"},
            {"with": "Dana Fox", "by": "them", "text": "The parcel is at number 12"},
            {"with": "Dana Fox", "by": "me", "text": "Thanks, I will fetch it"},
            {"with": "Hugo Weiss", "by": "them", "text": "Win a prize now"},
        ],
    }


def alarm_text(alarm: dict[str, Any]) -> str:
    """How the clock names an alarm."""
    return ", ".join(part for part in (alarm["time"], alarm["label"], alarm["repeat"]) if part)
