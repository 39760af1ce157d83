"""Structured output of a random model through the server: what is complete always parses."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from grammar_support import SCHEMAS

from edge_infer.server.json_text import loads

pytest.importorskip("llguidance", reason="extra [serve] is not installed")
jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="extra [test] is not installed")


def schema_format(schema) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def choice(response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


OBJECTS = {name: s for name, s in SCHEMAS.items() if isinstance(s, dict)}


@pytest.mark.parametrize("name", OBJECTS)
def test_complete_answers_follow_the_schema(server, name) -> None:
    # Ends are made likely: a random model takes long to close a string.
    ends = {str(server.context.tokenizer.encode(c)[-1]): 4 for c in '"}],n'}

    def ask(seed: int) -> dict:
        return choice(
            server.chat(
                response_format=schema_format(OBJECTS[name]),
                temperature=1.0,
                seed=seed,
                logit_bias=ends,
                max_tokens=450,
            )
        )

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    assert any(a["finish_reason"] == "stop" for a in answers)
    for answer in answers:
        if answer["finish_reason"] == "stop":
            value = loads(answer["message"]["content"])
            assert jsonschema_rs.is_valid(OBJECTS[name], value)
        else:  # a string or list without bound may outlast its tokens
            assert answer["finish_reason"] == "length"


def test_a_cut_answer_says_so(server) -> None:
    answer = choice(server.chat(response_format=schema_format(OBJECTS["nested"]), max_tokens=5))
    assert answer["finish_reason"] == "length"
    assert answer["message"]["content"].startswith("{")


def test_choices_of_one_request_are_independent(server) -> None:
    response = server.chat(
        structured_outputs={"regex": "[a-z]{8}"}, n=4, temperature=1.5, max_tokens=50, seed=1
    )
    texts = [c["message"]["content"] for c in response.json()["choices"]]
    assert len(set(texts)) == 4 and all(re.fullmatch("[a-z]{8}", t) for t in texts)


def test_streamed_text_is_the_same(server) -> None:
    body = {"response_format": schema_format(OBJECTS["bounds"]), "seed": 3, "max_tokens": 100}
    whole = choice(server.chat(**body))["message"]["content"]
    lines = server.chat(**body, stream=True).text.split("\n")
    chunks = [json.loads(x[6:]) for x in lines if x.startswith("data: {")]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole
