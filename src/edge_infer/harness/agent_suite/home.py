"""A home with lights, plugs, blinds, locks, thermostats, speakers, sensors and scenes."""

from __future__ import annotations

import json
import random
from typing import Annotated, Any, Literal

from pydantic import Field

from edge_infer.harness.agent_suite.device import Arguments, Device, NoArguments, ToolError
from edge_infer.harness.agent_suite.state import State

Percent = Annotated[int, Field(ge=0, le=100)]
Colour = Literal["white", "warm", "red", "green", "blue"]
Mode = Literal["heat", "eco", "off"]

GUIDE = (
    "You control a home through tools. Find the devices that are meant with list_devices and use "
    "their ids. Do exactly what is asked: change nothing else, and do nothing where it is already "
    "so. When it is done, answer with one short sentence and call no more tools."
)

# key: (kind, room, name, the name in the renamed variant)
DEVICES: dict[str, tuple[str, str, str, str]] = {
    "kitchen_ceiling": ("light", "kitchen", "Kitchen ceiling light", "Kitchen main lamp"),
    "kitchen_coffee": ("plug", "kitchen", "Coffee machine", "Espresso maker"),
    "kitchen_window": ("sensor", "kitchen", "Kitchen window", "Kitchen casement"),
    "living_ceiling": ("light", "living room", "Living room ceiling light", "Lounge main lamp"),
    "living_floor": ("light", "living room", "Floor lamp", "Standing lamp"),
    "living_blind": ("cover", "living room", "Living room blind", "Lounge shutter"),
    "living_speaker": ("speaker", "living room", "Living room speaker", "Lounge loudspeaker"),
    "living_heat": ("thermostat", "living room", "Living room heating", "Lounge radiator"),
    "bedroom_lamp": ("light", "bedroom", "Bedside lamp", "Night table lamp"),
    "bedroom_blind": ("cover", "bedroom", "Bedroom blind", "Bedroom shutter"),
    "bedroom_heat": ("thermostat", "bedroom", "Bedroom heating", "Bedroom radiator"),
    "bedroom_temperature": ("sensor", "bedroom", "Bedroom temperature", "Bedroom thermometer"),
    "nursery_temperature": ("sensor", "nursery", "Nursery temperature", "Nursery thermometer"),
    "nursery_heat": ("thermostat", "nursery", "Nursery heating", "Nursery radiator"),
    "nursery_light": ("light", "nursery", "Night light", "Sleep light"),
    "hall_light": ("light", "hall", "Hall light", "Corridor lamp"),
    "hall_motion": ("sensor", "hall", "Hall motion", "Corridor movement"),
    "front_door": ("lock", "hall", "Front door", "Main entrance"),
    "back_door": ("lock", "kitchen", "Back door", "Rear entrance"),
    "garage_door": ("lock", "garage", "Garage side door", "Garage walk-in door"),
    "garage_charger": ("plug", "garage", "Car charger", "Wall box"),
    "study_fan": ("plug", "study", "Study fan", "Office ventilator"),
    "study_light": ("light", "study", "Desk lamp", "Reading lamp"),
    "washing": ("plug", "utility room", "Washing machine", "Laundry machine"),
    "garden_lights": ("light", "garden", "Garden lights", "Outdoor lights"),
}
STATES: dict[str, dict[str, Any]] = {
    "light": {"on": False, "brightness": 80, "colour": "white"},
    "plug": {"on": False},
    "cover": {"position": 100},
    "speaker": {"playing": False, "volume": 30},
    "thermostat": {"target": 20, "mode": "heat"},
    "lock": {"locked": True},
    "sensor": {"value": "closed"},
}
SENSORS = {"bedroom_temperature": 19, "nursery_temperature": 20, "hall_motion": "none"}
SCENES: dict[str, dict[str, dict[str, Any]]] = {
    "Film": {
        "living_ceiling": {"on": False},
        "living_floor": {"on": True, "brightness": 15, "colour": "warm"},
        "living_blind": {"position": 0},
    },
    "Leaving": {
        "kitchen_ceiling": {"on": False},
        "living_ceiling": {"on": False},
        "hall_light": {"on": False},
        "front_door": {"locked": True},
    },
    "Breakfast": {
        "kitchen_ceiling": {"on": True, "brightness": 100},
        "kitchen_coffee": {"on": True},
    },
}
RENAMED_SCENES = {"Film": "Cinema evening", "Leaving": "Nobody home", "Breakfast": "Early morning"}


def add_device(state: State, key: str, kind: str, room: str, name: str, **changes: Any) -> None:
    """Puts a device of that kind into the state; its values are the kind's, with ``changes``."""
    state["devices"][key] = {
        "kind": kind,
        "room": room,
        "name": name,
        **STATES[kind],
        **changes,
    }


def initial_state(rng: random.Random) -> State:
    """The home before a task sets it up; lamps that no task looks at are on or off by chance."""
    state: State = {"devices": {}}
    for key, (kind, room, name, _) in DEVICES.items():
        add_device(state, key, kind, room, name)
        if kind == "light":
            state["devices"][key]["on"] = rng.random() < 0.5
    for key, value in SENSORS.items():
        state["devices"][key]["value"] = value
    return state


