"""Clients of a server: what they count, against a server that does exactly what it is told."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("httpx", reason="extra [bench] is not installed")

from edge_infer.cli.main import app
from edge_infer.errors import ConfigError, ExecutionError
from edge_infer.harness.load.options import LoadOptions, Prompts
from edge_infer.harness.load.run import distribution, load, summarize
from edge_infer.harness.load.stream import Answer
from edge_infer.harness.schema import Artifact


class Fake(BaseHTTPRequestHandler):
    """Streams ``max_tokens`` events ``gap`` seconds apart; counts a word as 1.5 tokens, plus 3."""

    gap, first = 0.01, 0.03
    tokens_per_event = 1
    failing = ""
    """How requests after the first two go wrong."""
    asked: list[dict[str, Any]]

    def log_message(self, *unused: Any) -> None:
        pass

    def _json(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._json(200, {"data": [{"id": "fake-1", "owned_by": "fake"}]})
        elif self.path == "/version":
            self._json(200, {"version": "7"})
        else:
            self._json(404, {"error": {"message": "no such page"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append({**body, "path": self.path})
        kind = self.failing if len(self.asked) > 2 else ""
        if kind == "429":
            self._json(429, {"error": {"message": "the queue is full"}})
            return
        self.send_response(200)
        plain = kind == "not a stream"
        self.send_header("content-type", "application/json" if plain else "text/event-stream")
        self.end_headers()
        try:
            self._stream(body, kind)
        except (BrokenPipeError, ConnectionResetError):
            return

    def _stream(self, body: dict[str, Any], kind: str) -> None:
        chat = "messages" in body
        text = body["messages"][0]["content"] if chat else body["prompt"]
        self._send(": ping")
        time.sleep(self.first)
        if kind == "no JSON":
            self._send("data: {")
        if kind == "error event":
            self._event({"error": {"message": "out of memory"}})
        for _ in range(body["max_tokens"] // self.tokens_per_event):
            piece = {"delta": {"content": "x"}} if chat else {"text": "x"}
            self._event({"choices": [{"index": 0, **piece, "finish_reason": None}]})
            if kind == "cut":
                return
            time.sleep(self.gap)
        self._event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        usage = {
            "prompt_tokens": 3 + round(1.5 * len(text.split())),
            "completion_tokens": body["max_tokens"],
        }
        self._event({"choices": [], "usage": usage})
        self._send("data: [DONE]")

    def _event(self, document: Any) -> None:
        self._send("data: " + json.dumps(document))

    def _send(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\n\n")
        self.wfile.flush()


@contextmanager
def serving(**behaviour: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []
    handler = type("Told", (Fake,), {**behaviour, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def options(url: str, **changes: Any) -> LoadOptions:
    fields = {"clients": (2,), "seconds": 1.0, "prompt_tokens": 60, "generate_tokens": 8}
    return LoadOptions(url=url, **{**fields, **changes})


def test_latencies_and_throughput() -> None:
    with serving(gap=0.02, first=0.1) as (url, _):
        artifact = load(options(url, clients=(1, 3)))
    assert Artifact.model_validate_json(artifact.model_dump_json()) == artifact
    one, three = artifact.arms
    assert (one.name, one.engine.name, one.engine.version) == ("1 clients", "fake", "7")
    assert one.load is not None and three.load is not None
    # A server on a loaded machine is later than it was told, never earlier.
    first, between = one.load.time_to_first_token, one.load.inter_token
    assert first is not None and between is not None
    assert 0.1 <= first.min <= first.p50 <= first.p99 <= first.max
    assert between.p50 > 0.01 and between.p50 <= between.p95 <= between.p99
    throughput = one.metric("throughput")
    assert throughput is not None
    assert throughput.median == pytest.approx(one.load.generated_tokens / one.load.seconds)
    # At most one token a gap for each client.
    assert one.load.generated_tokens <= 1.1 * one.load.seconds / 0.02
    assert three.load.requests >= 3
    assert one.load.tokens_per_event == 1.0
    assert not one.failures


def test_prompts_have_the_wanted_length_and_are_all_different() -> None:
    with serving(first=0) as (url, asked):
        artifact = load(options(url, prompt_tokens=60, seconds=0.5))
    # 3 + 1.5 a word: 38 words are the 60 tokens that were asked for.
    assert artifact.arms[0].load is not None
    assert artifact.arms[0].load.prompt_tokens == (60, 60)
    prompts = [a["prompt"] for a in asked[2:]]
    assert len(set(prompts)) == len(prompts) > 2
    assert {a["max_tokens"] for a in asked[2:]} == {8}
    assert all(a["ignore_eos"] and a["model"] == "fake-1" for a in asked)


def test_chat_and_plain_parameters() -> None:
    with serving() as (url, asked):
        load(options(url + "/v1/", chat=True, ignore_eos=False, model="m", seconds=0.2))
    assert all(a["path"] == "/v1/chat/completions" and a["model"] == "m" for a in asked)
    assert all("ignore_eos" not in a and a["messages"][0]["role"] == "user" for a in asked)


def test_events_of_several_tokens_are_counted_as_tokens() -> None:
    with serving(tokens_per_event=4, first=0, gap=0.001) as (url, _):
        artifact = load(options(url, clients=(1,)))
    found = artifact.arms[0].load
    assert found is not None and found.finished > 0
    assert found.tokens_per_event == 4.0
    assert found.generated_tokens >= 8 * found.finished


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        ("429", "HTTP 429: the queue is full"),
        ("not a stream", "not text/event-stream"),
        ("no JSON", "broken stream"),
        ("error event", "error event: out of memory"),
        ("cut", "ended without a finish_reason"),
    ],
)
def test_failures_are_counted_and_named(failing: str, message: str) -> None:
    with serving(failing=failing) as (url, asked):
        (arm,) = load(options(url, seconds=0.5)).arms
    assert arm.load is not None
    assert arm.load.failed > 0 and arm.load.finished == 0
    assert any(message in text for text in arm.load.errors), arm.load.errors
    assert any(message in f.message for f in arm.failures)
    # Two clients, half a second, a tenth of a second between attempts: not hundreds.
    assert len(asked) - 2 <= 2 * 12


def test_memory_of_the_servers_processes() -> None:
    with serving() as (url, _):
        (arm,) = load(options(url, pid=os.getpid(), seconds=1.2)).arms
    assert arm.memory is not None and arm.memory.peak_anonymous > 0
    assert arm.memory.snapshots[0].processes[0].pid == os.getpid()
    assert arm.load is not None
    times = [p.seconds for p in arm.load.memory]
    assert len(times) >= 2 and times == sorted(times)
    assert all(p.anonymous > 0 for p in arm.load.memory)


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ExecutionError, match="No server answers"):
            load(options(url))


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "ftp://x"},
        {"url": "localhost:80"},
        {"clients": ()},
        {"clients": (0,)},
        {"clients": (2, 2)},
        {"seconds": 0},
        {"prompt_tokens": 0},
        {"generate_tokens": -1},
        {"pid": 1 << 30},
    ],
)
def test_senseless_options_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LoadOptions(**{"url": "http://x", **changes})


def test_base_of_the_api() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://u:p@h:1/v1/"):
        assert LoadOptions(url=url).base == "http://h:1/v1"


def test_window_ends_with_the_time() -> None:
    late = Answer(10.0, arrivals=[10.5, 11.0, 12.5], completion_tokens=None)
    unanswered = Answer(11.5)
    found = summarize([late, unanswered], 2, 10.0, 12.0, 0.1, [])
    assert (found.requests, found.finished, found.failed) == (2, 0, 0)
    assert found.generated_tokens == 2
    silent = Answer(10.0, arrivals=[10.5], completion_tokens=6, finished=True)
    assert summarize([late, silent], 2, 10.0, 12.0, 0.1, []).generated_tokens == 2 * 6 + 6
    assert found.time_to_first_token is not None and found.time_to_first_token.max == 0.5
    assert found.inter_token is not None
    assert (found.inter_token.count, found.inter_token.max) == (1, 0.5)


def test_percentiles() -> None:
    found = distribution([x / 100 for x in range(101)])
    assert found is not None
    assert (found.count, found.p50, found.p95, found.p99) == (101, 0.5, 0.95, 0.99)
    assert distribution([]) is None


def test_prompts_repeat_for_the_same_seed() -> None:
    made = [Prompts(LoadOptions(url="http://x"), "m", 20, seed).body(1) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "http://x", "--threads", "2"], "--threads has no effect with --url"),
        (["model", "--url", "http://x"], "the model has no effect with --url"),
        (["model", "--clients", "2"], "--clients has no effect without --url"),
        (["--url", "http://x", "--clients", "two"], "no list of numbers"),
        ([], "nothing to measure"),
    ],
)
def test_options_without_effect_are_refused(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["bench", *words])
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())


def test_command_writes_the_artifact(tmp_path) -> None:
    output = tmp_path / "load.json"
    with serving(first=0) as (url, _):
        words = ["bench", "--url", url, "--clients", "2", "--seconds", "0.3", "-o", str(output)]
        done = CliRunner().invoke(app, [*words, "--prompt-tokens", "20", "--generate-tokens", "4"])
    assert done.exit_code == 0, done.output
    artifact = Artifact.model_validate_json(output.read_text())
    assert artifact.kind == "load"
    assert artifact.command[:3] == ["edge-infer", "bench", "--url"]
    assert "between tokens" in done.stdout and "throughput" in done.stdout


def test_an_answer_cut_before_its_usage_is_not_finished() -> None:
    """A window may end between the two events, and the tokens would be missing."""
    answer = Answer(sent=0.0)
    answer.take({"choices": [{"text": "x", "finish_reason": "length"}]})
    assert answer.reason and not answer.finished
