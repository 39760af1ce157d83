"""/v1/messages, Anthropic's API."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from edge_infer.errors import EdgeInferError
from edge_infer.server import errors
from edge_infer.server.context import ServerContext, context_of
from edge_infer.server.message_events import MessageBuilder
from edge_infer.server.pipeline import ChatJob, ChatStream, run_chat
from edge_infer.server.prepare import chat_prompt
from edge_infer.server.protocol.messages import MessagesRequest, TokenCountRequest
from edge_infer.server.routes.chat import chat_job
from edge_infer.server.sse import EventStream, unless_gone

log = logging.getLogger(__name__)
router = APIRouter()
PATH = "/v1/messages"


def error_shape(status: int, message: str, code: str | None, param: str | None) -> dict[str, Any]:
    """An error in Anthropic's shape; ``code`` and ``param`` are additions of this server."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
    }
    kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": message, "code": code, "param": param}
    return {"type": "error", "error": error}


errors.SHAPES[PATH] = error_shape


@router.post(PATH)
async def create_message(body: MessagesRequest, request: Request) -> Response:
    """Answers a conversation."""
    context = context_of(request)
    model = context.check_model(body.model)
    job = chat_job(body.chat(), context)
    builder = MessageBuilder(model, shows_thinking=body.shows_thinking)
    if body.stream:
        stream = await run_chat(context, job)
        return EventStream(_events(builder, stream), context.config)
    document = await unless_gone(request, _complete(context, builder, job))
    return JSONResponse(document)


@router.post(f"{PATH}/count_tokens")
async def count_tokens(body: TokenCountRequest, request: Request) -> Response:
    """How many tokens the prompt of such a message has."""
    context = context_of(request)
    context.check_model(body.model)
    job = chat_job(body.chat(), context)
    prompt = await asyncio.to_thread(chat_prompt, context, job)
    return JSONResponse({"input_tokens": len(prompt["prompt_token_ids"])})


async def _complete(
    context: ServerContext, builder: MessageBuilder, job: ChatJob
) -> dict[str, Any]:
    stream = await run_chat(context, job)
    async with aclosing(stream):
        builder.begin(stream.prompt_tokens)
        async for event in stream:
            builder.add(event)
    return builder.document


async def _events(builder: MessageBuilder, stream: ChatStream) -> AsyncGenerator[bytes, None]:
    async with aclosing(stream):
        try:
            for shown in builder.begin(stream.prompt_tokens):
                yield _sse(shown)
            async for event in stream:
                for shown in builder.add(event):
                    yield _sse(shown)
            for shown in builder.end():
                yield _sse(shown)
        except Exception as error:
            if not isinstance(error, EdgeInferError):
                log.exception("A stream of %s failed.", PATH)
            yield _sse(errors.error_document(error, PATH))


def _sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
