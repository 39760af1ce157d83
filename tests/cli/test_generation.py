"""``run`` with a stand-in for the engine: what is printed where, and how Ctrl-C ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from edge_infer import SamplingParams
from edge_infer.cli.common import EXIT_INTERRUPTED
from edge_infer.cli.generation import figures, stream_to_stdout
from edge_infer.cli.main import app
from edge_infer.cli.run import _talk
from edge_infer.errors import ConfigError


def output(text: str = " world", tokens: int = 3) -> Any:
    return SimpleNamespace(
        prompt_token_ids=[1, 2],
        outputs=[SimpleNamespace(text=text, token_ids=list(range(tokens)), finish_reason="length")],
        metrics=SimpleNamespace(prefill_seconds=0.5, decode_seconds=0.25),
    )


class FakeLLM:
    """Answers " world" and keeps what it was asked."""

    asked: list[Any] = []  # noqa: RUF012
    closed = False
    interrupt = False

    def __init__(self, model: str, **options: Any) -> None:
        self.max_model_len = 128
        pool = SimpleNamespace(bytes=10**6)
        self.load_seconds = 0.125
        self.tokenizer = SimpleNamespace(vocab_size=4)
        self.runner = SimpleNamespace(pool=pool, plan=SimpleNamespace(tokens=128))

    def chat_prompt(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"messages": messages}

    def generate(self, prompts: list[Any], params: Any) -> list[Any]:
        FakeLLM.asked = [prompts, params]
        return [output()]

    def stream(self, prompt: Any, params: Any) -> Iterator[str]:
        FakeLLM.asked = [prompt, params]
        try:
            yield " wor"
            if FakeLLM.interrupt:
                raise KeyboardInterrupt
            yield "ld"
            return output()
        finally:
            FakeLLM.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    monkeypatch.setattr("edge_infer.LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "interrupt", False)
    monkeypatch.setattr(FakeLLM, "closed", False)
    return FakeLLM


def test_text_on_stdout_figures_on_stderr(fake) -> None:
    result = CliRunner().invoke(app, ["run", "m", "-p", "hello"])
    assert result.exit_code == 0, result.output
    assert result.stdout == "hello world\n"
    assert "load 0.12 s · tokenizer 0.00 s · prefill 2 tokens" in result.stderr
    assert "decode 3 tokens, 8.0 tok/s" in result.stderr
    assert "KV cache holds 128 tokens in 1 MB" in result.stderr


def test_quiet_prints_only_the_text(fake) -> None:
    result = CliRunner().invoke(app, ["run", "m", "-q", "-p", "hello"])
    assert (result.stdout, result.stderr) == ("hello world\n", "")


def test_json_has_text_tokens_and_figures(fake) -> None:
    result = CliRunner().invoke(app, ["run", "m", "-p", "hello", "--json", "--temperature", "0.5"])
    document = json.loads(result.stdout)
    assert (document["text"], document["token_ids"]) == (" world", [0, 1, 2])
    assert document["prefill_tokens_per_second"] == 4.0
    assert document["load_seconds"] == 0.125
    assert document["tokenizer_seconds"] >= 0
    assert document["memory_anonymous_bytes"] > 1e6
    assert fake.asked[0] == ["hello"]
    assert fake.asked[1].temperature == 0.5


def test_prompt_comes_from_stdin(fake) -> None:
    CliRunner().invoke(app, ["run", "m"], input="from a pipe\n")
    assert fake.asked[0] == "from a pipe"


def test_chat_uses_the_template_and_the_system_message(fake) -> None:
    result = CliRunner().invoke(app, ["run", "m", "--chat", "--system", "be brief", "-p", "hi"])
    assert fake.asked[0] == {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
        ]
    }
    assert result.stdout == " world\n"


def test_a_missing_template_is_told_before_the_first_turn(monkeypatch) -> None:
    class BaseModel(FakeLLM):
        def chat_prompt(self, messages: list[dict[str, str]]) -> dict[str, Any]:
            raise ConfigError("no chat template")

    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked for a turn"))
    with pytest.raises(ConfigError, match="no chat template"):
        _talk(BaseModel("m"), SamplingParams(), [], (0.0, 0.0), quiet=True)  # type: ignore[arg-type]


def test_interrupt_cancels_the_request_and_exits_130(fake, monkeypatch) -> None:
    monkeypatch.setattr(FakeLLM, "interrupt", True)
    result = CliRunner().invoke(app, ["run", "m", "-p", "hello"])
    assert result.exit_code == EXIT_INTERRUPTED
    assert result.stdout == "hello wor"
    assert fake.closed


@pytest.mark.parametrize(
    "arguments",
    [["--system", "x"], ["--chat-template", "gemma"], ["--temperature", "-1"], ["--top-p", "2"]],
)
def test_senseless_parameters(fake, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["run", "m", "-p", "x", *arguments])
    assert result.exit_code == 1
    assert "invalid_parameter" in result.stderr


def test_stream_is_closed_when_printing_stops() -> None:
    closed = []

    def deltas() -> Iterator[str]:
        try:
            yield "a"
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        stream_to_stdout(deltas())
    assert closed == [True]


def test_no_speed_where_nothing_was_timed() -> None:
    found = figures(output(tokens=1), load_seconds=1.0, tokenizer_seconds=0.5)
    assert found["decode_tokens_per_second"] is None
