"""/v1/responses by the openai SDK."""

from __future__ import annotations

import pytest

pytest.importorskip("openai", reason="extra [test] is not installed")

import openai

SEEDED = {"model": "tiny", "temperature": 0.9, "max_output_tokens": 12, "extra_body": {"seed": 1}}


@pytest.fixture(scope="module")
def responses(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.responses


def test_a_response_has_what_chat_completions_say(server, responses) -> None:
    answer = responses.create(input="Hello", **SEEDED)
    chat = server.chat(temperature=0.9, seed=1).json()
    assert answer.output_text == chat["choices"][0]["message"]["content"] != ""
    assert answer.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert answer.usage.output_tokens == 12
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.temperature == 0.9


def test_a_stream_ends_with_the_same_response(responses) -> None:
    whole = responses.create(input="Hello", **SEEDED)
    with responses.stream(input="Hello", **SEEDED) as stream:
        events = list(stream)
    final = events[-1].response
    assert final.output_text == whole.output_text
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert final.usage.total_tokens == whole.usage.total_tokens


def test_a_conversation_goes_on_by_id(server, responses) -> None:
    first = responses.create(input="Hello", instructions="Be brief.", **SEEDED)
    second = responses.create(input="And now?", previous_response_id=first.id, **SEEDED)
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And now?"},
    ]
    chat = server.chat(messages=messages, temperature=0.9, seed=1).json()
    # Instructions of an earlier response are not carried over, as the API has it.
    assert second.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert second.output_text == chat["choices"][0]["message"]["content"]
    assert second.previous_response_id == first.id


def test_stored_responses_are_read_listed_and_deleted(responses) -> None:
    answer = responses.create(input="Hello", metadata={"topic": "sea"}, **SEEDED)
    assert responses.retrieve(answer.id) == answer
    (item,) = responses.input_items.list(answer.id).data
    assert item.content[0].text == "Hello"
    responses.delete(answer.id)
    for call in (responses.retrieve, responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(answer.id)
    with pytest.raises(openai.BadRequestError) as e:
        responses.create(input="x", previous_response_id=answer.id, **SEEDED)
    assert e.value.param == "previous_response_id"


def test_store_false_keeps_nothing(responses) -> None:
    for stream in (False, True):
        answer = responses.create(input="Hello", store=False, stream=stream, **SEEDED)
        if stream:
            *_, last = answer
            answer = last.response
        with pytest.raises(openai.NotFoundError):
            responses.retrieve(answer.id)


def test_logprobs_are_given_when_included(responses) -> None:
    extra = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = responses.create(input="Hello", **extra, **SEEDED)
    logprobs = answer.output[0].content[0].logprobs
    assert len(logprobs) == 12
    assert all(len(t.top_logprobs) == 2 for t in logprobs)
    assert b"".join(bytes(t.bytes) for t in logprobs).decode(errors="replace")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"input": []}, "input"),
        ({"temperature": 3}, "temperature"),
        ({"best_of": 2}, "best_of"),
        ({"model": "gpt-9"}, "model"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_is_not_honoured_is_named(server, fields, param) -> None:
    answer = server.post("/v1/responses", **{"model": "tiny", "input": "Hello", **fields})
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["param"] is not None and error["param"].startswith(param)
