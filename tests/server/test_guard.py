"""API keys, bounds of bodies, and errors of the HTTP layer, all in OpenAI's shape."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from contextlib import AsyncExitStack, suppress

import pytest
from http_server import running

from edge_infer.errors import ConfigError
from edge_infer.server import body as body_module
from edge_infer.server.body import Bodies, ClientGone, parse_json
from edge_infer.server.config import ServerConfig
from edge_infer.server.errors import ApiError, field_name

CHAT = "/v1/chat/completions"


def error_of(answer, status: int) -> dict:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.fixture(scope="module")
def guarded(tiny_model):
    config = ServerConfig(
        model_names=("tiny", "alias"),
        api_keys=("first-key", "second-key"),
        body_limit=2000,
        json_depth=16,
        cors_origins=("http://page.example",),
    )
    with running(tiny_model, config) as server:
        server.http.headers["authorization"] = "Bearer second-key"
        yield server


def test_every_path_but_health_wants_a_key(guarded) -> None:
    paths = ("/v1/models", "/metrics", "/version", "/openapi.json", "/v1/nothing")
    for headers in ({"authorization": ""}, {"authorization": "Bearer first-ke"}):
        for path in paths:
            answer = guarded.http.get(path, headers=headers)
            assert error_of(answer, 401)["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert guarded.http.get("/health", headers=headers).status_code == 200
    for headers in (
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"authorization": "", "x-api-key": "first-key"},
    ):
        assert guarded.http.get("/v1/models", headers=headers).status_code == 200


def test_keys_that_no_header_can_carry_are_refused() -> None:
    for key in ("", "two words", "schlüssel", "line\nbreak"):
        with pytest.raises(ConfigError):
            ServerConfig(api_keys=(key,))


def test_unknown_paths_and_methods(guarded) -> None:
    assert error_of(guarded.http.get("/v1/nothing"), 404)["code"] == "not_found"
    answer = guarded.http.get(CHAT)
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"


def test_models_by_name(guarded) -> None:
    data = guarded.http.get("/v1/models").json()["data"]
    assert [m["id"] for m in data] == ["tiny", "alias"]
    assert guarded.http.get("/v1/models/alias").json()["id"] == "alias"
    assert error_of(guarded.http.get("/v1/models/a/b"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_request"),
        (b"{", "invalid_json"),
        (b'{"a": NaN}', "invalid_json"),
        (b'{"a": "\xff"}', "invalid_json"),
        (b'{"a": "\\ud800"}', "invalid_json"),
        (b'{"\\udfff": 1}', "invalid_json"),
        (b"[" * 900 + b"]" * 900, "json_too_deep"),
        (b'{"a":' * 17 + b"1" + b"}" * 17, "json_too_deep"),
        (b"1" * 1990, None),
        (b"[]", None),
        (b"null", None),
    ],
)
def test_bodies_that_are_no_request(guarded, body, code) -> None:
    answer = guarded.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    error = error_of(answer, 400)
    assert code is None or error["code"] == code


def test_parse_json_keeps_what_is_allowed() -> None:
    text = b'{"a": ["\\ud83d\\ude00", 1e3, {"b": []}], "\xc3\xa4": null}'
    assert parse_json(text, 4) == {"a": ["😀", 1000.0, {"b": []}], "ä": None}
    with pytest.raises(ApiError):
        parse_json(b'{"a": [[[[1]]]]}', 4)
    with pytest.raises(ApiError, match="nested"):
        parse_json(b"[" * 100_000 + b"]" * 100_000, 128)


def test_a_body_of_another_type_is_refused(guarded) -> None:
    answer = guarded.http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert error_of(answer, 415)["code"] == "unsupported_media_type"


def test_a_body_over_the_limit_is_refused(guarded) -> None:
    headers = {"content-type": "application/json"}
    for size in (2001, 20_000_000):
        answer = guarded.http.post(CHAT, content=b" " * size, headers=headers)
        error = error_of(answer, 413)
        assert error["code"] == "body_too_large"
        assert str(size) in error["message"] and "2000" in error["message"]


def test_a_body_without_end_is_not_read_for_ever(guarded, monkeypatch) -> None:
    monkeypatch.setattr(body_module, "READ_AT_MOST", 1 << 20)
    with socket.create_connection(("127.0.0.1", int(guarded.url.split(":")[-1])), 20) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer second-key\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        sent, refused = 0, b""
        with suppress(ConnectionError):
            while sent < 200 << 20 and not refused:
                client.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
                if select.select([client], [], [], 0)[0]:
                    refused = client.recv(4096)
        # The connection is closed with data in it, which may overtake the answer.
        assert not refused or b" 413 " in refused.split(b"\r\n")[0]
        assert sent < 100 << 20  # what lies in the buffers of the sockets comes on top


def test_a_body_that_does_not_arrive_ends_with_408(start_server) -> None:
    with (
        start_server(ServerConfig(body_seconds=0.5)) as server,
        socket.create_connection(("127.0.0.1", int(server.url.split(":")[-1])), 20) as client,
    ):
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        start = time.monotonic()
        assert b" 408 " in client.recv(4096).split(b"\r\n")[0]
        assert time.monotonic() - start >= 0.4


def receiver(*parts: bytes, left: bool = False):
    """An ASGI receive that gives the parts of a body; ``left``: the client then goes."""
    messages = [{"type": "http.request", "body": p, "more_body": True} for p in parts]
    if left:
        messages.append({"type": "http.disconnect"})
    else:
        messages[-1]["more_body"] = False

    async def receive() -> dict:
        return messages.pop(0)

    return receive


def test_a_client_that_leaves_inside_its_body_is_no_error() -> None:
    async def main() -> None:
        bodies = Bodies(10, 5.0)
        with pytest.raises(ClientGone):
            async with bodies.read(receiver(b"a", left=True)):
                pass

    asyncio.run(main())


def test_bodies_are_bounded_together() -> None:
    async def main() -> None:
        bodies = Bodies(10, 5.0)
        for _ in range(3):  # everything is given back each time
            async with AsyncExitStack() as held:
                for i in range(8):
                    body = await held.enter_async_context(
                        bodies.read(receiver(b"123456", b"%d789" % i))
                    )
                    assert body == b"123456%d789" % i
                with pytest.raises(ApiError) as busy:
                    await held.enter_async_context(bodies.read(receiver(b"1")))
                assert busy.value.status == 503
            with pytest.raises(ApiError, match="12 bytes"):
                async with bodies.read(receiver(b"123456", b"123456")):
                    pass

    asyncio.run(main())


def test_a_text_that_cannot_fit_never_reaches_the_tokenizer(server, monkeypatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the tokenizer was asked")

    monkeypatch.setattr(server.context.tokenizer, "encode", never)
    text = "x" * (512 * 256 + 1)
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        ("/v1/completions", {"prompt": text}),
        ("/v1/embeddings", {"input": text}),
        ("/tokenize", {"prompt": text}),
    ):
        error = error_of(server.post(path, **body), 400)
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]


def test_cross_origin_requests_are_off_by_default(server, guarded) -> None:
    ask = {"origin": "http://page.example", "access-control-request-method": "POST"}
    allowed = guarded.http.options(CHAT, headers={**ask, "authorization": ""})
    assert allowed.headers["access-control-allow-origin"] == "http://page.example"
    other = guarded.http.get("/health", headers={"origin": "http://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    for answer in (
        server.http.options(CHAT, headers=ask),
        server.http.get("/health", headers={"origin": "http://page.example"}),
    ):
        assert not [h for h in answer.headers if h.startswith("access-control")]


def test_field_names_read_like_paths() -> None:
    assert field_name(["messages", 0, "content", "str"]) == "messages[0].content"
    assert field_name(["prompt", "list[constrained-int]", 3]) == "prompt[3]"


def test_metrics_tell_of_requests_and_memory(server) -> None:
    from prometheus_client.parser import text_string_to_metric_families as parse

    def read() -> dict[str, float]:
        answer = server.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = [s for family in parse(answer.text) for s in family.samples]
        return {s.name + "".join(f",{v}" for v in s.labels.values()): s.value for s in samples}

    before = read()
    server.chat(max_tokens=5, ignore_eos=True)
    after = read()

    def grew(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grew("edge_infer_generated_tokens_total") == 5
    assert grew("edge_infer_time_to_first_token_seconds_count") == 1
    assert grew("edge_infer_inter_token_seconds_count") == 4
    assert grew("edge_infer_http_responses_total,200") == 2  # the chat and the first scrape
    assert after["edge_infer_requests_running"] == 0
    server.chat(messages=[{"role": "user", "content": "cached " * 30}])
    again = server.chat(messages=[{"role": "user", "content": "cached " * 30}]).json()
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert read()["edge_infer_cached_prompt_tokens_total"] >= cached
    assert after["edge_infer_memory_bytes,anonymous"] > 1e6
    assert after["edge_infer_memory_bytes,file"] > 1e6


def test_the_ledger_names_every_owner(server, monkeypatch) -> None:
    server.chat(max_tokens=2)
    found = server.http.get("/ledger").json()
    monkeypatch.setattr(server.context, "last_ledger", (time.monotonic() + 60, {"kept": 1}))
    assert server.http.get("/ledger").json() == {"kept": 1}  # at most one a second is taken
    sizes = {line["name"]: line["anonymous"] + line["file_backed"] for line in found["lines"]}
    assert sum(sizes.values()) == found["anonymous"] + found["file_backed"]
    assert sizes["KV pool"] > 0
    assert found["budget"] > found["anonymous"]


def test_an_error_inside_the_server_says_nothing_of_its_inside(server, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(type(server.context), "check_model", broken)
    answer = server.chat()
    assert error_of(answer, 500)["type"] == "server_error"
    assert "secret" not in answer.text
