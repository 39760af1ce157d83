"""The tasks on the phone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from edge_infer.harness.agent_suite.edits import (
    AddAlarm,
    AddContact,
    ChangeAlarm,
    ChangeContact,
    DeleteAlarm,
    DeleteContact,
    DeleteThread,
    Edit,
    Send,
    Set,
)
from edge_infer.harness.agent_suite.phone_contents import BY_KEY, new_contact
from edge_infer.harness.agent_suite.state import State
from edge_infer.harness.agent_suite.tasks import Decoy, Mistake, Plan, Task

Planner = Callable[[State, random.Random], Plan]

BLUETOOTH_OFF = Mistake(
    Set("bluetooth", False),
    Set("bluetooth", True),
    "Also, I switched Bluetooth off by mistake before; put that right too.",
)
PILLS_OFF = Mistake(
    ChangeAlarm("Pills", on=False),
    ChangeAlarm("Pills", on=True),
    "Also, I switched the Pills alarm off by accident; it has to be on again.",
)
ANNA_UNSTARRED = Mistake(
    ChangeContact("Anna Berg", "favourite", False),
    ChangeContact("Anna Berg", "favourite", True),
    "Also, Anna Berg is no longer a favourite because I tapped the wrong thing; undo that.",
)


def _setting_decoy(key: str, *fooled: Edit) -> Decoy:
    """Another setting with nearly the same name."""

    def add(state: State) -> None:
        state["settings"][key] = BY_KEY[key].default

    return Decoy(add, fooled)


def _alarm_decoy(label: str, repeat: str, time: str, on: bool, *fooled: Edit) -> Decoy:
    """A second alarm of the same label on other days."""

    def add(state: State) -> None:
        alarm = {"time": time, "label": label, "repeat": repeat, "on": on}
        state["alarms"].insert(0, alarm)

    return Decoy(add, fooled)


def _contact_decoy(name: str, *fooled: Edit, messages: Sequence[str] = ()) -> Decoy:
    """A contact whose name is nearly the same."""

    def add(state: State) -> None:
        state["contacts"].insert(0, new_contact(name, "555 0990"))
        for text in messages:
            state["messages"].insert(0, {"with": name, "by": "them", "text": text})

    return Decoy(add, fooled)


def _switch(key: str, value: bool, instruction: str, decoy: Decoy, mistake: Mistake) -> Planner:
    def plan(state: State, rng: random.Random) -> Plan:
        state["settings"][key] = not value
        return Plan(instruction, [Set(key, value)], decoy, mistake)

    return plan


def _brightness(state: State, rng: random.Random) -> Plan:
    value = rng.choice([15, 25, 35, 85])
    decoy = _setting_decoy("dark_keyboard", Set("dark_keyboard", True))
    return Plan(
        f"Set the brightness of the screen to {value} percent.",
        [Set("brightness", value)],
        decoy,
        BLUETOOTH_OFF,
    )


def _volumes(state: State, rng: random.Random) -> Plan:
    ring, media = rng.sample([10, 20, 30, 40, 90], 2)
    return Plan(
        f"I want the ring volume at {ring} and the media volume at {media}.",
        [Set("ring_volume", ring), Set("media_volume", media)],
        _setting_decoy("call_volume", Set("call_volume", ring)),
        Mistake(
            Set("alarm_volume", 0),
            Set("alarm_volume", 80),
            "I set the alarm volume to 0 by mistake; it was 80, set it back.",
        ),
    )


def _timeout(state: State, rng: random.Random) -> Plan:
    value = rng.choice(["30 seconds", "5 minutes", "10 minutes"])
    return Plan(
        f"The screen should stay on for {value} before it times out.",
        [Set("timeout", value)],
        _setting_decoy("dream_timeout", Set("dream_timeout", value)),
        Mistake(
            Set("font_size", "large"),
            Set("font_size", "medium"),
            "And the font size, which I just made large, should be medium as before.",
        ),
    )


def _ringtone(state: State, rng: random.Random) -> Plan:
    value = rng.choice(["Harp", "Rain"])
    return Plan(
        f"Make {value} my ringtone.",
        [Set("ringtone", value)],
        _setting_decoy("call_volume", Set("call_volume", 100)),
        Mistake(
            Set("vibrate", False),
            Set("vibrate", True),
            "I just turned vibration for calls off without wanting to; turn it on again.",
        ),
    )


def _travel(state: State, rng: random.Random) -> Plan:
    state["settings"]["hotspot"] = True
    return Plan(
        "I am about to board a plane: switch airplane mode on and the hotspot off.",
        [Set("airplane", True), Set("hotspot", False)],
        _setting_decoy("wifi_scanning", Set("wifi_scanning", False)),
        BLUETOOTH_OFF,
    )


def _quiet_night(state: State, rng: random.Random) -> Plan:
    return Plan(
        "For the night: do not disturb on, vibrate on ring off, dark mode on.",
        [Set("do_not_disturb", True), Set("vibrate", False), Set("dark_mode", True)],
        _setting_decoy("dark_keyboard", Set("dark_keyboard", True)),
        PILLS_OFF,
    )


def _add_alarm(state: State, rng: random.Random) -> Plan:
    time = f"{rng.randint(5, 9):02}:{rng.choice([5, 20, 35, 50]):02}"
    return Plan(
        f"Make sure that there is one alarm at {time} on weekdays with the label Gym, switched on.",
        [AddAlarm(time, "Gym", "weekdays")],
        _alarm_decoy("Gym", "weekends", "10:00", True, ChangeAlarm("Gym", time=time)),
        PILLS_OFF,
    )


def _one_alarm(state: State, rng: random.Random) -> Plan:
    time = f"{rng.randint(14, 20)}:{rng.choice([10, 25, 40, 55])}"
    return Plan(
        f"I need one alarm today at {time}, just once and without a label. There should be only "
        "one of it.",
        [AddAlarm(time)],
        _alarm_decoy("", "every day", "08:10", False, ChangeAlarm("", on=True)),
        PILLS_OFF,
    )


def _move_alarm(state: State, rng: random.Random) -> Plan:
    time = rng.choice(["05:55", "06:10", "07:25"])
    return Plan(
        f"Move my weekday alarm for work to {time}.",
        [ChangeAlarm("Work", time=time, repeat="weekdays")],
        _alarm_decoy(
            "Work", "weekends", "08:30", True, ChangeAlarm("Work", time=time, repeat="weekends")
        ),
        PILLS_OFF,
    )


def _swimming(state: State, rng: random.Random) -> Plan:
    return Plan(
        "Make sure that the weekend alarm for swimming is on.",
        [ChangeAlarm("Swimming", on=True, repeat="weekends")],
        _alarm_decoy(
            "Swimming",
            "weekdays",
            "17:30",
            False,
            ChangeAlarm("Swimming", on=True, repeat="weekdays"),
        ),
        PILLS_OFF,
    )


def _delete_alarm(state: State, rng: random.Random) -> Plan:
    return Plan(
        "Delete the Bed alarm that rings every day; I do not need it at all any more.",
        [DeleteAlarm("Bed", "every day")],
        _alarm_decoy("Bed", "weekends", "23:45", True, DeleteAlarm("Bed", "weekends")),
        PILLS_OFF,
    )


def _send(state: State, rng: random.Random) -> Plan:
    text = rng.choice(
        ["I will be ten minutes late", "Please bring the keys", "The train is on time"]
    )
    return Plan(
        f'Make sure that I have sent Anna Berg this message, once: "{text}"',
        [Send("Anna Berg", text)],
        _contact_decoy("Anna Bergmann", Send("Anna Bergmann", text)),
        ANNA_UNSTARRED,
    )


def _send_new(state: State, rng: random.Random) -> Plan:
    text = rng.choice(["Happy birthday", "See you at noon", "The meeting has moved to room 4"])
    name = rng.choice(["Farah Noor", "Ines Prado"])
    return Plan(
        f'Make sure that {name} has got this message from me, once: "{text}"',
        [Send(name, text)],
        _contact_decoy(f"{name}-Lund", Send(f"{name}-Lund", text)),
        ANNA_UNSTARRED,
    )


def _delete_thread(state: State, rng: random.Random) -> Plan:
    return Plan(
        "Delete the conversation with Hugo Weiss, but keep the contact.",
        [DeleteThread("Hugo Weiss")],
        _contact_decoy(
            "Hugo Weissman", DeleteThread("Hugo Weissman"), messages=["Lunch on Monday?"]
        ),
        ANNA_UNSTARRED,
    )


def _add_contact(state: State, rng: random.Random) -> Plan:
    number = f"555 02{rng.randint(10, 99)}"
    return Plan(
        f"My contacts should have Olga Marsh with the number {number}.",
        [AddContact("Olga Marsh", number)],
        _contact_decoy("Olga March", ChangeContact("Olga March", "number", number)),
        ANNA_UNSTARRED,
    )


def _number(state: State, rng: random.Random) -> Plan:
    number = f"555 03{rng.randint(10, 99)}"
    return Plan(
        f"Chen Li has a new number, {number}. Correct the contact.",
        [ChangeContact("Chen Li", "number", number)],
        _contact_decoy("Chen Lin", ChangeContact("Chen Lin", "number", number)),
        ANNA_UNSTARRED,
    )


def _favourite(state: State, rng: random.Random) -> Plan:
    name = rng.choice(["Bruno Costa", "Greta Holm"])
    return Plan(
        f"{name} should be one of my favourites.",
        [ChangeContact(name, "favourite", True)],
        _contact_decoy(f"{name} (office)", ChangeContact(f"{name} (office)", "favourite", True)),
        ANNA_UNSTARRED,
    )


def _block(state: State, rng: random.Random) -> Plan:
    return Plan(
        "Block calls from Hugo Weiss, and make sure that Emil Sand is not blocked.",
        [
            ChangeContact("Hugo Weiss", "blocked", True),
            ChangeContact("Emil Sand", "blocked", False),
        ],
        _contact_decoy("Hugo Weissman", ChangeContact("Hugo Weissman", "blocked", True)),
        ANNA_UNSTARRED,
    )


def _delete_contact(state: State, rng: random.Random) -> Plan:
    name = rng.choice(["Emil Sand", "Greta Holm"])
    return Plan(
        f"Remove {name} from my contacts.",
        [DeleteContact(name)],
        _contact_decoy(f"{name} jr", DeleteContact(f"{name} jr")),
        ANNA_UNSTARRED,
    )


_LOCATION = _setting_decoy("location_history", Set("location_history", False))
_WIFI = _setting_decoy("wifi_scanning", Set("wifi_scanning", False))
_DARK = _setting_decoy("dark_keyboard", Set("dark_keyboard", True))

TASKS = [
    Task(
        "phone.wifi_off",
        _switch("wifi", False, "Make sure that Wi-Fi is off.", _WIFI, BLUETOOTH_OFF),
    ),
    Task("phone.dark_mode", _switch("dark_mode", True, "Use dark mode.", _DARK, BLUETOOTH_OFF)),
    Task(
        "phone.location_off",
        _switch(
            "location",
            False,
            "Apps must not know my location: switch it off.",
            _LOCATION,
            PILLS_OFF,
        ),
    ),
    Task("phone.brightness", _brightness),
    Task("phone.volumes", _volumes),
    Task("phone.timeout", _timeout),
    Task("phone.ringtone", _ringtone),
    Task("phone.travel", _travel),
    Task("phone.quiet_night", _quiet_night),
    Task("phone.alarm_add", _add_alarm),
    Task("phone.alarm_once", _one_alarm),
    Task("phone.alarm_move", _move_alarm),
    Task("phone.alarm_on", _swimming),
    Task("phone.alarm_delete", _delete_alarm),
    Task("phone.message", _send),
    Task("phone.message_new", _send_new),
    Task("phone.thread_delete", _delete_thread),
    Task("phone.contact_add", _add_contact),
    Task("phone.contact_number", _number),
    Task("phone.contact_favourite", _favourite),
    Task("phone.contact_block", _block),
    Task("phone.contact_delete", _delete_contact),
]
