"""The agent suite over HTTP against a scripted server, its artifact, and what servers do wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agents_support import Scripted
from pydantic import ValidationError
from typer.testing import CliRunner

from edge_infer.cli.main import app
from edge_infer.errors import ConfigError, ExecutionError
from edge_infer.harness.agent_suite import scripted
from edge_infer.harness.agent_suite.client import HttpAgent, parse_reply
from edge_infer.harness.agent_suite.episode import Limits
from edge_infer.harness.agent_suite.suite import SuiteOptions, failure_counts, run_suite
from edge_infer.harness.agent_suite.tasks import VARIANTS, all_tasks, start
from edge_infer.harness.schema import Artifact
from edge_infer.harness.schema_agent import AgentResults
from edge_infer.harness.stats import wilson

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """An endpoint whose replies are ``answer(body)``: (status, JSON document or bytes)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body["path"], body["key"] = self.path, self.headers.get("Authorization")
            status, document = answer(body)
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *unused: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": 3}}


class ScriptedServer:
    """Plays a script as a model would: from the requests alone.

    It keeps a world of its own for each episode and makes the same calls there: the script reads
    from it what is where, and every result that is sent must be the one that its own device gave.
    """

    def __init__(self, script: Callable, options: SuiteOptions) -> None:
        self._script = script
        self._plan = iter(options.plan())
        self.requests: list[dict[str, Any]] = []

    def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.requests.append(body)
        messages = body["messages"]
        if len(messages) == 2:
            task, variant, seed = next(self._plan)
            self._world = start(task, variant, seed)
            assert (messages[1]["content"], body["seed"]) == (self._world.instruction, seed)
            assert body["tools"] == self._world.device.tools()
            self._agent = Scripted(self._world, self._script)
        else:
            call = messages[-2]["tool_calls"][0]["function"]
            result = self._world.device.call(call["name"], call["arguments"])
            assert messages[-1]["content"] == result
        reply = self._agent.reply(messages, body["tools"], body["seed"])
        if not reply.calls:
            return 200, completion({"content": reply.text})
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in reply.calls
        ]
        return 200, completion({"content": None, "tool_calls": calls}, "tool_calls")


def through_http(script: Callable, options: SuiteOptions):
    server = ScriptedServer(script, options)
    with serving(server) as url, HttpAgent(url, "scripted", api_key="k") as agent:
        episodes, failures = run_suite(options, agent)
    assert not failures
    return episodes, server.requests


def test_oracle_passes_every_task_over_http() -> None:
    # Each task in one variant; test_agent_tasks.py has all of them, without HTTP.
    tasks = [task.id for task in all_tasks()]
    for index, variant in enumerate(VARIANTS):
        options = SuiteOptions(tasks[index :: len(VARIANTS)], [variant], repeats=1, seed=5)
        episodes, requests = through_http(scripted.oracle, options)
        assert [e.failure for e in episodes] == [None] * len(options.tasks)
        assert requests[0]["path"] == "/v1/chat/completions" and requests[0]["key"] == "Bearer k"
        assert requests[0]["model"] == "scripted" and requests[0]["seed"] == 5
        assert all(e.completion_tokens == 3 * (e.calls + 1) for e in episodes)


def test_saboteur_fails_over_http() -> None:
    options = SuiteOptions(tasks=["*.heating", "phone.volumes"], repeats=1)
    episodes, _ = through_http(scripted.careless, options)
    assert failure_counts(episodes) == [("changed something else", 12)]


def test_repeats_are_the_same_run_again_and_transcripts_are_their_hashes(tmp_path: Path) -> None:
    def run(name: str):
        options = SuiteOptions(
            tasks=["phone.message"], variants=["reordered"], repeats=2, transcripts=tmp_path / name
        )
        return through_http(scripted.oracle, options)[0]

    first, again = run("a"), run("b")
    hashes = [e.transcript_sha256 for e in first]
    assert hashes == [e.transcript_sha256 for e in again]
    assert len(set(hashes)) == 2  # two seeds, two conversations
    lines = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert [line["transcript_sha256"] for line in lines] == hashes
    assert lines[0]["messages"][1]["role"] == "user"


def one_task() -> SuiteOptions:
    return SuiteOptions(tasks=["phone.wifi_off"], variants=["base"], repeats=1)


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        ((400, {"error": {"message": "too long"}}), "request refused"),
        ((500, b"oops"), "server error"),
        ((200, b"not json"), "not a chat reply"),
        ((200, {"choices": []}), "not a chat reply"),
        ((200, {"choices": [{"message": {"content": ["x"]}}]}), "not a chat reply"),
        ((200, {"choices": [{"message": {"tool_calls": [{}]}}]}), "not a chat reply"),
        ((200, b"[" * 100000), "not a chat reply"),
        ((200, b" " * (5 << 20)), "not a chat reply"),
        ((200, completion({"content": "Wi-Fi is off now."})), "never called a tool"),
        ((200, completion({"content": "Wi-Fi"}, "length")), "answer cut off"),
    ],
)
def test_what_a_server_does_wrong_is_named(reply, failure: str) -> None:
    with serving(lambda body: reply) as url, HttpAgent(url, "m") as agent:
        ((episode,), _) = run_suite(one_task(), agent)
    assert (episode.success, episode.failure) == (False, failure)


