"""Sizes and durations as people write them: 512M, 2GiB, 90s, 10m."""

from __future__ import annotations

import re

from edge_infer.errors import ConfigError

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_size(text: str, option: str) -> int:
    """Bytes. K, M and G are powers of ten, Ki, Mi and Gi of two; a B may follow.

    Raises ConfigError for anything else, and for less than a byte.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", text.strip().lower())
    size = int(float(found[1]) * _SIZES[found[2]]) if found else 0
    if size < 1:
        raise ConfigError(f"{option} = {text!r} is no size.", remedy="For example 512M or 2GiB.")
    return size


def parse_duration(text: str, option: str) -> float:
    """Seconds; ms, s, m and h may follow the number.

    Raises ConfigError for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|[smh]?)", text.strip().lower())
    if not found:
        raise ConfigError(f"{option} = {text!r} is no time.", remedy="For example 90s, 10m or 1h.")
    return float(found[1]) * _SECONDS[found[2]]
