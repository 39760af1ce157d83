"""The application: endpoints, middleware and what runs beside them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI

from edge_infer import __version__
from edge_infer.errors import EdgeInferError
from edge_infer.server import errors
from edge_infer.server.config import ServerConfig
from edge_infer.server.context import ServerContext
from edge_infer.server.middleware import Guard
from edge_infer.server.routes import (
    chat,
    completions,
    embeddings,
    messages,
    models,
    page,
    responses,
    status,
    tokenize,
)

if TYPE_CHECKING:
    from edge_infer.engine.serving import ServingEngine

log = logging.getLogger(__name__)
QUIET_SECONDS = 0.25  # without a request, before work that would hold one up
_ROUTES = (chat, completions, embeddings, messages, models, page, responses, status, tokenize)


def create_app(engine: ServingEngine, config: ServerConfig | None = None) -> FastAPI:
    """An ASGI application that serves ``engine``, which it starts and closes with its lifespan."""
    context = ServerContext(engine, config or ServerConfig())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        warming = asyncio.create_task(asyncio.to_thread(_warm, context))
        idle_work = asyncio.create_task(_work_when_idle(context))
        try:
            yield
        finally:
            idle_work.cancel()
            await engine.aclose(0.0)
            await asyncio.gather(warming, idle_work, return_exceptions=True)

    app = FastAPI(
        title="edge-infer",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    for routes in _ROUTES:
        app.include_router(routes.router)
    errors.install(app)
    app.add_middleware(Guard, context=context)
    if context.config.cors_origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(context.config.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )
    return app


def _warm(context: ServerContext) -> None:
    """Loads the tokenizer, which takes longer than everything else, before the first request."""
    try:
        _ = context.tokenizer.vocab_size
    except EdgeInferError as error:  # every request will say so too
        log.error("The tokenizer cannot be loaded: %s", error)


async def _work_when_idle(context: ServerContext) -> None:
    """What is done while nobody asks: the vocabulary is read for grammars, which would hold up
    every stream for a second later on; and after ``idle_unload_seconds`` the engine is suspended,
    until a request resumes it."""
    limit = context.config.idle_unload_seconds
    grammars = True
    while True:
        stats = context.engine.stats()
        quiet = context.in_flight == 0 and not stats.suspended
        wanted = grammars and context.wants_grammars()
        if quiet and limit is not None and stats.idle_seconds >= limit:
            await context.suspend()
        elif quiet and wanted and context.tokenizer.loaded and stats.idle_seconds >= QUIET_SECONDS:
            try:
                await context.prepare_grammars()
            except EdgeInferError as error:  # every grammar will say so too
                log.info("No grammars: %s", error)
                grammars = False
        pause = QUIET_SECONDS if wanted else 5.0
        await asyncio.sleep(pause if limit is None else min(pause, limit / 4))
