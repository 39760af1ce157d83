"""Requests and events that no client should cause: each gets an error, nobody else notices."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from child_server import serving

from edge_infer.server import process
from edge_infer.server.config import ServerConfig

SHORT = {"prompt": "x", "max_tokens": 3}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def peak_bytes(pid: int) -> int:
    """The most that a process ever had resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_a_kill_under_load_leaves_nothing_that_hinders_a_restart(tiny_model) -> None:
    body = {"prompt": "x", "max_tokens": 450, "ignore_eos": True, "stream": True}
    with serving(tiny_model) as (child, url):
        got = threading.Barrier(5)

        def read() -> None:
            with (
                suppress(httpx.HTTPError),
                httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer,
            ):
                for i, _ in enumerate(answer.iter_lines()):
                    if i == 1:
                        got.wait(60)

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        got.wait(60)
        child.send_signal(signal.SIGKILL)
        for reader in readers:
            reader.join(30)
            assert not reader.is_alive()
    with serving(tiny_model, port=int(url.rsplit(":", 1)[1])) as (_, again):
        assert again == url
        answer = httpx.post(
            f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 3}, timeout=60
        )
        assert answer.json()["usage"]["completion_tokens"] == 3


def test_connections_past_the_limit_are_told_so(start_server, monkeypatch) -> None:
    monkeypatch.setattr(process, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(process, "REFUSED_CONNECTIONS", 2)
    with start_server() as server, ExitStack() as idle:
        host, port = server.url.removeprefix("http://").split(":")
        held = [
            idle.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(4)
        ]
        refused = httpx.post(f"{server.url}/v1/completions", json=SHORT)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["connection"] == "close"
        assert refused.json()["error"]["code"] == "too_many_connections"
        told = [idle.enter_context(socket.create_connection((host, int(port)))) for _ in range(2)]
        cut = idle.enter_context(socket.create_connection((host, int(port)), 10))
        with suppress(ConnectionError):
            assert cut.recv(1) == b""
        for one in [*held, *told]:
            one.close()
        end = time.monotonic() + 10
        while httpx.post(f"{server.url}/v1/completions", json=SHORT).status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_a_body_of_100_mb_costs_no_memory(tiny_model) -> None:
    chunk = b" " * (1 << 20)
    with serving(tiny_model) as (child, url):
        headers = {"content-type": "application/json"}
        httpx.post(f"{url}/v1/completions", json=SHORT, timeout=60)
        before = psutil.Process(child.pid).memory_info().rss
        body = (chunk for _ in range(100))
        answer = httpx.post(f"{url}/v1/completions", content=body, headers=headers, timeout=60)
        assert answer.status_code == 413
        # What fits --body-limit (32 MiB) is held until the limit is passed.
        assert peak_bytes(child.pid) - before < 48 << 20


def test_an_endless_template_stops_alone(start_server, tmp_path) -> None:
    template = tmp_path / "endless.jinja"
    template.write_text(ENDLESS)
    with start_server(ServerConfig(model_names=("tiny",), chat_template=template)) as server:
        answers = []
        chat = threading.Thread(target=lambda: answers.append(server.chat()))
        chat.start()
        done = 0
        while chat.is_alive() or not done:
            answer = server.post("/v1/completions", **SHORT)
            assert answer.status_code == 200
            done += 1
        assert answers[0].status_code == 400
        assert "was stopped" in answers[0].json()["error"]["message"]


RECURSIVE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("schema", "status"),
    [
        (RECURSIVE, 200),
        ({"$ref": "#"}, 400),
        ({"$ref": "#/$defs/none"}, 400),
        ({"$ref": "https://example.org/schema.json"}, 400),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, 400),
        ({"type": "string", "pattern": "(a{1,900}){1,900}"}, 200),
    ],
)
def test_schemas_are_followed_or_refused(server, schema, status) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = server.chat(response_format=wanted, max_tokens=40, temperature=0.9, seed=1)
    assert answer.status_code == status, answer.text
    assert server.chat().status_code == 200


def test_no_request_that_the_description_allows_makes_the_server_fail(server) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="extra [test] is not installed")
    import hypothesis
    from schemathesis.checks import not_a_server_error

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    statuses: set[int] = set()
    for operation in schema.get_all_operations():
        found = operation.ok()

        @hypothesis.given(case=found.as_strategy())
        @hypothesis.settings(
            max_examples=8,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        def check(case) -> None:
            response = case.call(timeout=60)
            statuses.add(response.status_code)
            case.validate_response(response, checks=[not_a_server_error])

        check()
    assert {200, 400} <= statuses
