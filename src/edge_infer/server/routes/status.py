"""What a watcher asks: health, version, metrics, memory. None of it counts as use."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from edge_infer import __version__
from edge_infer.server.context import ServerContext, context_of
from edge_infer.server.front import health as health_of

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while requests are taken, 503 while the server drains."""
    code, document = health_of(context_of(request))
    return JSONResponse(document, code)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text. Collected in a thread: reading the memory of a large process takes
    milliseconds."""
    text = await asyncio.to_thread(context_of(request).metrics.render)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/ledger")
async def ledger(request: Request) -> dict[str, Any]:
    """Every resident byte of this process by owner, in bytes; ``budget`` is all that this process
    could ever have. At most one a second is taken, since it holds up the engine's steps."""
    context = context_of(request)
    async with context.ledger_lock:
        taken, document = context.last_ledger
        if time.monotonic() - taken >= 1:
            document = await asyncio.to_thread(_ledger, context)
            context.last_ledger = time.monotonic(), document
    return document


def _ledger(context: ServerContext) -> dict[str, Any]:
    from edge_infer.device.budget import memory_budget
    from edge_infer.device.ledger import ledger as take

    return {**take(context.engine.llm).as_dict(), "budget": memory_budget().total}
