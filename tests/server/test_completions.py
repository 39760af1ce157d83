"""POST /v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

import pytest
from openai.types import Completion
from test_chat import chunks_of

from edge_infer.server.protocol.completions import offsets

SEEDED = {"temperature": 0.9, "seed": 1, "max_tokens": 12}


def complete(server, prompt, **body):
    return server.post("/v1/completions", prompt=prompt, **{**SEEDED, **body})


def texts(answer) -> list[str]:
    return [c["text"] for c in answer.json()["choices"]]


def test_an_answer_has_the_published_shape(server) -> None:
    parsed = Completion.model_validate(complete(server, "Hello", model="tiny").json(), strict=True)
    assert parsed.choices[0].finish_reason == "length"
    assert parsed.usage.prompt_tokens == 5  # bytes; the tokenizer adds no BOS
    assert parsed.usage.completion_tokens == 12


def test_a_batch_is_its_members(server) -> None:
    prompts = ["Hello", "Good day", "x"]
    alone = [texts(complete(server, p, n=2)) for p in prompts]
    both = complete(server, prompts, n=2)
    assert texts(both) == [t for ts in alone for t in ts]
    assert [c["index"] for c in both.json()["choices"]] == list(range(6))
    assert both.json()["usage"]["prompt_tokens"] == 14
    assert both.json()["usage"]["completion_tokens"] == 72


def test_token_ids_are_prompts_too(server) -> None:
    ids = server.post("/tokenize", prompt="Hello").json()["tokens"]
    want = texts(complete(server, "Hello"))
    assert texts(complete(server, ids)) == want
    assert texts(complete(server, [ids, ids])) == want * 2


def test_echo_puts_the_prompt_in_front(server) -> None:
    (plain,) = texts(complete(server, "Hello"))
    assert texts(complete(server, "Hello", echo=True)) == ["Hello" + plain]
    ids = server.post("/tokenize", prompt="Hello").json()["tokens"]
    assert texts(complete(server, ids, echo=True)) == ["Hello" + plain]
    streamed = chunks_of(complete(server, "Hello", echo=True, stream=True))
    assert "".join(c["choices"][0]["text"] for c in streamed) == "Hello" + plain


def test_echo_has_the_logprobs_of_the_prompt(server) -> None:
    prompts = ["Hé llo there", "Good day"]
    options = {"echo": True, "logprobs": 2, "n": 2}
    whole = complete(server, prompts, **options).json()
    plain = complete(server, prompts, logprobs=2, n=2).json()
    for i, choice in enumerate(whole["choices"]):
        echo, found = prompts[i // 2], choice["logprobs"]
        size = len(echo.encode())  # a byte is a token
        assert choice["text"] == echo + plain["choices"][i]["text"]
        assert len(found["tokens"]) == size + 12
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        assert all(x <= 0 for x in found["token_logprobs"][1:])
        best = [max(top.values()) for top in found["top_logprobs"][1:]]
        assert all(b >= x for b, x in zip(best, found["token_logprobs"][1:], strict=True))
        own = plain["choices"][i]["logprobs"]
        assert found["token_logprobs"][size:] == own["token_logprobs"]
        places = found["text_offset"]
        assert places[:4] == ([0, 1, 2, 2] if i < 2 else [0, 1, 2, 3])  # é is two tokens
        assert places[size] == len(echo)
        assert places == sorted(places)
    streamed = chunks_of(complete(server, prompts, stream=True, **options))
    for want in whole["choices"]:
        mine = [c["choices"][0] for c in streamed if c["choices"][0]["index"] == want["index"]]
        assert "".join(c["text"] for c in mine) == want["text"]
        for key, values in want["logprobs"].items():
            assert [x for c in mine if c["logprobs"] for x in c["logprobs"][key]] == values


def test_a_prompt_is_scored_without_an_answer(server) -> None:
    both = complete(server, "Hello there", echo=True, logprobs=1).json()["choices"][0]
    alone = complete(server, "Hello there", echo=True, logprobs=1, max_tokens=0)
    assert alone.json()["usage"]["completion_tokens"] == 0
    (choice,) = alone.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello there", "length")
    assert choice["logprobs"]["token_logprobs"] == both["logprobs"]["token_logprobs"][:11]
    ids = server.post("/tokenize", prompt="Hello there").json()["tokens"]
    again = complete(server, ids, echo=True, logprobs=1, max_tokens=0).json()["choices"][0]
    assert again == choice
    (nothing,) = complete(server, "Hello", max_tokens=0).json()["choices"]
    assert (nothing["text"], nothing["logprobs"], nothing["finish_reason"]) == ("", None, "length")


def test_offsets_skip_what_the_text_does_not_show() -> None:
    tokens = [b"<bos>", b" One", b" tw", "ö".encode()[:1], "ö".encode()[1:], b".", b"?"]
    assert offsets(tokens, "One twö.") == [0, 0, 3, 6, 7, 7, 8]


def test_a_stream_is_the_answer_in_pieces(server) -> None:
    prompts = ["Hello", "Good day"]
    whole = complete(server, prompts, n=2, logprobs=3).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(complete(server, prompts, n=2, logprobs=3, **options))
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    for want in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == want["index"]]
        assert "".join(c["text"] for c in mine) == want["text"]
        assert mine[-1]["finish_reason"] == want["finish_reason"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            got = [x for c in mine if c["logprobs"] for x in c["logprobs"][key]]
            assert got == want["logprobs"][key]
            assert len(got) == 12


def test_min_tokens_and_ignore_eos_are_honoured(server) -> None:
    bias = {"257": 100}  # <eos> at once
    assert complete(server, "x", logit_bias=bias).json()["usage"]["completion_tokens"] == 1
    kept = complete(server, "x", logit_bias=bias, min_tokens=5).json()
    assert kept["usage"]["completion_tokens"] == 6
    assert kept["choices"][0]["finish_reason"] == "stop"
    ignored = complete(server, "x", logit_bias=bias, ignore_eos=True).json()
    assert ignored["choices"][0]["finish_reason"] == "length"
    shown = texts(
        complete(server, "x", logit_bias=bias, ignore_eos=True, skip_special_tokens=False)
    )
    assert shown == ["<eos>" * 12]


def test_stop_tokens_are_honoured(server) -> None:
    bias = {str(ord("a")): 100}
    token = server.post("/tokenize", prompt="a").json()["tokens"][0]
    bias = {str(token): 100}
    assert texts(complete(server, "x", logit_bias=bias)) == ["a" * 12]
    choice = complete(server, "x", logit_bias=bias, stop_token_ids=[token]).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert choice["stop_reason"] == token


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_what_cannot_be_honoured_is_named(server, body, param) -> None:
    answer = complete(server, body.pop("prompt", "x"), **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_token_outside_the_vocabulary_is_refused(server) -> None:
    for echo in (False, True):
        answer = complete(server, [1, 259], echo=echo)
        assert answer.status_code == 400
        assert "259" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "prompt"
    assert server.post("/detokenize", tokens=[259]).status_code == 400


def test_every_published_parameter_is_known() -> None:
    from openai.types.completion_create_params import CompletionCreateParamsBase

    from edge_infer.server.protocol.completions import CompletionRequest

    published = set(CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert published <= set(CompletionRequest.model_fields)


def test_tokenizing_and_back(server) -> None:
    text = "Grüße, 世界 <turn>"
    answer = server.post("/tokenize", prompt=text, return_token_strs=True).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512
    assert answer["token_strs"][-1] == "<turn>"
    assert server.post("/detokenize", tokens=answer["tokens"]).json()["prompt"] == text
    assert server.post("/tokenize").json()["error"]["param"] == "prompt"


def test_speculation_changes_no_token(server, start_server) -> None:
    prompt = "one two three one two three one two"
    with start_server(speculative="ngram") as guessing:
        for body in ({"temperature": 0}, {"logprobs": 2}):
            want = complete(server, prompt, max_tokens=60, **body).json()["choices"]
            assert complete(guessing, prompt, max_tokens=60, **body).json()["choices"] == want
        metrics = guessing.http.get("/metrics").text
        guessed = next(
            line for line in metrics.splitlines() if line.startswith("edge_infer_guessed")
        )
        assert float(guessed.split()[1]) > 0


def test_more_prompts_than_can_ever_wait_are_no_full_queue(start_server) -> None:
    with start_server(max_waiting=3, max_num_seqs=1) as server:
        answer = complete(server, ["a", "b"], n=3)
        assert answer.status_code == 400
        assert "at most 4" in answer.json()["error"]["message"]
        assert complete(server, ["a", "b"], n=2).status_code == 200
