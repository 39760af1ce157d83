"""Tools, formats and reasoning through the Responses and Messages APIs, by their SDKs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("anthropic", reason="extra [test] is not installed")

import anthropic
import openai
from http_server import RunningServer, running
from test_tool_calls import REASONING

from edge_infer.server.config import ServerConfig

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["x"],
    "additionalProperties": False,
}
ASKED = [{"role": "user", "content": "How much?"}]
OPENAI_TOOLS = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}]
ANTHROPIC_TOOLS = [{"name": "add", "input_schema": SCHEMA}]
# A random model ends its reasoning once in some 260 tokens; with this seed, soon.
SEEDED = {"temperature": 0.8, "seed": 4}


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory) -> Iterator[RunningServer]:
    template = tmp_path_factory.mktemp("template") / "reasoning.jinja"
    template.write_text(REASONING)
    with running(tiny_model, ServerConfig(("tiny",), chat_template=template)) as it:
        yield it


@pytest.fixture(scope="module")
def responses(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.responses


@pytest.fixture(scope="module")
def messages(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client.messages


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "add"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "add"}],
        },
    ],
)
def test_a_response_calls_and_takes_the_result(responses, choice) -> None:
    body = {"model": "tiny", "extra_body": SEEDED, "tools": OPENAI_TOOLS, "max_output_tokens": 300}
    answer = responses.create(input=ASKED, tool_choice=choice, parallel_tool_calls=False, **body)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "add"
    assert 0 <= json.loads(call.arguments)["x"] <= 99
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    body["max_output_tokens"] = 8
    going_on = responses.create(input=[result], previous_response_id=answer.id, **body)
    # The same conversation, sent whole as a client without a store does.
    whole = [*ASKED, *(item.model_dump() for item in answer.output), result]
    again = responses.create(input=whole, store=False, **body)
    assert going_on.usage.input_tokens == again.usage.input_tokens > answer.usage.input_tokens


def test_a_response_streams_its_call(responses) -> None:
    body = {"model": "tiny", "extra_body": SEEDED, "tools": OPENAI_TOOLS, "tool_choice": "required"}
    with responses.stream(input=ASKED, parallel_tool_calls=False, **body) as stream:
        events = list(stream)
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (call,) = [i for i in events[-1].response.output if i.type == "function_call"]
    assert "".join(pieces) == call.arguments
    whole = responses.create(input=ASKED, parallel_tool_calls=False, **body)
    (same,) = [i for i in whole.output if i.type == "function_call"]
    assert same.arguments == call.arguments


def test_a_response_follows_a_schema(responses) -> None:
    wanted = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
    answer = responses.create(
        model="tiny", input=ASKED, text=wanted, max_output_tokens=300, extra_body=SEEDED
    )
    assert 0 <= json.loads(answer.output_text)["x"] <= 99


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_message_uses_a_tool_and_takes_the_result(messages, choice) -> None:
    choice = {**choice, "disable_parallel_tool_use": True}
    body = {"model": "tiny", "extra_body": SEEDED, "tools": ANTHROPIC_TOOLS, "max_tokens": 300}
    answer = messages.create(messages=ASKED, tool_choice=choice, **body)
    assert answer.stop_reason == "tool_use"
    (use,) = [block for block in answer.content if block.type == "tool_use"]
    assert use.name == "add" and 0 <= use.input["x"] <= 99
    with messages.stream(messages=ASKED, tool_choice=choice, **body) as stream:
        streamed = stream.get_final_message()
    assert [b.input for b in streamed.content if b.type == "tool_use"] == [use.input]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "42"}
    going_on = messages.create(
        messages=[
            *ASKED,
            {"role": "assistant", "content": [b.model_dump() for b in answer.content]},
            {"role": "user", "content": [result]},
        ],
        **{**body, "max_tokens": 8},
    )
    assert going_on.usage.output_tokens > 0


def test_a_message_follows_a_schema(messages) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = messages.create(
        model="tiny", messages=ASKED, max_tokens=300, output_config=config, extra_body=SEEDED
    )
    assert 0 <= json.loads(answer.content[0].text)["x"] <= 99


def test_thinking_is_off_unless_asked_for(messages) -> None:
    body = {"model": "tiny", "messages": ASKED, "max_tokens": 12, "extra_body": SEEDED}
    plain = messages.create(**body)
    assert all(block.type == "text" for block in plain.content)
    asked = {**SEEDED, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    thought = messages.create(**{**body, "extra_body": asked})
    # The prompt then ends with the opening tag, and all of a short answer is reasoning.
    assert thought.usage.input_tokens > plain.usage.input_tokens
    assert [block.type for block in thought.content] == ["thinking"]
    assert thought.usage.output_tokens_details.thinking_tokens == 12
