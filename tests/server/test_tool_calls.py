"""Tools and reasoning over HTTP. The model is random, so grammars do the steering."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
from http_server import RunningServer, running
from openai.types.chat import ChatCompletion
from test_chat import chunks_of

from edge_infer.server.config import ServerConfig

TEMPLATE = """\
{{ bos_token }}{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}\
 {% endif %}\
{% for m in messages %}<turn>{{ m.role }}:{{ m.content }}\
{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments.x }}\
</tool_call>{% endfor %}{% endfor %}<turn>"""
REASONING = TEMPLATE + "{% if enable_thinking %}<think>{% endif %}{# </think> #}"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "…",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("add", "take")
]


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory) -> Iterator[RunningServer]:
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE)
    with running(tiny_model, ServerConfig(("tiny",), chat_template=template)) as it:
        yield it


@pytest.fixture(scope="module")
def thinker(tiny_model, tmp_path_factory) -> Iterator[RunningServer]:
    template = tmp_path_factory.mktemp("template") / "reasoning.jinja"
    template.write_text(REASONING)
    with running(tiny_model, ServerConfig(("tiny",), chat_template=template)) as it:
        yield it


def call(server, **body):
    return server.chat(tools=TOOLS, temperature=0.8, **{"max_tokens": 300, **body})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "take"}}])
def test_a_call_that_must_come_comes(server, choice) -> None:
    body = {"tool_choice": choice, "parallel_tool_calls": False}
    for seed in (1, 2, 3):
        answer = call(server, seed=seed, **body).json()
        choice_ = ChatCompletion.model_validate(answer).choices[0]
        assert choice_.finish_reason == "tool_calls"
        assert choice_.message.content is None
        (made,) = choice_.message.tool_calls
        assert made.function.name in ("add", "take") if choice == "required" else "take"
        assert 0 <= json.loads(made.function.arguments)["x"] <= 99


def test_streamed_calls_are_the_calls(server) -> None:
    for seed in (1, 2, 3, 4):
        body = {"tool_choice": "required", "seed": seed, "logprobs": True}
        whole = call(server, **body).json()["choices"][0]
        pieces: dict[int, dict] = {}
        reason, tokens = None, 0
        for chunk in chunks_of(call(server, stream=True, **body)):
            (choice,) = chunk["choices"]
            reason = choice["finish_reason"] or reason
            tokens += len(choice["logprobs"]["content"]) if choice["logprobs"] else 0
            for piece in choice["delta"].get("tool_calls", []):
                if "id" in piece:
                    pieces[piece["index"]] = {"name": piece["function"]["name"], "arguments": ""}
                pieces[piece["index"]]["arguments"] += piece["function"]["arguments"]
        assert reason == whole["finish_reason"]
        assert tokens == len(whole["logprobs"]["content"])
        assert list(pieces.values()) == [c["function"] for c in whole["message"]["tool_calls"]]


def test_the_sdk_runs_a_conversation_with_tools(server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    messages: list = [{"role": "user", "content": "Add."}]
    first = client.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, tool_choice="required", max_tokens=300, seed=2
    )
    message = first.choices[0].message
    assert message.tool_calls
    messages.append(message)
    messages += [
        {"role": "tool", "tool_call_id": c.id, "content": "42"} for c in message.tool_calls
    ]
    second = client.chat.completions.create(model="tiny", messages=messages, max_tokens=5)
    assert second.choices[0].message.role == "assistant"
    x = json.loads(message.tool_calls[0].function.arguments)["x"]
    shown = server.post("/tokenize", messages=[_plain(m) for m in messages]).json()["tokens"]
    text = server.post("/detokenize", tokens=shown).json()["prompt"]
    assert f"<tool_call>{message.tool_calls[0].function.name} {x}</tool_call>" in text
    assert "<turn>tool:42" in text


def _plain(message) -> dict:
    return message if isinstance(message, dict) else message.model_dump(exclude_none=True)


def test_tool_choice_none_hides_the_tools(server) -> None:
    message = {"messages": [{"role": "user", "content": "Hello"}]}
    with_tools = server.post("/tokenize", **message, tools=TOOLS).json()["count"]
    plain = server.post("/tokenize", **message).json()["count"]
    assert with_tools > plain
    usage = call(server, tool_choice="none", max_tokens=3).json()["usage"]
    assert usage["prompt_tokens"] == plain
    assert call(server, max_tokens=3).json()["usage"]["prompt_tokens"] == with_tools


def test_reasoning_is_told_apart(thinker) -> None:
    body = {
        "chat_template_kwargs": {"enable_thinking": True},
        "structured_outputs": {"choice": ["yes", "no"]},
        # The closing tag's letters, so that the random model gets there.
        "logit_bias": {str(t): 6 for t in set(token_ids(thinker, "</think>"))},
        "max_tokens": 400,
        "temperature": 1.0,
    }
    for seed in range(4):
        answer = thinker.chat(seed=seed, **body).json()
        (choice,) = answer["choices"]
        details = answer["usage"]["completion_tokens_details"]
        assert choice["message"]["reasoning_content"]
        assert 0 < details["reasoning_tokens"] <= answer["usage"]["completion_tokens"]
        if choice["finish_reason"] == "stop":
            assert choice["message"]["content"] in ("yes", "no")
        else:
            assert choice["message"]["content"] == ""
        chunks = chunks_of(thinker.chat(seed=seed, **body, stream=True))
        for key in ("content", "reasoning_content"):
            streamed = "".join(c["choices"][0]["delta"].get(key) or "" for c in chunks)
            assert streamed == (choice["message"].get(key) or "")


def test_reasoning_effort_turns_thinking_on(thinker) -> None:
    def prompt_tokens(**body) -> int:
        return thinker.chat(max_tokens=1, **body).json()["usage"]["prompt_tokens"]

    plain = prompt_tokens()
    assert prompt_tokens(reasoning_effort="high") == plain + len("<think>")
    assert prompt_tokens(reasoning_effort="none") == plain


def token_ids(server, text: str) -> list[int]:
    return server.post("/tokenize", prompt=text).json()["tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, None),
        ({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"structured_outputs": {"regex": "a"}}, None),
    ],
)
def test_what_cannot_be_honoured_is_named(server, body, param) -> None:
    answer = call(server, **body) if "tools" not in body else server.chat(**body)
    assert answer.status_code == 400, answer.text
    assert param is None or answer.json()["error"]["param"] == param


def test_a_template_without_tools_is_named(start_server) -> None:
    with start_server() as plain:
        answer = plain.chat(tools=TOOLS)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "tools_unsupported"
