"""Items of the Responses API as chat messages, and the store of responses."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="extra [serve] is not installed")

from edge_infer.server.errors import ApiError
from edge_infer.server.protocol.response_items import chat_messages
from edge_infer.server.response_store import ResponseStore, StoredResponse

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "42"}


def test_reasoning_text_and_calls_become_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        CALL,
        {**CALL, "call_id": "c2"},
        RESULT,
    ]
    user, assistant, result = chat_messages([], items)
    assert user == {"role": "user", "content": "Hi"}
    assert assistant["content"] == "A"
    assert assistant["reasoning_content"] == "hm"
    assert [c["id"] for c in assistant["tool_calls"]] == ["c1", "c2"]
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "42"}


def test_a_call_without_text_follows_its_result_in_a_message_of_its_own() -> None:
    roles = [m["role"] for m in chat_messages([CALL, RESULT], [CALL, RESULT])]
    assert roles == ["assistant", "tool", "assistant", "tool"]
    assert chat_messages([], "Hi") == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "computer_call"}, "input[0]"),
        ({}, "input[0]"),
        ({"role": "wizard", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [None]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({**CALL, "arguments": {}}, "input[0].arguments"),
        ({"type": "function_call_output", "output": "1"}, "input[0].call_id"),
        ({"type": "reasoning", "content": 3}, "input[0].content"),
    ],
)
def test_what_makes_no_sense_is_named(item, param) -> None:
    with pytest.raises(ApiError) as e:
        chat_messages([], [item])
    assert e.value.status == 400
    assert e.value.param == param


def stored(name: str, previous: str | None = None, text: str = "") -> StoredResponse:
    document = {"id": name, "previous_response_id": previous, "output": [f"out {name}{text}"]}
    return StoredResponse(document, [{"in": name}])


def test_a_history_is_everything_before_in_order() -> None:
    store = ResponseStore()
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        store.put(stored(name, previous))
    assert store.history(None) == []
    assert store.history("c") == [
        *({"in": "a"}, "out a", {"in": "b"}, "out b", {"in": "c"}, "out c")
    ]
    store.delete("a")
    with pytest.raises(ApiError) as e:
        store.history("c")
    assert (e.value.status, e.value.code) == (400, "previous_response_not_found")
    with pytest.raises(ApiError) as e:
        store.get("a")
    assert e.value.status == 404


def test_the_least_used_go_first() -> None:
    store = ResponseStore(max_responses=3)
    for name in "abc":
        store.put(stored(name))
    store.get("a")
    store.put(stored("d"))
    assert len(store) == 3
    store.get("a")
    with pytest.raises(ApiError):
        store.get("b")


def test_bytes_are_bounded_too() -> None:
    store = ResponseStore(max_bytes=1000)
    store.put(stored("big", text="x" * 1000))
    assert len(store) == 0
    for name in "abcd":
        store.put(stored(name, text="x" * 400))
        assert store.bytes <= 1000
    assert len(store) == 2
    for name in "cd":
        store.delete(name)
    assert store.bytes == 0
