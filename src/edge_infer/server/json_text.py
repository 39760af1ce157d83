"""JSON that a client or a model wrote, as Python values that can be written as JSON again."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn


def loads(text: str) -> Any:
    """The value of ``text``. A number beyond the range of a double, which JSON has (1e999), becomes
    the largest double.

    Raises ValueError for what is no JSON, NaN and infinities included, and for integers of
    thousands of digits; RecursionError for what is nested too deep.
    """
    return json.loads(text, parse_float=_finite, parse_constant=_not_a_number)


def _finite(number: str) -> float:
    return max(-sys.float_info.max, min(float(number), sys.float_info.max))


def _not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
