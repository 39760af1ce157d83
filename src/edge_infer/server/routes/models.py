"""GET /v1/models and /v1/models/{id}, in OpenAI's form, or in Anthropic's for its clients."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Request

from edge_infer.server.context import ServerContext, context_of

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The names that the loaded model answers to, all on one page."""
    context = context_of(request)
    names = context.config.model_names
    if _anthropic(request):
        entries = [_anthropic_document(context, name) for name in names]
        return {"data": entries, "has_more": False, "first_id": names[0], "last_id": names[-1]}
    return {"object": "list", "data": [_document(context, name) for name in names]}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    """One of them."""
    context = context_of(request)
    found = context.check_model(name)
    return _anthropic_document(context, found) if _anthropic(request) else _document(context, found)


def _anthropic(request: Request) -> bool:
    """Both APIs have this path; clients of Anthropic's send its version with every request."""
    return "anthropic-version" in request.headers


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


def _anthropic_document(context: ServerContext, name: str) -> dict[str, Any]:
    longest = context.engine.llm.max_model_len
    return {
        "id": name,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(context.started, timezone.utc).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": longest,
        "max_tokens": longest,
    }
