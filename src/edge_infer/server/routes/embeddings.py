"""POST /v1/embeddings: hidden states of the loaded decoder, pooled and of length 1."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response

from edge_infer.server.context import ServerContext, context_of
from edge_infer.server.protocol.embeddings import EmbeddingRequest, embedding_document
from edge_infer.server.sse import unless_gone

router = APIRouter()


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """One vector for each input. An input longer than the context is refused."""
    context = context_of(request)
    model = context.check_model(body.model)
    body.check()
    prompts = await asyncio.to_thread(_encode, context, body)
    pooling = body.pooling or context.config.pooling
    vectors = await unless_gone(request, context.engine.embed(prompts, pooling))
    tokens = sum(map(len, prompts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    head = {"object": "list", "model": model, "usage": usage}
    text = await asyncio.to_thread(_render, head, vectors, body.encoding_format)
    return Response(text, media_type="application/json")


def _render(head: dict[str, Any], vectors: list[np.ndarray], encoding: str | None) -> bytes:
    """The answer as JSON. Vector by vector: millions of numbers in one call would hold the
    interpreter's lock, and every stream, for seconds."""
    data = b",".join(to_json(embedding_document(v, i, encoding)) for i, v in enumerate(vectors))
    return to_json(head)[:-1] + b',"data":[' + data + b"]}"


def _encode(context: ServerContext, body: EmbeddingRequest) -> list[list[int]]:
    prompts = [context.encode(p) if isinstance(p, str) else p for p in body.inputs()]
    keep = body.truncate_prompt_tokens
    if keep is None:
        return prompts
    most = context.engine.llm.max_model_len
    return [p[-(most if keep == -1 else min(keep, most)) :] for p in prompts]
