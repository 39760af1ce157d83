"""Every environment flag of the vLLM plugin, in one table.

A flag is read where it takes effect, so both arms of a comparison run the same code, and each
process of vLLM sees the environment of the one that started it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from edge_infer.errors import ConfigError

_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True)
class Flag:
    """One environment variable; ``default`` is what an unset or empty one means."""

    name: str
    default: str
    meaning: str
    switch: bool = True
    """On or off; otherwise a text."""


TABLE: tuple[Flag, ...] = (
    Flag(
        "EDGE_INFER_WEIGHT_PATH",
        "",
        "Weight path of cpu_int4 matrices, over what the checkpoint's config says.",
        switch=False,
    ),
    Flag(
        "EDGE_INFER_VLLM_ALLOW_UNTESTED",
        "0",
        "Accept a vLLM version that the plugin was not tested with.",
    ),
)

_BY_NAME = {flag.name: flag for flag in TABLE}


def text(name: str) -> str:
    """The flag's value, or its default where it is unset or empty."""
    return os.environ.get(name, "").strip() or _BY_NAME[name].default


def enabled(name: str) -> bool:
    """Whether a switch is on. Raises ConfigError for a value that is neither on nor off."""
    value = text(name).lower()
    if value not in _ON | _OFF:
        raise ConfigError(
            f"{name} is {os.environ.get(name, '')[:40]!r}.", remedy="Set it to 1 (on) or 0 (off)."
        )
    return value in _ON
