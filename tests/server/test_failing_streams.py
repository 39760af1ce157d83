"""An error after an answer has begun, as the SDKs of the other APIs see it."""

from __future__ import annotations

import pytest

pytest.importorskip("anthropic", reason="extra [test] is not installed")

import anthropic
import openai

from edge_infer.errors import ExecutionError


@pytest.fixture
def failing(server, monkeypatch):
    """The shared server, whose answers fail after their first token."""
    deltas = type(server.context).deltas

    async def fail(self, generation):
        async for delta in deltas(self, generation):
            yield delta
            generation.cancel()
            raise ExecutionError("The logits are NaN.")

    monkeypatch.setattr(type(server.context), "deltas", fail)
    return server


def test_a_response_fails(failing) -> None:
    client = openai.OpenAI(base_url=f"{failing.url}/v1", api_key="none", max_retries=0)
    *_, last = client.responses.create(model="tiny", input="Hello", stream=True)
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error.message == "The logits are NaN."
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(last.response.id)
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model="tiny", input="Hello")


def test_a_message_raises(failing) -> None:
    client = anthropic.Anthropic(base_url=failing.url, api_key="none", max_retries=0)
    body = {"model": "tiny", "max_tokens": 12, "messages": [{"role": "user", "content": "Hello"}]}
    with (
        pytest.raises(anthropic.APIStatusError, match="NaN"),
        client.messages.stream(**body) as stream,
    ):
        stream.until_done()
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(**body)
