"""The state of a device as plain data, and how two states are compared.

A state is nested dicts with scalars at the leaves, and lists of records (alarms, messages). Items
of a list count by their content: an alarm that was moved and one that was deleted and made anew are
the same alarm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

State = dict[str, Any]
Flat = dict[str, Any]
"""Path to value; a record of a list is a path of its own, whose value is how often it is there."""

FREE_TEXT = "text"
"""The key of text that a person wrote; it is compared without case, quotes and final stops."""


def plain_text(text: str) -> str:
    """What two people would call the same message."""
    return " ".join(text.split()).strip("\"'“”„ ").rstrip(".!").casefold()


def _record(item: Mapping[str, Any]) -> str:
    content = {k: v for k, v in item.items() if k != "id"}
    if isinstance(content.get(FREE_TEXT), str):
        content[FREE_TEXT] = plain_text(content[FREE_TEXT])
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


def record_path(collection: str, item: Mapping[str, Any]) -> str:
    """The path that :func:`flatten` gives to a record of a list."""
    return f"{collection}/{_record(item)}"


def flatten(state: Mapping[str, Any], prefix: str = "") -> Flat:
    """All leaves of the state by path."""
    flat: Flat = {}
    for key, value in state.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, path + "/"))
        elif isinstance(value, list):
            for item in value:
                name = record_path(path, item)
                flat[name] = flat.get(name, 0) + 1
        else:
            flat[path] = value
    return flat


def differing(a: Flat, b: Flat) -> frozenset[str]:
    """The paths whose values differ; a path that one side lacks differs."""
    absent = object()
    return frozenset(p for p in a.keys() | b.keys() if a.get(p, absent) != b.get(p, absent))
