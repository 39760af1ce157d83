"""The simulated devices: whatever is called, the answer is a text and the state stays sound."""

from __future__ import annotations

import json
import random
from xml.etree import ElementTree

import pytest

from edge_infer.harness.agent_suite.state import flatten
from edge_infer.harness.agent_suite.tasks import select, start


def device(task: str = "phone.brightness"):
    (found,) = select([task])
    return start(found, "base", 0).device


@pytest.mark.parametrize("task", ["phone.brightness", "home.heating"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("", "{}"),
        ("no_such_tool", "{}"),
        ("tap", "{"),
        ("tap", "[]"),
        ("tap", "null"),
        ("tap", '{"id": "x"}'),
        ("tap", '{"id": 1e400}'),
        ("tap", '{"id": 99999999999999999999}'),
        ("tap", '{"id": 1, "extra": 2}'),
        ("type", '{"id": 1, "text": "\\ud800"}'),
        ("type", '{"id": 1}'),
        ("swipe", '{"direction": "sideways"}'),
        ("set_light", '{"device_id": "d0", "on": true}'),
        ("set_light", '{"device_id": ["d0"]}'),
        ("get_device", "{}"),
        ("list_devices", '{"room": "cellar"}'),
        ("run_scene", '{"name": "nothing"}'),
        ("tap", "[" * 3000),
        ("tap", '{"id": ' + "1" * 5000 + "}"),
    ],
)
def test_bad_calls_are_errors_in_words_and_change_nothing(task, name, arguments) -> None:
    simulated = device(task)
    before = flatten(simulated.state)
    result = simulated.call(name, arguments)
    assert result.startswith("error: ")
    assert flatten(simulated.state) == before
    assert simulated.events[-1].refused and not simulated.events[-1].changed


def test_tools_have_the_form_of_the_api() -> None:
    for task in ("phone.brightness", "home.heating"):
        for tool in device(task).tools():
            function = tool["function"]
            assert tool["type"] == "function" and function["description"]
            assert function["parameters"]["type"] == "object"
            json.dumps(tool)


def node(xml: str, text: str) -> int:
    return next(int(n.get("id")) for n in ElementTree.fromstring(xml) if n.get("text") == text)


def test_a_long_list_needs_a_swipe_and_hidden_rows_cannot_be_tapped() -> None:
    phone = device()
    xml = phone.call("tap", json.dumps({"id": node(phone.call("screen", "{}"), "Contacts")}))
    assert 'more_below="true"' in xml and "Ines Prado" not in xml
    assert phone.call("tap", '{"id": 9}').startswith("error: there is no node 9")
    below = phone.call("swipe", '{"direction": "up"}')
    assert node(below, "Ines Prado") == 9
    assert 'more_above="true"' in below and 'more_below="false"' in below
    assert phone.call("swipe", '{"direction": "up"}') == below
    assert 'title="Ines Prado"' in phone.call("tap", '{"id": 9}')


def test_a_draft_is_no_state_until_it_is_saved() -> None:
    phone = device()
    before = flatten(phone.state)
    xml = phone.call("tap", json.dumps({"id": node(phone.call("screen", "{}"), "Clock")}))
    while "Add alarm" not in xml:
        xml = phone.call("swipe", '{"direction": "up"}')
    xml = phone.call("tap", json.dumps({"id": node(xml, "Add alarm")}))
    xml = phone.call("type", json.dumps({"id": node(xml, "Time"), "text": "7:30"}))
    assert 'value="07:30"' in xml
    assert phone.call("type", json.dumps({"id": node(xml, "Time"), "text": "25:00"})).startswith(
        "error: "
    )
    phone.call("back", "{}")
    assert flatten(phone.state) == before


def test_random_presses_never_break_the_phone() -> None:
    rng = random.Random(0)
    for seed in range(20):
        (found,) = select(["phone.message"])
        phone = start(found, "reordered", seed).device
        for _ in range(150):
            name = rng.choice(["tap", "tap", "tap", "type", "swipe", "back", "screen"])
            arguments: dict[str, object] = {}
            if name in ("tap", "type"):
                arguments["id"] = rng.randint(1, 12)
            if name == "type":
                arguments["text"] = rng.choice(["9:05", "Anna Berg", '\x00<&">', "50", "é🙂"])
            if name == "swipe":
                arguments["direction"] = rng.choice(["up", "down"])
            result = phone.call(name, json.dumps(arguments))
            if not result.startswith("error: "):
                ElementTree.fromstring(result)
        assert len(phone.events) == 150
