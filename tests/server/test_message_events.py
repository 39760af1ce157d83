"""Requests of Anthropic's API as chat requests, and events of a generation as its messages."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("anthropic", reason="extra [test] is not installed")

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from edge_infer.server import pipeline as p
from edge_infer.server.errors import ApiError
from edge_infer.server.message_events import MessageBuilder
from edge_infer.server.protocol.messages import InputMessage, chat_messages

EVENTS = TypeAdapter(RawMessageStreamEvent)
RUN = [
    p.Reasoning(0, "Let me see."),
    p.Content(0, "Two "),
    p.Content(0, "calls:"),
    p.ToolCallStart(0, 0, "call_a", "f"),
    p.ToolCallArguments(0, 0, '{"x":'),
    p.ToolCallArguments(0, 0, "1}"),
    p.ToolCallStart(0, 1, "call_b", "g"),
    p.Finished(0, "tool_calls"),
    p.Usage(20, 10, 16, 2),
]


def build(events, shows_thinking: bool = True) -> tuple[dict, list[dict]]:
    builder = MessageBuilder("tiny", shows_thinking=shows_thinking)
    shown = builder.begin(20)
    for event in events:
        shown += builder.add(event)
    return builder.document, shown + builder.end()


def test_events_have_the_sdk_types_in_the_published_order() -> None:
    _, shown = build(RUN)
    for event in shown:
        assert EVENTS.validate_python(event).type == event["type"]
    kinds = [e["type"] for e in shown]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [e["index"] for e in shown if e["type"] == "content_block_start"]
    stops = [e["index"] for e in shown if e["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2, 3]


def test_blocks_are_the_deltas_put_together() -> None:
    document, _ = build(RUN)
    message = Message.model_validate(document)
    thinking, text, first, second = message.content
    assert thinking.thinking == "Let me see."
    assert text.text == "Two calls:"
    assert (first.id, first.name, first.input) == ("call_a", "f", {"x": 1})
    assert (second.id, second.name, second.input) == ("call_b", "g", {})
    assert message.stop_reason == "tool_use"
    # Anthropic counts what the cache had apart from the input.
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (4, 16)


def test_thinking_is_shown_to_those_who_asked() -> None:
    document, shown = build(RUN, shows_thinking=False)
    assert document["content"][0]["type"] == "text"
    assert "thinking" not in str(shown).replace("thinking_tokens", "")


def test_a_call_that_was_cut_is_no_call() -> None:
    cut = [*RUN[3:5], p.Finished(0, "length"), p.Usage(1, 1)]
    document, _ = build(cut)
    assert document["content"] == []
    assert document["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("finished", "reason", "sequence"),
    [
        (p.Finished(0, "stop"), "end_turn", None),
        (p.Finished(0, "stop", 7), "end_turn", None),
        (p.Finished(0, "stop", "END"), "stop_sequence", "END"),
        (p.Finished(0, "length"), "max_tokens", None),
    ],
)
def test_stop_reasons(finished, reason, sequence) -> None:
    document, _ = build([p.Content(0, "x"), finished, p.Usage(1, 1)])
    assert (document["stop_reason"], document["stop_sequence"]) == (reason, sequence)


def messages(*entries) -> list[InputMessage]:
    return [InputMessage(role=role, content=content) for role, content in entries]


def test_blocks_become_chat_messages() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1"}
    out = chat_messages(
        [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages(
            ("user", "a"),
            ("user", [{"type": "text", "text": "b"}]),
            ("assistant", [{"type": "thinking", "thinking": "hm", "signature": ""}]),
            ("assistant", [{"type": "text", "text": "c"}, use]),
            ("user", [{**result, "content": "42"}, {"type": "text", "text": "d"}]),
        ),
    )
    assert out == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "c",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"x": 1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "f", "content": "42"},
        {"role": "user", "content": "d"},
    ]
    failed = messages(("assistant", [use]), ("user", [{**result, "is_error": True}]))
    assert chat_messages(None, failed)[-1]["content"] == "Error: "


@pytest.mark.parametrize(
    ("role", "block", "param"),
    [
        ("user", {"type": "image"}, "messages[0].content[0]"),
        ("user", {"type": "tool_use"}, "messages[0].content[0]"),
        ("user", {"type": "text"}, "messages[0].content[0].text"),
        ("user", {"type": "tool_result", "tool_use_id": "x"}, "messages[0].content[0].tool_use_id"),
        ("assistant", {"type": "tool_use", "input": 1}, "messages[0].content[0].input"),
        ("assistant", {"type": "tool_result"}, "messages[0].content[0]"),
    ],
)
def test_blocks_that_make_no_sense_are_named(role, block, param) -> None:
    with pytest.raises(ApiError) as e:
        chat_messages(None, messages((role, [block])))
    assert e.value.param == param


def test_a_number_beyond_a_double_stays_json() -> None:
    run = [p.ToolCallStart(0, 0, "call_a", "f"), p.ToolCallArguments(0, 0, '{"x": -1e999}')]
    document, _ = build([*run, p.Finished(0, "tool_calls"), p.Usage(20, 10, 0, 2)])
    (call,) = (b for b in document["content"] if b["type"] == "tool_use")
    assert call["input"] == {"x": -sys.float_info.max}
