"""Agents that are scripts: an oracle that fulfils every task, and saboteurs that fail it.

They prove that each task can be passed and failed, and that failures get their names; they use
the device's tools only, as an agent does, but know the task.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_infer.harness.agent_suite.edits import Edit, Script, Set, Turn
from edge_infer.harness.agent_suite.tasks import World

Agent = Callable[[World], Script]


def oracle(world: World) -> Script:
    """Does what is asked, and nothing else."""
    for edit in world.solution():
        yield from edit.perform(world.device)


def _spoil(world: World) -> Script:
    """A change that no task asks for."""
    on_phone = world.device.kind == "phone"
    edit: Edit = Set("roaming", True) if on_phone else Turn("washing", on=True)
    yield from edit.perform(world.device)


def careless(world: World) -> Script:
    """Changes something else on the way."""
    yield from _spoil(world)
    yield from oracle(world)


def unaware(world: World) -> Script:
    """Reaches the goal and goes on."""
    yield from oracle(world)
    yield from _spoil(world)


def idle(world: World) -> Script:
    """Says that it is done, without a call."""
    yield from ()


def garbled(world: World) -> Script:
    """Calls a tool that does not exist."""
    yield "make_it_so", {}


def wanderer(world: World) -> Script:
    """Looks around for ever."""
    name = "screen" if world.device.kind == "phone" else "list_scenes"
    while True:
        yield name, {}


def fooled(world: World) -> Script:
    """Takes the decoy for the target."""
    for edit in world.plan.decoy.fooled:
        yield from edit.perform(world.device)


def forgetful(world: World) -> Script:
    """Does the task and forgets what was to be undone."""
    for edit in world.plan.edits:
        yield from edit.perform(world.device)


def nervous(world: World) -> Script:
    """Does the first thing that the task asks for, and takes it back."""
    first = world.plan.edits[0]
    yield from first.perform(world.device)
    before: Edit | None = None
    if isinstance(first, Set):
        before = Set(first.key, world.initial[f"settings/{first.key}"])
    elif isinstance(first, Turn):
        values = {k: world.initial[f"devices/{first.key}/{k}"] for k in first.values}
        before = Turn(first.key, **values)
    if before is not None:
        yield from before.perform(world.device)
