"""Events of a generation as a Response: parsed with the SDK's types, folded as the SDK does."""

from __future__ import annotations

import pytest

pytest.importorskip("openai", reason="extra [test] is not installed")

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from edge_infer.server import pipeline as p
from edge_infer.server.response_events import ResponseBuilder

REQUEST = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "tiny",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "previous_response_id": None,
}
EVENTS = TypeAdapter(ResponseStreamEvent)
RUN = [
    p.Reasoning(0, "Let me "),
    p.Reasoning(0, "see."),
    p.Content(0, "Two "),
    p.Content(0, "calls:"),
    p.ToolCallStart(0, 0, "call_a", "f"),
    p.ToolCallArguments(0, 0, '{"x":'),
    p.ToolCallArguments(0, 0, "1}"),
    p.ToolCallStart(0, 1, "call_b", "g"),
    p.ToolCallArguments(0, 1, "{}"),
    p.Finished(0, "tool_calls"),
    p.Usage(20, 10, 16, 2),
]


def build(events, **fields) -> tuple[ResponseBuilder, list[dict]]:
    builder = ResponseBuilder({**REQUEST, **fields}, tokenizer=None)
    shown = builder.begin()
    for event in events:
        shown += builder.add(event)
    return builder, shown + builder.end()


def test_every_event_has_the_sdk_type_and_a_number() -> None:
    _, shown = build(RUN)
    for i, event in enumerate(shown):
        parsed = EVENTS.validate_python(event)
        assert parsed.type == event["type"] and type(parsed).__name__ != "dict"
        assert parsed.sequence_number == i
    kinds = [e["type"] for e in shown]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert (
        kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    )


def test_items_are_the_deltas_put_together() -> None:
    builder, shown = build(RUN)
    response = Response.model_validate(builder.document)
    assert [item.type for item in response.output] == [
        *("reasoning", "message", "function_call", "function_call")
    ]
    reasoning, message, first, second = response.output
    assert reasoning.content[0].text == "Let me see."
    assert message.content[0].text == "Two calls:"
    assert (first.name, first.call_id, first.arguments) == ("f", "call_a", '{"x":1}')
    assert (second.name, second.call_id, second.arguments) == ("g", "call_b", "{}")
    assert all(item.status == "completed" for item in response.output)
    assert response.usage.input_tokens_details.cached_tokens == 16
    assert response.usage.output_tokens_details.reasoning_tokens == 2
    assert response.usage.total_tokens == 30
    for index, item in enumerate(builder.document["output"]):
        mine = [e for e in shown if e.get("output_index") == index and "delta" in e]
        text = "".join(e["delta"] for e in mine)
        assert text == (item["arguments"] if "arguments" in item else item["content"][0]["text"])
        assert {e["item_id"] for e in mine} == {item["id"]}
        done = [e for e in shown if e["type"].endswith("item.done") and e["output_index"] == index]
        assert [e["item"] for e in done] == [item]


def test_an_answer_that_was_cut_is_incomplete() -> None:
    builder, shown = build([p.Content(0, "Half"), p.Finished(0, "length"), p.Usage(1, 1)])
    response = Response.model_validate(builder.document)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert shown[-1]["type"] == "response.incomplete"


def test_an_error_in_the_midst_fails_the_response() -> None:
    builder = ResponseBuilder(REQUEST, tokenizer=None)
    builder.begin()
    builder.add(p.Content(0, "Half"))
    *_, last = builder.fail("server_error", "Gone.")
    parsed = EVENTS.validate_python(last)
    assert parsed.type == "response.failed"
    assert parsed.response.error.message == "Gone."
    assert parsed.response.output[0].content[0].text == "Half"
