"""Answers that must follow a grammar, over HTTP."""

from __future__ import annotations

import json
import re

import pytest

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


def texts(server, seeds=(1, 2), **body) -> list[str]:
    answers = [server.chat(seed=s, max_tokens=400, **body) for s in seeds]
    assert all(a.status_code == 200 for a in answers), answers[0].text
    choices = [a.json()["choices"][0] for a in answers]
    return [c["message"]["content"] for c in choices if c["finish_reason"] == "stop"]


def test_a_schema_is_followed(server) -> None:
    found = texts(server, response_format=AS_SCHEMA)
    assert found
    for text in found:
        value = json.loads(text)
        assert set(value) == {"name", "age"}
        assert type(value["age"]) is int
    assert texts(server, structured_outputs={"json": SCHEMA}) == found


def test_regular_expressions_choices_and_grammars_are_followed(server) -> None:
    for text in texts(server, structured_outputs={"regex": "[a-c]{3}-[0-9]{2}"}):
        assert re.fullmatch("[a-c]{3}-[0-9]{2}", text)
    for text in texts(server, structured_outputs={"choice": ["red", "green"]}):
        assert text in ("red", "green")
    assert set(texts(server, structured_outputs={"grammar": 'start: "x" "y"'})) == {"xy"}


def test_text_completions_follow_grammars_too(server) -> None:
    body = {"prompt": "x", "structured_outputs": {"choice": ["red", "green"]}, "n": 3}
    answer = server.post("/v1/completions", **body).json()
    assert {c["text"] for c in answer["choices"]} <= {"red", "green"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nothing"}},
                }
            },
            "response_format",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "structured_outputs.grammar"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs.choice",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs.regex",
        ),
    ],
)
def test_a_grammar_that_cannot_be_used_is_named(server, body, param) -> None:
    answer = server.chat(**body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
