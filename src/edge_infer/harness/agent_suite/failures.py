"""Names for how an episode failed: rules over the device's event log, in a fixed order.

The rules read what was called and what it changed, never what the agent said.
"""

from __future__ import annotations

from typing import Literal

from edge_infer.harness.agent_suite.state import Flat, differing, flatten
from edge_infer.harness.agent_suite.tasks import World

End = Literal["answered", "limit", "cut off", "timeout", "refused", "server error", "not a reply"]
"""Why an episode ended: an answer without a call, the limit of calls, an answer cut at its
tokens, or a request that got no reply, a 4xx, another error, or something that is no reply."""

OF_REQUESTS: dict[str, str] = {
    "timeout": "no answer in time",
    "refused": "request refused",
    "server error": "server error",
    "not a reply": "not a chat reply",
}


def name_failure(world: World, end: End) -> str | None:
    """The name of the failure; None where the device is in the expected state."""
    device = world.device
    final = flatten(device.state)
    if final == world.expected:
        return None
    if end in OF_REQUESTS:
        return OF_REQUESTS[end]
    if not device.events:
        return "answer cut off" if end == "cut off" else "never called a tool"
    if all(event.refused for event in device.events):
        return "only refused calls"
    wrong = differing(final, world.expected)
    needed = differing(world.initial, world.expected)
    extra = wrong - needed
    if extra & world.decoy_paths:
        return "wrong target (decoy)"
    changed = frozenset().union(*(event.changed for event in device.events))
    if wrong <= world.repair_paths and not world.repair_paths & changed:
        return "undid nothing"
    if world.variant == "satisfied" and extra & world.task_paths:
        return "changed what was already right"
    reached = needed and any(event.after == world.expected for event in device.events)
    if reached and not wrong & needed:
        return "arrived but did not notice"
    lost = _lost(world, wrong & needed)
    if lost:
        back = all(final.get(p) == world.initial.get(p) for p in lost)
        return "toggled twice" if back else "went past the goal"
    return _unfinished(world, end, final, wrong, needed)


def _lost(world: World, missing: frozenset[str]) -> frozenset[str]:
    """The paths that are wrong now and were right for a while."""
    events = world.device.events
    return frozenset(
        path
        for path in missing
        if any(path in e.changed and e.after.get(path) == world.expected.get(path) for e in events)
    )


def _collection(path: str) -> str:
    return path.partition("/")[0]


def _unfinished(
    world: World, end: End, final: Flat, wrong: frozenset[str], needed: frozenset[str]
) -> str:
    """The names for states that the target was never right in."""
    missing, extra = wrong & needed, wrong - needed
    # A record that was to become another has become a third: the same list lacks and has too much.
    lists = {_collection(p) for p in extra if "{" in p}
    if any(final.get(p) != world.initial.get(p) for p in missing if "{" not in p):
        return "wrong value"
    if any("{" in p and _collection(p) in lists for p in missing):
        return "wrong value"
    if extra:
        return "changed something else"
    if end == "limit":
        return "gave up at limit"
    if end == "cut off":
        return "answer cut off"
    if missing != needed:
        return "did part of it"
    if any(path.startswith(seen) for path in needed for seen in world.device.shown):
        return "saw the control, did not use it"
    return "never found the control"
