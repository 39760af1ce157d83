"""The tasks in the home."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from edge_infer.harness.agent_suite.edits import Edit, Scene, Turn
from edge_infer.harness.agent_suite.home import add_device
from edge_infer.harness.agent_suite.state import State
from edge_infer.harness.agent_suite.tasks import Decoy, Mistake, Plan, Task

Planner = Callable[[State, random.Random], Plan]

GARAGE_OPEN = Mistake(
    Turn("garage_door", locked=False),
    Turn("garage_door", locked=True),
    "Also, the garage side door got unlocked by mistake; lock it again.",
)
BLIND_DOWN = Mistake(
    Turn("bedroom_blind", position=0),
    Turn("bedroom_blind", position=100),
    "Also, I closed the bedroom blind by accident; open it fully again.",
)
CHARGER_ON = Mistake(
    Turn("garage_charger", on=True),
    Turn("garage_charger", on=False),
    "Also, I started the car charger by mistake; it should be off.",
)


def _decoy(key: str, kind: str, room: str, name: str, *fooled: Edit, **values: Any) -> Decoy:
    """Another device with nearly the same name."""
    return Decoy(lambda state: add_device(state, key, kind, room, name, **values), fooled)


def _turn(
    instruction: str,
    key: str,
    values: dict[str, Any],
    decoy: tuple[str, str],
    mistake: Mistake,
    **before: Any,
) -> Planner:
    """One device gets values. ``before``: what it is set to first; ``decoy``: room and name."""

    def plan(state: State, rng: random.Random) -> Plan:
        device = state["devices"][key]
        device.update(before)
        room, name = decoy
        other = _decoy("decoy", device["kind"], room, name, Turn("decoy", **values), **before)
        return Plan(instruction, [Turn(key, **values)], other, mistake)

    return plan


def _dim(state: State, rng: random.Random) -> Plan:
    level = rng.choice([10, 20, 35, 45])
    state["devices"]["living_floor"]["on"] = False
    values: dict[str, Any] = {"on": True, "brightness": level, "colour": "warm"}
    return Plan(
        f"I want the floor lamp in the living room on, warm, at {level} percent.",
        [Turn("living_floor", **values)],
        _decoy("decoy", "light", "study", "Floor lamp", Turn("decoy", **values)),
        BLIND_DOWN,
    )


def _garden(state: State, rng: random.Random) -> Plan:
    colour = rng.choice(["red", "green", "blue"])
    state["devices"]["garden_lights"]["on"] = False
    return Plan(
        f"Party! The garden lights should be on and {colour}.",
        [Turn("garden_lights", on=True, colour=colour)],
        _decoy("decoy", "light", "garden", "Garden path light", Turn("decoy", on=True)),
        GARAGE_OPEN,
    )


def _heating(state: State, rng: random.Random) -> Plan:
    target = rng.choice([17, 18, 22, 23])
    return Plan(
        f"Set the living room heating to {target} degrees.",
        [Turn("living_heat", target=target)],
        _decoy(
            "decoy",
            "thermostat",
            "living room",
            "Living room floor heating",
            Turn("decoy", target=target),
        ),
        CHARGER_ON,
    )


def _nursery(state: State, rng: random.Random) -> Plan:
    cold = rng.random() < 0.5
    state["devices"]["nursery_temperature"]["value"] = rng.randint(14, 17) if cold else 20
    edit = Turn("nursery_heat", target=22) if cold else Turn("nursery_heat", mode="eco")
    decoy = _decoy(
        "decoy",
        "sensor",
        "nursery",
        "Nursery temperature outside",
        Turn("nursery_heat", mode="eco") if cold else Turn("nursery_heat", target=22),
        value=21 if cold else 5,
    )
    return Plan(
        "Look at the temperature inside the nursery. If it is below 18 degrees, set the nursery "
        "heating to 22; otherwise leave its target and put it into eco mode.",
        [edit],
        decoy,
        CHARGER_ON,
    )


def _hall(state: State, rng: random.Random) -> Plan:
    moving = rng.random() < 0.5
    state["devices"]["hall_motion"]["value"] = "motion" if moving else "none"
    state["devices"]["hall_light"]["on"] = not moving
    state["devices"]["hall_light"]["brightness"] = 50
    return Plan(
        "The hall light should be on if the hall sensor sees motion, and off if it sees none.",
        [Turn("hall_light", on=moving)],
        _decoy(
            "decoy", "light", "hall", "Hall wall light", Turn("decoy", on=moving), on=not moving
        ),
        GARAGE_OPEN,
    )


def _lock_up(state: State, rng: random.Random) -> Plan:
    doors = ["front_door", "back_door"]
    for key in doors:
        state["devices"][key]["locked"] = False
    return Plan(
        "Lock the front door and the back door.",
        [Turn(key, locked=True) for key in doors],
        _decoy("decoy", "lock", "garden", "Back gate", Turn("decoy", locked=True), locked=False),
        BLIND_DOWN,
    )


def _all_off(state: State, rng: random.Random) -> Plan:
    keys = ["living_ceiling", "living_floor"]
    for key in keys:
        state["devices"][key]["on"] = True
    return Plan(
        "Switch off every light in the living room and no other.",
        [Turn(key, on=False) for key in keys],
        _decoy(
            "decoy", "light", "hall", "Living room door light", Turn("decoy", on=False), on=True
        ),
        CHARGER_ON,
    )


def _blinds(state: State, rng: random.Random) -> Plan:
    position = rng.choice([20, 30, 60])
    return Plan(
        f"Move the living room blind to {position} percent.",
        [Turn("living_blind", position=position)],
        _decoy(
            "decoy", "cover", "living room", "Living room awning", Turn("decoy", position=position)
        ),
        CHARGER_ON,
    )


def _music(state: State, rng: random.Random) -> Plan:
    volume = rng.choice([5, 10, 15])
    return Plan(
        f"Play music on the living room speaker, at volume {volume}.",
        [Turn("living_speaker", playing=True, volume=volume)],
        _decoy(
            "decoy",
            "speaker",
            "kitchen",
            "Living-kitchen speaker",
            Turn("decoy", playing=True, volume=volume),
        ),
        GARAGE_OPEN,
    )


def _scene(name: str, instruction: str, mistake: Mistake, **before: dict[str, Any]) -> Planner:
    wrong = {"Film": "Breakfast", "Leaving": "Film", "Breakfast": "Leaving"}[name]

    def plan(state: State, rng: random.Random) -> Plan:
        for key, values in before.items():
            state["devices"][key].update(values)
        # The near name is a lamp here: switching it alone is not what the scene does.
        decoy = _decoy(
            "decoy", "light", "hall", f"{name} lamp", Turn("decoy", on=True), Scene(wrong)
        )
        return Plan(instruction, [Scene(name)], decoy, mistake)

    return plan


def _bedtime(state: State, rng: random.Random) -> Plan:
    devices = state["devices"]
    devices["bedroom_lamp"].update(on=True)
    devices["nursery_light"].update(on=False)
    level = rng.choice([5, 10])
    night: dict[str, Any] = {"on": True, "brightness": level, "colour": "red"}
    return Plan(
        f"Bedtime: the bedside lamp off, the bedroom blind closed, the bedroom heating at 17, and "
        f"the night light on, red, at {level} percent.",
        [
            Turn("bedroom_lamp", on=False),
            Turn("bedroom_blind", position=0),
            Turn("bedroom_heat", target=17),
            Turn("nursery_light", **night),
        ],
        _decoy("decoy", "light", "bedroom", "Bedside lamp left", Turn("decoy", on=False), on=True),
        GARAGE_OPEN,
    )


def _swap(state: State, rng: random.Random) -> Plan:
    first, second = rng.sample([16, 18, 21, 23], 2)
    state["devices"]["living_heat"]["target"] = first
    state["devices"]["bedroom_heat"]["target"] = second
    return Plan(
        f"The living room heating should be at {second} degrees and the bedroom heating at "
        f"{first}; they are the wrong way round if you find them otherwise.",
        [Turn("living_heat", target=second), Turn("bedroom_heat", target=first)],
        _decoy(
            "decoy", "thermostat", "bedroom", "Bedroom towel heating", Turn("decoy", target=first)
        ),
        CHARGER_ON,
    )


TASKS = [
    Task(
        "home.kitchen_light",
        _turn(
            "Switch the kitchen ceiling light on.",
            "kitchen_ceiling",
            {"on": True},
            ("kitchen", "Kitchen counter light"),
            GARAGE_OPEN,
            on=False,
        ),
    ),
    Task(
        "home.coffee",
        _turn(
            "The coffee machine has to be on.",
            "kitchen_coffee",
            {"on": True},
            ("kitchen", "Coffee grinder"),
            BLIND_DOWN,
            on=False,
        ),
    ),
    Task(
        "home.fan_off",
        _turn(
            "The fan in the study must be off.",
            "study_fan",
            {"on": False},
            ("bedroom", "Bedroom fan"),
            GARAGE_OPEN,
            on=True,
        ),
    ),
    Task(
        "home.desk_bright",
        _turn(
            "I am reading: desk lamp on, full brightness.",
            "study_light",
            {"on": True, "brightness": 100},
            ("study", "Desk shelf lamp"),
            BLIND_DOWN,
            on=False,
        ),
    ),
    Task(
        "home.unlock_back",
        _turn(
            "Please unlock the back door, and that one only.",
            "back_door",
            {"locked": False},
            ("garden", "Back gate"),
            CHARGER_ON,
            locked=True,
        ),
    ),
    Task(
        "home.heating_off",
        _turn(
            "Turn the bedroom heating off; leave its target as it is.",
            "bedroom_heat",
            {"mode": "off"},
            ("bathroom", "Bedroom bathroom heating"),
            CHARGER_ON,
            mode="heat",
        ),
    ),
    Task("home.floor_lamp", _dim),
    Task("home.garden_party", _garden),
    Task("home.heating", _heating),
    Task("home.nursery_cold", _nursery),
    Task("home.hall_motion", _hall),
    Task("home.lock_up", _lock_up),
    Task("home.living_off", _all_off),
    Task("home.blind", _blinds),
    Task("home.music", _music),
    Task(
        "home.scene_film",
        _scene("Film", "We want to see a film: set the scene for it.", GARAGE_OPEN),
    ),
    Task(
        "home.scene_leaving",
        _scene(
            "Leaving",
            "I am leaving and nobody stays at home: run the scene for that.",
            BLIND_DOWN,
            hall_light={"on": True},
            front_door={"locked": False},
        ),
    ),
    Task("home.bedtime", _bedtime),
    Task("home.swap_heating", _swap),
]
