"""POST /v1/embeddings."""

from __future__ import annotations

import numpy as np
import openai
import pytest


def embed(server, given, **body):
    return server.post("/v1/embeddings", input=given, **body)


def vectors(answer) -> np.ndarray:
    return np.array([d["embedding"] for d in answer.json()["data"]], np.float32)


def test_vectors_have_length_one_and_do_not_depend_on_company(server) -> None:
    texts = ["Hello", "a longer text than the first", "Hello"]
    found = vectors(embed(server, texts))
    assert found.shape == (3, 64)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], vectors(embed(server, texts[1]))[0])
    assert not np.array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[:2], vectors(embed(server, texts[:2], pooling="mean")))
    assert not np.array_equal(found[0], vectors(embed(server, "Hello", pooling="last"))[0])


def test_token_ids_are_inputs_too(server) -> None:
    ids = server.post("/tokenize", prompt="Hello").json()["tokens"]
    want = vectors(embed(server, "Hello"))
    np.testing.assert_array_equal(vectors(embed(server, ids)), want)
    np.testing.assert_array_equal(vectors(embed(server, [ids]))[0], want[0])


def test_the_sdk_reads_both_encodings(server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    plain = client.embeddings.create(model="tiny", input="Hello", encoding_format="float")
    packed = client.embeddings.create(model="tiny", input="Hello")  # base64 underneath
    np.testing.assert_array_equal(
        np.float32(plain.data[0].embedding), np.float32(packed.data[0].embedding)
    )
    assert plain.usage.prompt_tokens == plain.usage.total_tokens == 5
    raw = embed(server, "Hello", encoding_format="base64").json()["data"][0]["embedding"]
    assert isinstance(raw, str)


def test_a_long_input_is_refused_unless_it_may_be_cut(server) -> None:
    text = "0123456789" * 60
    answer = embed(server, text)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    cut = embed(server, text, truncate_prompt_tokens=-1)
    assert cut.json()["usage"]["prompt_tokens"] == 512
    np.testing.assert_array_equal(vectors(cut), vectors(embed(server, text[-512:])))
    short = embed(server, text, truncate_prompt_tokens=3)
    np.testing.assert_array_equal(vectors(short), vectors(embed(server, "789")))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"dimensions": 16}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"pooling": "max"}, "pooling"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": []}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": ""}, "input"),
        ({"input": [[]]}, None),
        ({"input": [9999]}, None),
    ],
)
def test_what_cannot_be_honoured_is_named(server, body, param) -> None:
    answer = embed(server, body.pop("input", "x"), **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_every_published_parameter_is_known() -> None:
    from openai.types.embedding_create_params import EmbeddingCreateParams

    from edge_infer.server.protocol.embeddings import EmbeddingRequest

    assert set(EmbeddingCreateParams.__annotations__) <= set(EmbeddingRequest.model_fields)
