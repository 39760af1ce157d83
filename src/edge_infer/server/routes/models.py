"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from edge_infer.server.context import ServerContext, context_of

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The names that the loaded model answers to."""
    context = context_of(request)
    names = context.config.model_names
    return {"object": "list", "data": [_document(context, name) for name in names]}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    """One of them."""
    context = context_of(request)
    return _document(context, context.check_model(name))


def _document(context: ServerContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.started,
        "owned_by": "edge-infer",
        "root": context.config.model_names[0],
        "max_model_len": context.engine.llm.max_model_len,
        "chat_template": context.templates.exist,
    }
