"""``edge-infer serve`` as a process: start, drain, stop, and what keeps it from starting."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest
from child_server import serving
from http_server import running
from typer.testing import CliRunner

from edge_infer import LLM
from edge_infer.cli.main import app
from edge_infer.cli.quantities import parse_duration, parse_size
from edge_infer.engine.serving import ServingEngine
from edge_infer.errors import ConfigError, EngineStoppedError
from edge_infer.server import process
from edge_infer.server.config import ServerConfig
from edge_infer.server.front import Front

LONG = {"prompt": "x", "max_tokens": 450, "ignore_eos": True, "stream": True}


def test_it_serves_and_stops_at_sigterm(tiny_model) -> None:
    with serving(tiny_model, "--served-model-name", "a", "--served-model-name", "b") as (
        child,
        url,
    ):
        with httpx.Client(base_url=url) as http:
            assert [m["id"] for m in http.get("/v1/models").json()["data"]] == ["a", "b"]
            answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}, timeout=60)
            assert answer.json()["model"] == "a"
        child.send_signal(signal.SIGTERM)
        _, stderr = child.communicate(timeout=30)
        assert child.returncode == 0
        assert "Traceback" not in stderr


def test_sigterm_lets_what_runs_finish_and_refuses_the_rest(tiny_model) -> None:
    with serving(tiny_model) as (child, url), httpx.Client(base_url=url, timeout=60) as http:
        with http.stream("POST", "/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            child.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            try:
                late = httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, timeout=10)
                assert late.status_code == 503
                assert late.json()["error"]["code"] == "shutting_down"
                assert int(late.headers["retry-after"]) >= 1
                assert httpx.get(f"{url}/health", timeout=10).status_code == 503
            except httpx.ConnectError:  # the long answer was already complete
                pass
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert child.wait(30) == 0


def test_the_drain_has_an_end(tiny_model) -> None:
    with serving(tiny_model, "--drain-seconds", "0") as (child, url):
        with httpx.stream("POST", f"{url}/v1/completions", json=LONG, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            child.send_signal(signal.SIGTERM)
            try:
                rest = [line for line in lines if line]
            except httpx.RemoteProtocolError:
                rest = []
        assert child.wait(30) == 0
        if rest and rest[-1] != "data: [DONE]":
            error = json.loads(rest[-1].removeprefix("data: "))["error"]
            assert error["code"] == "engine_stopped"


def test_a_full_disk_for_logs_changes_nothing(tiny_model) -> None:
    with (
        open("/dev/full", "w") as full,
        serving(tiny_model, "--log-level", "debug", stderr=full) as (child, url),
    ):
        for _ in range(3):
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, timeout=60)
            assert answer.status_code == 200
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=30)
        assert child.returncode == 0


def failing(*args: str, env: dict[str, str] | None = None) -> dict:
    """The error of a server that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "edge_infer.cli", "serve", *args, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 1, done.stderr
    error: dict = json.loads(done.stderr.strip().splitlines()[-1])["error"]
    return error


def test_a_port_in_use_is_named_before_the_model_is_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = failing("/nowhere", "--port", str(port))
        assert error["code"] == "port_in_use"
        assert str(port) in error["message"]


def test_of_two_that_start_at_once_one_gets_the_port(tiny_model) -> None:
    with process.bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with process.bind("127.0.0.1", port) as second:  # neither listens yet
            first.listen()
            engine = ServingEngine(LLM(tiny_model, threads=1))
            with pytest.raises(ConfigError, match=str(port)) as e:
                process.run(engine, ServerConfig(), second)
            assert e.value.code == "port_in_use"


def test_a_model_that_is_not_there_is_named(tmp_path) -> None:
    error = failing(str(tmp_path / "missing"), "--port", "0")
    assert "missing" in error["message"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--log-level", "loud"], "loud"),
        (["--kv-cache-memory", "much"], "--kv-cache-memory"),
        (["--body-limit", "0"], "--body-limit"),
        (["--prefix-cache-memory", "much"], "--prefix-cache-memory"),
        (["--api-key", "two words"], "API key"),
    ],
)
def test_options_that_make_no_sense_are_named(options, named) -> None:
    done = CliRunner().invoke(app, ["serve", "/nowhere", *options, "--json"])
    assert done.exit_code == 1
    assert named in json.loads(done.stderr)["error"]["message"]


def test_a_host_that_cannot_be_had_is_named() -> None:
    for host in ("no.such.host.invalid", "192.0.2.1", "a" * 300):
        with pytest.raises(ConfigError, match=host[:20]):
            process.bind(host, 0)


