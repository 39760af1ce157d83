"""/v1/messages by the anthropic SDK."""

from __future__ import annotations

import pytest

pytest.importorskip("anthropic", reason="extra [test] is not installed")

import anthropic
from anthropic.types import ModelInfo

from edge_infer.server.config import ServerConfig

HELLO = [{"role": "user", "content": "Hello"}]
# The SDK no longer lists temperature, which the API still takes.
SAMPLING = {"temperature": 0.9, "seed": 1}
SEEDED = {"model": "tiny", "max_tokens": 12, "messages": HELLO, "extra_body": SAMPLING}
BODY = {"model": "tiny", "max_tokens": 12, "messages": HELLO}


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_has_what_chat_completions_say(server, client) -> None:
    message = client.messages.create(**SEEDED, system="Be brief.")
    chat = server.chat(
        **SAMPLING, messages=[{"role": "system", "content": "Be brief."}, *HELLO]
    ).json()
    assert message.content[0].text == chat["choices"][0]["message"]["content"] != ""
    assert message.stop_reason == "max_tokens"
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"]
    assert usage.output_tokens == 12


def test_a_stream_ends_with_the_same_message(client) -> None:
    whole = client.messages.create(**SEEDED)
    with client.messages.stream(**SEEDED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 12


def test_stop_sequences_end_the_answer(client) -> None:
    text = client.messages.create(**SEEDED).content[0].text
    stop = next(c for c in text[1:] if c.isascii())
    message = client.messages.create(**SEEDED, stop_sequences=[stop])
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == stop
    assert "".join(b.text for b in message.content) == text[: text.index(stop)]


def test_the_beginning_of_an_answer_is_continued(client) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The"}]
    counted = client.messages.count_tokens(model="tiny", messages=begun).input_tokens
    alone = client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
    message = client.messages.create(**{**SEEDED, "messages": begun})
    total = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert total == counted > alone


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0]",
        ),
        ({"container": "c"}, "container"),
        ({"max_tokens": None}, "max_tokens"),
        ({"mystery": 1}, "mystery"),
        ({"temperature": 2}, "temperature"),
    ],
)
def test_what_is_not_honoured_is_named_in_the_apis_own_shape(server, fields, named) -> None:
    answer = server.post("/v1/messages", **{**BODY, **fields})
    assert answer.status_code == 400
    document = answer.json()
    assert document["type"] == "error"
    assert document["error"]["type"] == "invalid_request_error"
    assert named in document["error"]["message"]


def test_errors_are_those_that_the_sdk_knows(client, start_server) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**SEEDED, "model": "other"})
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(**{**SEEDED, "messages": [{"role": "user", "content": "x" * 9000}]})
    assert e.value.body["error"]["code"] == "context_length_exceeded"
    with start_server(ServerConfig(model_names=("tiny",), api_keys=("secret",))) as locked:
        for key, fails in (("wrong", True), ("secret", False)):
            other = anthropic.Anthropic(base_url=locked.url, api_key=key, max_retries=0)
            if fails:
                with pytest.raises(anthropic.AuthenticationError):
                    other.messages.create(**SEEDED)
            else:
                assert other.messages.create(**SEEDED).content


def test_models_have_the_apis_own_shape(client, server) -> None:
    page = client.models.list()
    assert [m.id for m in page] == ["tiny"]
    (model,) = page.data
    parsed = ModelInfo.model_validate(model.model_dump(mode="json"))
    assert (parsed.display_name, parsed.lifecycle) == ("tiny", "active")
    assert abs(parsed.created_at.timestamp() - server.context.started) < 1
    assert client.models.retrieve("tiny").max_input_tokens == 512
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")
    assert server.http.get("/v1/models").json()["object"] == "list"
