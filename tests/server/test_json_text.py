"""JSON of models and clients: whatever comes of it is JSON again."""

from __future__ import annotations

import json
import sys

import pytest

from edge_infer.server.json_text import loads


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e999", sys.float_info.max),
        ("-1E+400", -sys.float_info.max),
        ("1e-999", 0.0),
        ("1.5", 1.5),
        ("12345678901234567890123", 12345678901234567890123),
        ('{"a": [1e309]}', {"a": [sys.float_info.max]}),
    ],
)
def test_numbers_are_finite(text: str, value: object) -> None:
    assert loads(text) == value
    json.dumps(loads(text), allow_nan=False)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "9" * 5000, "", "{"])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text)
