"""A server that nobody asks gives its memory back, and is there again when somebody does."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from edge_infer.server.config import ServerConfig
from edge_infer.server.lifecycle import QUIET_SECONDS


def wait_until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_an_idle_server_unloads_and_comes_back(start_server) -> None:
    config = ServerConfig(model_names=("tiny",), idle_unload_seconds=0.5)
    with start_server(config) as server:

        def suspended() -> bool:
            # Looking on is no use: it neither wakes the model nor keeps it awake.
            for path in ("/health", "/metrics", "/version", "/v1/models"):
                assert server.http.get(path).status_code == 200
            return server.context.engine.stats().suspended

        body = {"temperature": 0.9, "seed": 4, "structured_outputs": {"regex": "[a-z]{8}"}}
        first = server.chat(**body).json()["choices"]
        for _ in range(2):
            wait_until(suspended)
            assert "edge_infer_model_loaded 0.0" in server.http.get("/metrics").text
            assert server.chat(**body).json()["choices"] == first
            assert not server.context.engine.stats().suspended


def test_a_server_without_the_option_stays_loaded(server) -> None:
    server.chat(max_tokens=1)
    time.sleep(0.3)
    assert not server.context.engine.stats().suspended
    assert "edge_infer_model_loaded 1.0" in server.http.get("/metrics").text


def test_the_vocabulary_is_read_for_grammars_in_a_quiet_moment(start_server) -> None:
    with start_server() as server:
        wait_until(lambda: server.context._grammars.prepared)
        assert server.chat(structured_outputs={"regex": "[a-z]{3}"}).status_code == 200


def test_lazy_grammars_wait_for_the_first_one(start_server) -> None:
    with start_server(ServerConfig(model_names=("tiny",), lazy_grammars=True)) as server:
        assert server.chat().status_code == 200
        time.sleep(4 * QUIET_SECONDS)
        assert not server.context._grammars.prepared
        assert server.chat(structured_outputs={"regex": "[a-z]{3}"}).status_code == 200
        assert server.context._grammars.prepared


def test_unloading_never_loses_a_request(start_server) -> None:
    """Requests, with grammars among them, that come while the server is about to unload."""
    config = ServerConfig(model_names=("tiny",), idle_unload_seconds=0.02)
    with start_server(config) as server:

        def ask(pauses: list[float]) -> list[str]:
            texts = []
            with httpx.Client(base_url=server.url, timeout=60) as http:
                for i, pause in enumerate(pauses):
                    body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
                    if i % 3 == 0:
                        body["structured_outputs"] = {"regex": "[a-z]{3}"}
                    answer = http.post("/v1/completions", json=body)
                    assert answer.status_code == 200, answer.text
                    if i % 3:
                        texts.append(answer.json()["choices"][0]["text"])
                    time.sleep(pause)
            return texts

        with ThreadPoolExecutor(3) as pool:
            pauses = [[(i * k % 5) * 0.02 for i in range(15)] for k in (1, 2, 3)]
            found = [text for texts in pool.map(ask, pauses) for text in texts]
        assert len(found) == 30 and len(set(found)) == 1