@pytest.mark.parametrize("option", ["chat_template", "tool_format"])
def test_a_template_or_format_that_is_not_there_stops_the_start(start_server, option) -> None:
    with (
        pytest.raises(ConfigError, match="nothing"),
        start_server(ServerConfig(**{option: "nothing"})),
    ):
        pass


def test_sizes_and_times_as_people_write_them() -> None:
    sizes = {"512M": 512_000_000, "2GiB": 2 << 30, "1.5k": 1500, "64 KiB": 65536, "7": 7}
    assert {t: parse_size(t, "--x") for t in sizes} == sizes
    times = {"90": 90, "90s": 90, "10m": 600, "1.5h": 5400}
    assert {t: parse_duration(t, "--x") for t in times} == times
    for bad in ("", "x", "-1", "1e9", "5d", "0"):
        with pytest.raises(ConfigError, match="--x"):
            parse_size(bad, "--x")
    for bad in ("", "x", "-1", "5d", "1 week"):
        with pytest.raises(ConfigError, match="--x"):
            parse_duration(bad, "--x")


def test_without_its_packages_the_server_says_what_to_install(tmp_path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('none', name='uvicorn')")
    error = failing("/nowhere", env={"PYTHONPATH": str(tmp_path)})
    assert error["code"] == "extra_missing"
    assert "edge-infer[serve]" in error["remedy"]


def test_health_is_answered_while_the_endpoints_are_built(tiny_model, monkeypatch) -> None:
    go, started = threading.Event(), threading.Event()
    build = Front._build

    def slowly(front):
        started.set()
        assert go.wait(30)
        return build(front)

    monkeypatch.setattr(Front, "_build", slowly)
    with running(tiny_model) as server:
        assert started.wait(10)
        assert server.http.get("/health").json() == {"status": "ok"}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.post, "/v1/completions", prompt="x", max_tokens=2)
            while not server.context.in_flight:
                time.sleep(0.005)
            assert server.http.get("/health").status_code == 200 and not answer.done()
            go.set()
            assert answer.result().json()["usage"]["completion_tokens"] == 2
        assert server.http.get("/health").json() == {"status": "ok"}


def test_endpoints_that_cannot_be_built_end_the_server(tiny_model, monkeypatch) -> None:
    def broken(front):
        raise ConfigError("No endpoints.")

    monkeypatch.setattr(Front, "_build", broken)
    engine = ServingEngine(LLM(tiny_model, threads=1))
    with pytest.raises(ConfigError, match="No endpoints"):
        process.run(engine, ServerConfig(), process.bind("127.0.0.1", 0))
    with pytest.raises(EngineStoppedError):
        engine.start()


def test_headers_that_do_not_arrive_close_the_connection(start_server, monkeypatch) -> None:
    monkeypatch.setattr(process, "HEADER_SECONDS", 0.3)
    with start_server() as server:
        host, port = server.url.removeprefix("http://").split(":")
        for sent in (b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nHost: x\r\nA: "):
            with socket.create_connection((host, int(port)), timeout=20) as client:
                client.sendall(sent)
                with suppress(ConnectionResetError):
                    assert client.recv(100) == b""
        # Between two requests of one connection the keep-alive time counts, not this one.
        with httpx.Client(base_url=server.url) as http:
            assert http.get("/health").status_code == 200
            threading.Event().wait(0.6)
            assert http.get("/health").status_code == 200


def test_import_of_the_server_is_light() -> None:
    program = (
        "import sys; import edge_infer.server.process; "
        "print([m for m in sys.argv[1:] if m in sys.modules])"
    )
    heavy = ["torch", "transformers", "vllm", "onnxruntime", "pandas", "llguidance", "tokenizers"]
    heavy += ["fastapi", "starlette", "pydantic"]  # they come while /health is answered already
    done = subprocess.run(
        [sys.executable, "-c", program, *heavy], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_chunks_and_the_prefix_cache_are_options(tiny_model) -> None:
    body = {"prompt": "a prompt of more than one block of the pool " * 3, "max_tokens": 2}

    def cached(url: str) -> list[int]:
        with httpx.Client(base_url=url, timeout=60) as http:
            answers = [http.post("/v1/completions", json=body).json() for _ in range(2)]
        return [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]

    with serving(tiny_model, "--chunk-size", "16") as (_, url):
        first, second = cached(url)
        assert first == 0 < second
    with serving(tiny_model, "--no-prefix-cache") as (_, url):
        assert cached(url) == [0, 0]