def test_malformed_arguments_go_back_as_the_tools_result() -> None:
    seen = []

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        seen.append(body["messages"])
        if len(body["messages"]) > 3:
            return 200, completion({"content": "I give up."})
        calls = [
            {"id": f"c{i}", "type": "function", "function": {"name": "tap", "arguments": text}}
            for i, text in enumerate(["{", '{"id": "\\ud800"}', "[1]"])
        ]
        return 200, completion({"tool_calls": calls}, "tool_calls")

    with serving(answer) as url, HttpAgent(url, "m") as agent:
        ((episode,), _) = run_suite(one_task(), agent)
    assert (episode.failure, episode.calls, episode.refused_calls) == ("only refused calls", 3, 3)
    results = [m for m in seen[-1] if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in results] == ["c0", "c1", "c2"]
    assert all(m["content"].startswith("error: ") for m in results)


def test_limits_hold_within_one_reply() -> None:
    call = {"type": "function", "function": {"name": "screen", "arguments": "{}"}}
    reply = completion({"tool_calls": [{"id": f"c{i}", **call} for i in range(50)]}, "tool_calls")
    with serving(lambda body: (200, reply)) as url, HttpAgent(url, "m") as agent:
        options = SuiteOptions(
            tasks=["phone.wifi_off"], variants=["base"], repeats=1, limits=Limits(calls=20)
        )
        ((episode,), _) = run_suite(options, agent)
    assert (episode.calls, episode.end, episode.failure) == (20, "limit", "gave up at limit")


def test_a_slow_server_meets_the_timeout() -> None:
    stop = threading.Event()

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        stop.wait(10)
        return 200, {}

    with serving(answer) as url, HttpAgent(url, "m", timeout=0.3) as agent:
        ((episode,), _) = run_suite(one_task(), agent)
        stop.set()
    assert episode.failure == "no answer in time" and "0.3 s" in (episode.error or "")


def test_a_server_that_is_not_there_is_an_error_and_one_that_goes_leaves_results() -> None:
    options = SuiteOptions(tasks=["phone.wifi_off"], repeats=2)
    gone = HttpAgent("http://127.0.0.1:9/v1", "m", timeout=5)
    with gone as agent, pytest.raises(ExecutionError, match="3 episodes in a row"):
        run_suite(options, agent)
    replies = iter([(200, completion({"content": "Done."}))])
    with serving(lambda body: next(replies, (503, b""))) as url, HttpAgent(url, "m") as agent:
        episodes, (failure,) = run_suite(options, agent)
    assert len(episodes) == 4 and "8 episodes were not run" in failure.message


def test_arguments_as_an_object_and_absent_ids_are_understood() -> None:
    call = {"function": {"name": "tap", "arguments": {"id": 3}}}
    (found,) = parse_reply(completion({"tool_calls": [call]})).calls
    assert (found.id, found.name, found.arguments) == ("call_0", "tap", '{"id": 3}')


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    # Values of the closed form, computed with exact fractions.
    [(0, 10, 0.0, 0.27753), (5, 10, 0.23659, 0.76341), (10, 10, 0.72247, 1.0), (1, 1, 0.20655, 1)],
)
def test_wilson(passed: int, n: int, low: float, high: float) -> None:
    assert wilson(passed, n) == pytest.approx((low, high), abs=2e-5)
    assert 0 <= wilson(passed, n)[0] <= passed / n <= wilson(passed, n)[1] <= 1


@pytest.mark.parametrize(("passed", "n"), [(1, 0), (-1, 3), (4, 3)])
def test_wilson_of_nonsense_is_refused(passed: int, n: int) -> None:
    with pytest.raises(ValueError):
        wilson(passed, n)


def test_command_writes_an_artifact_whose_rate_cannot_be_edited(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    words = ["agent-suite", "--tasks", "home.nursery_cold", "--repeats", "2", "-o", str(path)]
    with serving(lambda body: (200, completion({"content": "Done."}))) as url:
        result = CliRunner().invoke(app, [*words, "--url", url, "--model", "m"])
    assert result.exit_code == 0, result.output
    # Doing nothing is right where all is as it should be already, and nowhere else.
    assert "2 of 12 episodes" in result.output
    assert "never called a tool" in result.output
    artifact = Artifact.model_validate_json(path.read_text())
    (arm,) = artifact.arms
    assert artifact.kind == "agent-suite" and arm.agent is not None
    assert {e.variant for e in arm.agent.episodes if e.success} == {"satisfied"}
    assert arm.agent.rate == 2 / 12
    document = arm.agent.model_dump()
    with pytest.raises(ValidationError, match="the episodes give"):
        AgentResults.model_validate({**document, "rate": 0.9})
    document["episodes"][0]["success"] = True
    with pytest.raises(ValidationError):
        AgentResults.model_validate(document)


def test_command_lists_tasks_and_names_what_is_missing() -> None:
    result = CliRunner().invoke(app, ["agent-suite", "--list", "--json"])
    listed = json.loads(result.stdout)
    assert len(listed) == len(all_tasks()) and listed[0]["variants"] == list(VARIANTS)
    result = CliRunner().invoke(app, ["agent-suite"])
    assert result.exit_code == 1 and "--url" in result.output


@pytest.mark.parametrize(
    "changes",
    [{"repeats": 0}, {"seed": -1}, {"variants": []}, {"variants": ["x"]}, {"repeats": 1001}],
)
def test_senseless_options_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SuiteOptions(**changes)


def test_senseless_endpoints_and_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="not an http"):
        HttpAgent("localhost:8000", "m")
    with pytest.raises(ConfigError, match="temperature"):
        HttpAgent("http://localhost/v1", "m", temperature=-1)
    with pytest.raises(ConfigError, match="calls = 0"):
        Limits(calls=0)
