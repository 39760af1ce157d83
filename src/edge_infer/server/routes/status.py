"""What a watcher asks: health, version, metrics, memory. None of it counts as use."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from edge_infer import __version__
from edge_infer.server.context import context_of

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while requests are taken, 503 while the server drains."""
    draining = context_of(request).draining
    return JSONResponse({"status": "draining" if draining else "ok"}, 503 if draining else 200)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text. Collected in a thread: reading the memory of a large process takes
    milliseconds."""
    text = await asyncio.to_thread(context_of(request).metrics.render)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
