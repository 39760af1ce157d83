"""/v1/responses."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from edge_infer.errors import EdgeInferError
from edge_infer.server.context import ServerContext, context_of
from edge_infer.server.errors import ApiError, describe
from edge_infer.server.pipeline import ChatJob, ChatStream, new_id, run_chat
from edge_infer.server.protocol.responses import ResponsesRequest
from edge_infer.server.response_events import ResponseBuilder
from edge_infer.server.response_store import StoredResponse
from edge_infer.server.routes.chat import chat_job
from edge_infer.server.sse import EventStream, unless_gone

log = logging.getLogger(__name__)
router = APIRouter()


@router.post("/v1/responses")
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answers a conversation; a stored response is where a later request may go on."""
    context = context_of(request)
    model = context.check_model(body.model)
    chat = body.chat(context.responses.history(body.previous_response_id))
    job = chat_job(chat, context)
    builder = ResponseBuilder(
        _document(body, model, job), context.tokenizer, with_logprobs=body.wants_logprobs
    )
    if body.stream:
        stream = await run_chat(context, job)
        return EventStream(_events(context, body, builder, stream), context.config)
    document = await unless_gone(request, _complete(context, body, builder, job))
    return JSONResponse(document)


@router.get("/v1/responses/{response_id}")
async def get_response(response_id: str, request: Request) -> Response:
    """A stored response."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise ApiError("A stored response is not streamed again.", param="stream")
    return JSONResponse(context_of(request).responses.get(response_id).document)


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, request: Request) -> Response:
    """Forgets a stored response; one that goes on from it can no longer be continued."""
    context_of(request).responses.delete(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items")
async def response_input_items(response_id: str, request: Request) -> Response:
    """The input items of a stored response."""
    items = context_of(request).responses.get(response_id).input
    return JSONResponse(
        {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"],
            "last_id": items[-1]["id"],
            "has_more": False,
        }
    )


def _document(body: ResponsesRequest, model: str, job: ChatJob) -> dict[str, Any]:
    """The fields of a response that repeat its request."""
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
    tools = [t.model_dump() for t in body.tools or ()]
    choice = body.tool_choice or "auto"
    reasoning = body.reasoning
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": job.params.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": job.params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def _keep(context: ServerContext, body: ResponsesRequest, document: dict[str, Any]) -> None:
    if body.store is False:
        return
    given = body.input
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    context.responses.put(StoredResponse(document, [_input_item(item) for item in items]))


def _input_item(item: dict[str, Any]) -> dict[str, Any]:
    """An input item as it is listed: with an id, and a message's content in parts."""
    out: dict[str, Any] = {"id": new_id("item_"), "type": "message", **item}
    if out["type"] == "message" and isinstance(out["content"], str):
        part: dict[str, Any] = {"type": "input_text", "text": out["content"]}
        if out["role"] == "assistant":
            part |= {"type": "output_text", "annotations": []}
        out["content"] = [part]
        out.setdefault("status", "completed")
    return out


async def _complete(
    context: ServerContext, body: ResponsesRequest, builder: ResponseBuilder, job: ChatJob
) -> dict[str, Any]:
    stream = await run_chat(context, job)
    builder.begin()
    async with aclosing(stream):
        async for event in stream:
            builder.add(event)
    builder.end()
    _keep(context, body, builder.document)
    return builder.document


async def _events(
    context: ServerContext, body: ResponsesRequest, builder: ResponseBuilder, stream: ChatStream
) -> AsyncGenerator[bytes, None]:
    """The response as events; an error in their midst becomes ``response.failed``."""
    async with aclosing(stream):
        for shown in builder.begin():
            yield _sse(shown)
        try:
            async for event in stream:
                for shown in builder.add(event):
                    yield _sse(shown)
            last = builder.end()
            _keep(context, body, builder.document)
        except Exception as error:
            if not isinstance(error, EdgeInferError):
                log.exception("A stream of /v1/responses failed.")
            last = builder.fail("server_error", describe(error)[1])
        for shown in last:
            yield _sse(shown)


def _sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
