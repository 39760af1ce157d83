"""POST /v1/chat/completions."""

from __future__ import annotations

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

SEEDED = {"temperature": 0.9, "seed": 1}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}


def chunks_of(response) -> list[dict]:
    """The JSON documents of a stream, which must end with [DONE]."""
    events = [e for e in response.text.split("\n\n") if e and not e.startswith(":")]
    assert events.pop() == "data: [DONE]"
    assert all(e.startswith("data: ") for e in events)
    return [json.loads(e[6:]) for e in events]


def test_an_answer_has_the_published_shape(server) -> None:
    answer = server.chat(**SEEDED, model="tiny")
    assert answer.status_code == 200
    parsed = ChatCompletion.model_validate(answer.json(), strict=True)
    (choice,) = parsed.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    prompt = server.post("/tokenize", messages=[{"role": "user", "content": "Hello"}]).json()
    assert parsed.usage.prompt_tokens == prompt["count"]
    assert parsed.usage.completion_tokens == 12
    assert parsed.usage.total_tokens == prompt["count"] + 12
    assert server.chat(**SEEDED).json()["choices"] == answer.json()["choices"]


def test_a_stream_is_the_answer_in_pieces(server) -> None:
    body = {**SEEDED, "n": 2, "logprobs": True, "top_logprobs": 2}
    whole = ChatCompletion.model_validate(server.chat(**body).json())
    response = server.chat(**body, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    documents = chunks_of(response)
    chunks = [ChatCompletionChunk.model_validate(c) for c in documents]
    assert documents[-1]["choices"] == []
    assert chunks[-1].usage == whole.usage
    assert all(d["usage"] is None for d in documents[:-1])
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert "".join(c.delta.content or "" for c in mine) == choice.message.content
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
        streamed = [t for c in mine if c.logprobs for t in c.logprobs.content]
        assert [t.model_dump() for t in streamed] == [
            t.model_dump() for t in choice.logprobs.content
        ]
        assert len(streamed) == 12
        assert all(len(t.top_logprobs) == 2 for t in streamed)


def test_bytes_of_logprobs_are_the_text(server) -> None:
    choice = server.chat(**SEEDED, logprobs=True, skip_special_tokens=False).json()["choices"][0]
    raw = b"".join(bytes(t["bytes"]) for t in choice["logprobs"]["content"])
    assert raw.decode("utf-8", errors="replace") == choice["message"]["content"]


def test_a_stop_string_ends_the_text_before_itself(server) -> None:
    text = server.chat(**SEEDED).json()["choices"][0]["message"]["content"]
    stop = text[4:6]
    choice = server.chat(**SEEDED, stop=[stop]).json()["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop


def test_a_continued_message_goes_on_where_it_ends(server) -> None:
    first = [{"role": "user", "content": "Hello"}]
    whole = server.chat(**SEEDED, messages=first, max_tokens=10).json()
    prompt = server.post(
        "/tokenize",
        messages=[*first, {"role": "assistant", "content": "So "}],
        continue_final_message=True,
    ).json()
    assert bytes(prompt["tokens"][-3:]) != b""
    text = server.post("/detokenize", tokens=prompt["tokens"]).json()["prompt"]
    assert text == "<bos><turn>user:Hello<turn>assistant:So "
    assert whole["usage"]["prompt_tokens"] < prompt["count"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"prediction": {"type": "content"}}, "prediction", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"verbosity": "low"}, "verbosity", "unsupported_parameter"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
        ({"beam_width": 4}, "beam_width", "unknown_parameter"),
        ({"temperature": 3}, "temperature", "invalid_parameter"),
        ({"temperature": "0.5"}, "temperature", "invalid_parameter"),
        ({"top_p": 0}, "top_p", "invalid_parameter"),
        ({"n": 1000}, "n", "invalid_request"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_request"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_request"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens", "invalid_request"),
        ({"min_tokens": 99}, "min_tokens", "invalid_parameter"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_request"),
        ({"logit_bias": {"259": 1}}, None, "invalid_parameter"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_request"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
            "unsupported_parameter",
        ),
        ({"messages": []}, "messages", "invalid_parameter"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", None),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_request"),
        ({"messages": [{"role": "tool", "content": "1"}]}, "messages[0].tool_call_id", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
            "messages[0].tool_calls",
            "invalid_request",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_request"),
        ({"tools": [TOOL] * 129}, "tools", "invalid_parameter"),
        ({"tools": [TOOL] * 2}, "tools", "invalid_request"),
        ({"stop": ["x"] * 17}, "stop", "invalid_request"),
        ({"stop": ["x" * 1025]}, "stop", "invalid_request"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids", "invalid_parameter"),
        ({"logit_bias": {str(i): 1 for i in range(4097)}}, "logit_bias", "invalid_parameter"),
    ],
)
def test_what_cannot_be_honoured_is_named(server, body, param, code) -> None:
    answer = server.chat(**body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert code is None or error["code"] == code
    if param is not None:
        assert param in error["message"]


def test_accepted_without_effect(server) -> None:
    body = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "modalities": ["text"],
        "verbosity": "medium",
        "reasoning_effort": "none",
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "stop": None,
        "logit_bias": {},
    }
    assert (
        server.chat(**SEEDED, **body).json()["choices"] == server.chat(**SEEDED).json()["choices"]
    )


def test_every_published_parameter_is_known(server) -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase

    from edge_infer.server.protocol.chat import ChatRequest

    published = set(CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert published <= set(ChatRequest.model_fields)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(server) -> None:
    answer = server.chat(messages=[{"role": "user", "content": "x" * 600}])
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"] and "608" in error["message"]


def test_a_model_that_is_not_served_is_not_found(server) -> None:
    answer = server.chat(model="gpt-4o")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
