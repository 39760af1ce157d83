"""Streams over a real connection: the SDK, pings, clients that leave or do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import suppress

import openai
import pytest

from edge_infer.server.config import ServerConfig

LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def sdk(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def wait_until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def idle(server) -> bool:
    stats = server.context.engine.stats()
    return stats.running == stats.waiting == 0 and server.context.in_flight == 0


def raw_request(server, path: str, body: dict) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    payload = json.dumps(body).encode()
    client = socket.create_connection((host, int(port)), timeout=30)
    client.sendall(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n".encode()
        + payload
    )
    return client


def test_the_sdk_chats_and_streams(sdk) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    common = {"model": "tiny", "messages": messages, "seed": 3, "max_tokens": 16}
    whole = sdk.chat.completions.create(**common)
    stream = sdk.chat.completions.create(**common, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    assert text == whole.choices[0].message.content
    completion = sdk.completions.create(model="tiny", prompt="Hello", max_tokens=4, logprobs=1)
    assert len(completion.choices[0].logprobs.tokens) == 4
    assert [m.id for m in sdk.models.list()] == ["tiny"]
    assert sdk.models.retrieve("tiny").id == "tiny"


def test_the_sdk_knows_our_errors(sdk) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model="tiny", messages=messages, audio={"voice": "a"})
    assert bad.value.param == "audio"
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="other", messages=messages)


def test_a_client_that_leaves_its_stream_frees_its_place(server, sdk) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400}
    before = server.context.engine.stats().cancelled_total
    with sdk.chat.completions.create(**body, stream=True, extra_body={"ignore_eos": True}) as s:
        next(iter(s))
    wait_until(lambda: idle(server))
    assert server.context.engine.stats().cancelled_total == before + 1
    assert server.context.engine.stats().generated_tokens_total > 0


def test_a_client_that_leaves_while_it_waits_for_an_answer_frees_its_place(server) -> None:
    before = server.context.engine.stats().cancelled_total
    client = raw_request(server, "/v1/completions", {"prompt": ["x"] * 4, **LONG})
    wait_until(lambda: server.context.engine.stats().running > 0)
    client.close()
    wait_until(lambda: idle(server))
    assert server.context.engine.stats().cancelled_total > before


def test_a_silent_stream_pings(start_server, monkeypatch) -> None:
    with start_server(ServerConfig(model_names=("tiny",), ping_seconds=0.05)) as server:
        gate = threading.Event()
        step = server.context.engine.llm.scheduler.step

        def held_back(**options) -> object:
            gate.wait(20)
            return step(**options)

        monkeypatch.setattr(server.context.engine.llm.scheduler, "step", held_back)
        body = {"prompt": "x", "max_tokens": 3, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200  # before any token
            lines = response.iter_lines()
            assert [next(lines) for _ in range(4)] == [": ping", "", ": ping", ""]
            gate.set()
            rest = [line for line in lines if line and not line.startswith(":")]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) >= 2


def test_a_client_that_never_reads_loses_its_stream(start_server, monkeypatch) -> None:
    config = ServerConfig(model_names=("tiny",), write_seconds=0.3)
    with start_server(config) as server:
        import edge_infer.server.routes.completions as route

        plain = route.data
        # Events of a megabyte fill what the sockets can hold.
        monkeypatch.setattr(route, "data", lambda text: plain(text) + b":" * (1 << 20) + b"\n\n")
        body = {"prompt": "x", "stream": True, "logprobs": 1, **LONG}
        client = raw_request(server, "/v1/completions", body)
        wait_until(lambda: server.context.engine.stats().generated_tokens_total > 0)
        wait_until(lambda: idle(server))
        client.close()
        monkeypatch.undo()
        assert server.post("/v1/completions", prompt="x", max_tokens=2).status_code == 200


@pytest.mark.parametrize("size", [100_000, 20 << 20])
def test_a_client_that_never_reads_a_whole_answer_loses_it(
    start_server, monkeypatch, caplog, size
) -> None:
    import edge_infer.server.routes.embeddings as route

    monkeypatch.setattr(route, "_render", lambda *a: b"{" + b" " * size + b"}")
    with start_server(ServerConfig(model_names=("tiny",), write_seconds=0.4)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            body = b'{"input": "x"}'
            head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            asked = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
            # One answer after the other until what the system buffers is full.
            client.sendall(asked * max(1, (8 << 20) // size))
            wait_until(lambda: "left its answer unread" in caplog.text)
            wait_until(lambda: idle(server))
            assert server.post("/tokenize", prompt="x").status_code == 200
            got = 0
            with suppress(ConnectionError):
                while part := client.recv(1 << 20):
                    got += len(part)
            assert got < size * max(1, (8 << 20) // size)
        # A client that reads slowly, but reads, gets all of it.
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.connect((host, int(port)))
            client.sendall(asked.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            got = 0
            while part := client.recv(size // 16):
                got += len(part)
                time.sleep(0.02)
            assert got > size


def test_a_full_queue_answers_429(start_server) -> None:
    with start_server(max_waiting=0, max_num_seqs=1) as server:
        client = raw_request(server, "/v1/completions", {"prompt": "x", **LONG})
        wait_until(lambda: server.context.engine.stats().running == 1)
        answer = server.post("/v1/completions", prompt="x")
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
        client.close()


def test_an_error_in_the_midst_of_a_stream_is_its_last_event(server, monkeypatch) -> None:
    from edge_infer.errors import ExecutionError

    deltas = type(server.context).deltas

    async def failing(self, generation):
        async for delta in deltas(self, generation):
            yield delta
            generation.cancel()
            raise ExecutionError("The logits are NaN.")

    monkeypatch.setattr(type(server.context), "deltas", failing)
    answer = server.chat(stream=True)
    assert answer.status_code == 200
    last = answer.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"] == {
        "message": "The logits are NaN.",
        "type": "server_error",
        "param": None,
        "code": "execution_failed",
    }


def test_eight_clients_get_what_one_gets(server) -> None:
    async def ask(client: openai.AsyncOpenAI, i: int) -> str:
        messages = [{"role": "user", "content": f"Number {i % 4}"}]
        answer = await client.chat.completions.create(
            model="tiny", messages=messages, seed=i % 4, max_tokens=40
        )
        return answer.choices[0].message.content

    async def all_of(together: bool) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            if together:
                return await asyncio.gather(*(ask(client, i) for i in range(8)))
            return [await ask(client, i) for i in range(4)]

    alone = asyncio.run(all_of(False))
    assert asyncio.run(all_of(True)) == alone * 2
