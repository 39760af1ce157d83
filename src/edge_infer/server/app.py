"""The application: endpoints and middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from edge_infer import __version__
from edge_infer.server import errors
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
    from edge_infer.server.context import ServerContext

_ROUTES = (chat, completions, embeddings, messages, models, page, responses, status, tokenize)


def create_app(context: ServerContext) -> FastAPI:
    """The endpoints of a server. Its engine is started and closed elsewhere (``Front``)."""
    app = FastAPI(
        title="edge-infer",
        version=__version__,
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
