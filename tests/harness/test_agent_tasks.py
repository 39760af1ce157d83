"""The agent suite's tasks: all can be passed and failed, and failures have names."""

from __future__ import annotations

import pytest
from agents_support import Scripted

from edge_infer.errors import ConfigError
from edge_infer.harness.agent_suite import scripted
from edge_infer.harness.agent_suite.edits import Set, Turn
from edge_infer.harness.agent_suite.episode import Limits, Outcome, run_episode
from edge_infer.harness.agent_suite.state import differing, flatten, plain_text
from edge_infer.harness.agent_suite.tasks import VARIANTS, World, all_tasks, select, start

TASKS = all_tasks()
CASES = [(task, variant) for task in TASKS for variant in task.variants]


def named(case: object) -> str:
    return getattr(case, "id", str(case))


def play(world: World, script, calls: int = 60) -> Outcome:
    return run_episode(world, Scripted(world, script), Limits(calls=calls, replies=calls + 1))


def test_there_are_enough_tasks_and_all_variants() -> None:
    assert len(TASKS) >= 30
    assert len({task.id for task in TASKS}) == len(TASKS)
    assert {task.device for task in TASKS} == {"phone", "home"}
    assert {variant for _, variant in CASES} == set(VARIANTS)


@pytest.mark.parametrize(("task", "variant"), CASES, ids=named)
def test_oracle_passes_within_the_default_limits(task, variant) -> None:
    for seed in (0, 1) if variant == "base" else (0,):
        outcome = play(start(task, variant, seed), scripted.oracle, Limits().calls)
        assert (outcome.success, outcome.failure, outcome.end) == (True, None, "answered")
        assert outcome.refused == 0
        assert outcome.goal_at == (0 if variant == "satisfied" else outcome.calls)


@pytest.mark.parametrize(("task", "variant"), CASES, ids=named)
def test_saboteurs_fail_and_are_named(task, variant) -> None:
    def failure(script, calls: int = 60) -> str | None:
        outcome = play(start(task, variant, 0), script, calls)
        assert outcome.success == (outcome.failure is None)
        return outcome.failure

    assert failure(scripted.careless) == "changed something else"
    if variant == "satisfied":
        assert failure(scripted.unaware) == "changed something else"
        assert failure(scripted.idle) is None
        return
    assert failure(scripted.unaware) == "arrived but did not notice"
    assert failure(scripted.idle) == "never called a tool"
    assert failure(scripted.garbled) == "only refused calls"
    assert failure(scripted.wanderer, 5) == "gave up at limit"
    if variant == "decoy":
        assert failure(scripted.fooled) == "wrong target (decoy)"
    if variant == "undo":
        assert failure(scripted.forgetful) == "undid nothing"


@pytest.mark.parametrize("task", TASKS, ids=named)
def test_taking_it_back_is_toggled_twice(task) -> None:
    world = start(task, "base", 0)
    if not isinstance(world.plan.edits[0], Set | Turn):
        pytest.skip("its first change is not a single value")
    assert play(world, scripted.nervous).failure == "toggled twice"


@pytest.mark.parametrize(("task", "variant"), CASES, ids=named)
def test_worlds_repeat(task, variant) -> None:
    first, again = start(task, variant, 7), start(task, variant, 7)
    assert first.instruction == again.instruction
    assert (first.initial, first.expected) == (again.initial, again.expected)
    look = ("screen", "{}") if task.device == "phone" else ("list_devices", "{}")
    assert first.device.call(*look) == again.device.call(*look)
    assert (first.initial == first.expected) == (variant == "satisfied")


def test_variants_change_what_they_say() -> None:
    (task,) = select(["phone.contact_favourite"])
    seen = {}
    for variant in VARIANTS:
        device = start(task, variant, 3).device
        device.call("home", "{}")
        seen[variant] = device.call("screen", "{}")
    assert seen["renamed"] != seen["base"] == seen["decoy"] == seen["undo"]
    assert "Preferences" in seen["renamed"] and "Settings" not in seen["renamed"]
    (task,) = select(["home.kitchen_light"])
    lists = {v: start(task, v, 3).device.call("list_devices", "{}") for v in VARIANTS}
    assert "Kitchen main lamp" in lists["renamed"] and "Kitchen main lamp" not in lists["base"]
    assert "Kitchen counter light" in lists["decoy"] and "counter" not in lists["reordered"]
    assert lists["reordered"].index("Coffee") != lists["base"].index("Coffee")


def script_of(*edits):
    def script(world: World):
        for edit in edits:
            yield from edit.perform(world.device)

    return script


@pytest.mark.parametrize(
    ("task", "variant", "edits", "failure"),
    [
        ("phone.brightness", "base", [Set("brightness", 1)], "wrong value"),
        ("phone.wifi_off", "satisfied", [Set("wifi", True)], "changed what was already right"),
        ("home.lock_up", "base", [Turn("front_door", locked=True)], "did part of it"),
        (
            "home.heating",
            "base",
            [Turn("living_heat", target=t) for t in (17, 18, 22, 23, 29)],
            "went past the goal",
        ),
        ("phone.wifi_off", "base", [Set("wifi", True)], "saw the control, did not use it"),
        ("phone.wifi_off", "base", [Set("vibrate", True)], "never found the control"),
    ],
)
def test_other_failures_are_named(task: str, variant, edits, failure: str) -> None:
    (found,) = select([task])
    outcome = play(start(found, variant, 0), script_of(*edits))
    assert (outcome.success, outcome.failure) == (False, failure)


def test_unknown_tasks_and_variants_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'phone\.nothing'"):
        select(["phone.nothing"])
    with pytest.raises(ConfigError, match="no variant"):
        start(TASKS[0], "sideways", 0)  # type: ignore[arg-type]


def test_records_count_by_content() -> None:
    one = {"alarms": [{"id": 1, "time": "07:00"}, {"id": 2, "time": "08:00"}]}
    other = {"alarms": [{"id": 5, "time": "08:00"}, {"id": 6, "time": "07:00"}]}
    assert flatten(one) == flatten(other)
    twice = {"alarms": [*one["alarms"], {"time": "07:00"}]}
    assert len(differing(flatten(one), flatten(twice))) == 1
    assert plain_text(' "See you  at noon." ') == plain_text("see you at Noon")
    assert plain_text("See you at noon") != plain_text("See you at nine")
