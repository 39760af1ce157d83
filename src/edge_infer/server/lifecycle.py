"""What runs beside the endpoints of a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from edge_infer.errors import EdgeInferError

if TYPE_CHECKING:
    from edge_infer.server.context import ServerContext

log = logging.getLogger(__name__)
QUIET_SECONDS = 0.25  # without a request, before work that would hold one up


@asynccontextmanager
async def running(context: ServerContext) -> AsyncIterator[None]:
    """The engine steps, the tokenizer loads, and what waits for a quiet moment is done in one."""
    context.engine.start()
    warming = asyncio.create_task(asyncio.to_thread(_warm, context))
    idle_work = asyncio.create_task(_work_when_idle(context))
    try:
        yield
    finally:
        idle_work.cancel()
        await context.engine.aclose(0.0)
        await asyncio.gather(warming, idle_work, return_exceptions=True)


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