def rename(state: State) -> None:
    """The same home whose owner uses other words."""
    for key, (_, _, _, other) in DEVICES.items():
        state["devices"][key]["name"] = other


class Room(Arguments):
    room: str | None = Field(default=None, description="Only the devices of this room.")


class DeviceId(Arguments):
    device_id: str


class SetLight(DeviceId):
    on: bool | None = None
    brightness: Percent | None = None
    colour: Colour | None = None


class SetCover(DeviceId):
    position: Percent = Field(description="0 is closed, 100 is open.")


class SetSpeaker(DeviceId):
    playing: bool | None = None
    volume: Percent | None = None


class SetThermostat(DeviceId):
    target: Annotated[int, Field(ge=5, le=30)] | None = Field(
        default=None, description="Degrees Celsius."
    )
    mode: Mode | None = None


class SetLock(DeviceId):
    locked: bool


class SceneName(Arguments):
    name: str


class Home(Device):
    """The home as an agent sees it; device ids are given anew in every episode."""

    kind = "home"
    guide = GUIDE

    def __init__(self, state: State, rng: random.Random, *, renamed: bool, reordered: bool) -> None:
        super().__init__(state)
        keys = list(state["devices"])
        self._scenes = {RENAMED_SCENES[name] if renamed else name: name for name in SCENES}
        if reordered:
            rng.shuffle(keys)
            names = list(self._scenes.items())
            rng.shuffle(names)
            self._scenes = dict(names)
        numbers = rng.sample(range(100, 1000), len(keys))
        self._keys = {f"d{number}": key for number, key in zip(numbers, keys, strict=True)}
        offer = self._offer
        offer("list_devices", "Lists devices with id, name, room and state.", Room, self._list)
        offer("get_device", "The state of one device, sensors included.", DeviceId, self._get)
        offer("set_light", "Sets the given values of a light.", SetLight, self._setter("light"))
        offer("set_cover", "Moves a blind.", SetCover, self._setter("cover"))
        offer("set_speaker", "Sets the given values.", SetSpeaker, self._setter("speaker"))
        offer("set_thermostat", "Sets the given values.", SetThermostat, self._setter("thermostat"))
        offer("set_lock", "Locks or unlocks a door.", SetLock, self._setter("lock"))
        offer(
            "toggle_plug",
            "Presses the button of a plug: on becomes off, off becomes on.",
            DeviceId,
            self._toggle,
        )
        offer("list_scenes", "The names of the scenes.", NoArguments, self._list_scenes)
        offer("run_scene", "Sets all devices of a scene.", SceneName, self._run_scene)

    def scene_label(self, scene: str) -> str:
        """What a scene is called in this home."""
        return next(label for label, name in self._scenes.items() if name == scene)

    def _describe(self, device_id: str) -> dict[str, Any]:
        key = self._keys[device_id]
        self.shown.add(f"devices/{key}/")
        return {"id": device_id, **self.state["devices"][key]}

    def _key(self, device_id: str, kind: str | None = None) -> str:
        key = self._keys.get(device_id)
        if key is None:
            raise ToolError(f"there is no device with the id {device_id[:40]!r}")
        actual = self.state["devices"][key]["kind"]
        if kind is not None and actual != kind:
            raise ToolError(f"{device_id} is a {actual}, not a {kind}")
        return key

    def _list(self, arguments: Room) -> str:
        wanted = None if arguments.room is None else arguments.room.casefold().strip()
        rooms = [device["room"] for device in self.state["devices"].values()]
        if wanted is not None and wanted not in rooms:
            raise ToolError(f"there is no such room; there are {', '.join(sorted(set(rooms)))}")
        found = [
            self._describe(device_id)
            for device_id, key in self._keys.items()
            if wanted is None or self.state["devices"][key]["room"] == wanted
        ]
        return json.dumps(found)

    def _get(self, arguments: DeviceId) -> str:
        self._key(arguments.device_id)
        return json.dumps(self._describe(arguments.device_id))

    def _setter(self, kind: str) -> Any:
        def run(arguments: Any) -> str:
            key = self._key(arguments.device_id, kind)
            values = arguments.model_dump(exclude_none=True, exclude={"device_id"})
            if not values:
                raise ToolError("no value was given to set")
            self.state["devices"][key].update(values)
            return json.dumps(self._describe(arguments.device_id))

        return run

    def _toggle(self, arguments: DeviceId) -> str:
        plug = self.state["devices"][self._key(arguments.device_id, "plug")]
        plug["on"] = not plug["on"]
        return "pressed"  # as a real button: what it did has to be looked up

    def _list_scenes(self, arguments: NoArguments) -> str:
        return json.dumps(list(self._scenes))

    def _run_scene(self, arguments: SceneName) -> str:
        by_name = {label.casefold(): scene for label, scene in self._scenes.items()}
        scene = by_name.get(arguments.name.casefold().strip())
        if scene is None:
            raise ToolError(f"there is no such scene; there are {', '.join(self._scenes)}")
        for key, values in SCENES[scene].items():
            self.state["devices"][key].update(values)
        return "done"
