"""POST /v1/embeddings: hidden states of the loaded decoder, pooled and of length 1."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

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
    data = [embedding_document(v, i, body.encoding_format) for i, v in enumerate(vectors)]
    tokens = sum(map(len, prompts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "model": model, "data": data, "usage": usage})


def _encode(context: ServerContext, body: EmbeddingRequest) -> list[list[int]]:
    prompts = [context.encode(p) if isinstance(p, str) else p for p in body.inputs()]
    keep = body.truncate_prompt_tokens
    if keep is None:
        return prompts
    most = context.engine.llm.max_model_len
    return [p[-(most if keep == -1 else min(keep, most)) :] for p in prompts]
