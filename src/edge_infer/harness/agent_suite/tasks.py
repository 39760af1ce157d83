"""Tasks, their variants, and the world that one episode starts in."""

from __future__ import annotations

import copy
import fnmatch
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from edge_infer.errors import ConfigError
from edge_infer.harness.agent_suite import home, phone, phone_contents
from edge_infer.harness.agent_suite.device import Device
from edge_infer.harness.agent_suite.edits import Edit
from edge_infer.harness.agent_suite.state import Flat, State, differing, flatten

Variant = Literal["base", "renamed", "reordered", "decoy", "satisfied", "undo"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


@dataclass(frozen=True)
class Decoy:
    """Something much like the target. ``fooled``: what an agent does that takes it for that."""

    add: Callable[[State], None]
    fooled: Sequence[Edit]


@dataclass(frozen=True)
class Mistake:
    """What the user did wrong before: the change, how it is put right, and the words for it."""

    made: Edit
    repair: Edit
    said: str


@dataclass(frozen=True)
class Plan:
    """A task with its values drawn: the sentence, and the changes that fulfil it."""

    instruction: str
    edits: Sequence[Edit]
    decoy: Decoy
    mistake: Mistake


@dataclass(frozen=True)
class Task:
    """``plan`` draws the values and prepares the state, so that the edits are not yet fulfilled."""

    id: str
    plan: Callable[[State, random.Random], Plan]
    variants: tuple[Variant, ...] = VARIANTS

    @property
    def device(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True)
class World:
    """The start of one episode, and what it should end in."""

    task: str
    variant: Variant
    seed: int
    instruction: str
    device: Device
    initial: Flat
    expected: Flat
    plan: Plan
    decoy_paths: frozenset[str] = field(default_factory=frozenset)
    """What of the state belongs to the decoy, or changes where it is taken for the target."""
    repair_paths: frozenset[str] = field(default_factory=frozenset)
    """What of the state has to be put right in the undo variant."""
    task_paths: frozenset[str] = field(default_factory=frozenset)
    """What of the state the task is about, fulfilled beforehand or not."""

    def solution(self) -> list[Edit]:
        """The changes that lead from the start to the expected state."""
        if self.variant == "satisfied":
            return []
        repair = [self.plan.mistake.repair] if self.variant == "undo" else []
        return [*repair, *self.plan.edits]

    def solved(self) -> bool:
        """The whole state is as it should be: the target reached and nothing else changed."""
        return flatten(self.device.state) == self.expected


def _with(state: State, edits: Sequence[Edit]) -> State:
    changed = copy.deepcopy(state)
    for edit in edits:
        edit.apply(changed)
    return changed


def start(task: Task, variant: Variant, seed: int) -> World:
    """The world of an episode; the same for the same arguments."""
    if variant not in task.variants:
        raise ConfigError(f"Task {task.id} has no variant {variant!r}.")
    # The variant is not part of the seed, so that variants of a seed differ in nothing else.
    rng = random.Random(f"{task.id}/{seed}")
    on_phone = task.device == "phone"
    state = phone_contents.initial_state(rng) if on_phone else home.initial_state(rng)
    plan = task.plan(state, rng)
    instruction = plan.instruction
    decoy_paths: frozenset[str] = frozenset()
    repair_paths: frozenset[str] = frozenset()
    renamed, reordered = variant == "renamed", variant == "reordered"
    if variant == "decoy":
        before = flatten(state)
        plan.decoy.add(state)
        fooled = flatten(_with(state, plan.decoy.fooled))
        decoy_paths = differing(before, flatten(state)) | differing(flatten(state), fooled)
    if renamed and not on_phone:
        home.rename(state)
    fulfilled = _with(state, plan.edits)
    task_paths = differing(flatten(state), flatten(fulfilled))
    if variant == "undo":
        plan.mistake.made.apply(state)
        repair_paths = differing(flatten(state), flatten(_with(state, [plan.mistake.repair])))
        instruction = f"{instruction} {plan.mistake.said}"
    elif variant == "satisfied":
        state = copy.deepcopy(fulfilled)
    make = phone.Phone if on_phone else home.Home
    return World(
        task=task.id,
        variant=variant,
        seed=seed,
        instruction=instruction,
        device=make(state, rng, renamed=renamed, reordered=reordered),
        initial=flatten(state),
        expected=flatten(fulfilled),
        plan=plan,
        decoy_paths=decoy_paths,
        repair_paths=repair_paths,
        task_paths=task_paths,
    )


def all_tasks() -> list[Task]:
    """Every task of the suite."""
    from edge_infer.harness.agent_suite.tasks_home import TASKS as OF_HOME
    from edge_infer.harness.agent_suite.tasks_phone import TASKS as OF_PHONE

    return [*OF_PHONE, *OF_HOME]


def select(patterns: Sequence[str]) -> list[Task]:
    """Tasks whose id matches one of the patterns (``phone.*``); all of them for no pattern.

    Raises ConfigError for a pattern that matches none.
    """
    tasks = all_tasks()
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(task.id, pattern) for task in tasks):
            raise ConfigError(
                f"No task matches {pattern!r} (of {len(tasks)}).",
                remedy="edge-infer agent-suite --list prints their names.",
            )
    if not patterns:
        return tasks
    return [t for t in tasks if any(fnmatch.fnmatchcase(t.id, p) for p in patterns)]
