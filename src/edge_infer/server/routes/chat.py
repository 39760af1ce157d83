"""POST /v1/chat/completions."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from edge_infer.server.context import ServerContext, context_of
from edge_infer.server.errors import ApiError
from edge_infer.server.pipeline import (
    ChatJob,
    ChatStream,
    Content,
    Event,
    Finished,
    Reasoning,
    ToolCallStart,
    Usage,
    complete_chat,
    new_id,
    run_chat,
)
from edge_infer.server.protocol.chat import (
    ChatRequest,
    NamedTool,
    choice_document,
    logprobs_document,
    template_messages,
    usage_document,
)
from edge_infer.server.protocol.structured import grammar_of
from edge_infer.server.sse import EventStream, data, guarded, unless_gone

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answers a conversation through the model's chat template."""
    context = context_of(request)
    model = context.check_model(body.model)
    job = chat_job(body, context)
    head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": model}
    if body.stream:
        stream = await run_chat(context, job)
        options = body.stream_options
        chunks = _chunks(context, stream, head, bool(options and options.include_usage))
        return EventStream(guarded(chunks, request), context.config)
    choices, usage = await unless_gone(request, complete_chat(context, job))
    return JSONResponse(
        {
            **head,
            "object": "chat.completion",
            "choices": [choice_document(c, context.tokenizer) for c in choices],
            "usage": usage_document(usage),
        }
    )


def chat_job(body: ChatRequest, context: ServerContext) -> ChatJob:
    """What the request asks for. Raises ApiError 400, naming the parameter, for what cannot be
    honoured."""
    body.check()
    grammar, param = grammar_of(body.response_format, body.structured_outputs)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    context.check_limits(n=body.n, top_logprobs=logprobs)
    return ChatJob(
        messages=template_messages(body.messages),
        params=body.sampling(context.defaults, max_tokens=body.answer_limit, logprobs=logprobs),
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        tools=[t.model_dump(exclude_none=True) for t in body.tools or []],
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        response_format=grammar,
        format_param=param,
        reasoning_effort=body.reasoning_effort,
        template_kwargs=body.chat_template_kwargs or {},
    )


def _tool_choice(body: ChatRequest) -> str | dict[str, str]:
    """auto, none, required or {"name": …}; raises ApiError 400 for a tool that is not there."""
    names = [t.function.name for t in body.tools or []]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise ApiError(f"tools has {twice!r} more than once.", param="tools")
    choice = body.tool_choice or "auto"
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise ApiError(
                f"tool_choice names {choice.function.name[:100]!r}, which is not among the tools.",
                param="tool_choice",
            )
        return {"name": choice.function.name}
    if choice == "required" and not names:
        raise ApiError("tool_choice = required needs tools.", param="tool_choice")
    return choice


async def _chunks(
    context: ServerContext, stream: ChatStream, head: dict[str, Any], include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The answer as chunks, ended by [DONE]."""
    started: set[int] = set()

    def chunk(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        document = {**head, "object": "chat.completion.chunk", "choices": choices}
        if include_usage:
            document["usage"] = usage
        return data(json.dumps(document, ensure_ascii=False))

    async with aclosing(stream):
        async for event in stream:
            if isinstance(event, Usage):
                if include_usage:
                    yield chunk([], usage_document(event))
                continue
            choice = _delta(event, context)
            if event.index not in started:
                started.add(event.index)
                choice["delta"] = {"role": "assistant", "content": "", **choice["delta"]}
            yield chunk([choice])
    yield b"data: [DONE]\n\n"


def _delta(event: Event, context: ServerContext) -> dict[str, Any]:
    """An event as the choice of a chunk."""
    out: dict[str, Any] = {"delta": {}, "logprobs": None, "finish_reason": None}
    if isinstance(event, Content):
        out["delta"] = {"content": event.text}
        if event.logprobs is not None:
            out["logprobs"] = logprobs_document(event.logprobs, context.tokenizer)
    elif isinstance(event, Reasoning):
        out["delta"] = {"reasoning_content": event.text}
    elif isinstance(event, Finished):
        out |= {"finish_reason": event.finish_reason, "stop_reason": event.stop_reason}
    elif not isinstance(event, Usage):
        call: dict[str, Any] = {"index": event.call_index}
        if isinstance(event, ToolCallStart):
            function = {"name": event.name, "arguments": ""}
            call |= {"id": event.id, "type": "function", "function": function}
        else:
            call["function"] = {"arguments": event.text}
        out["delta"] = {"tool_calls": [call]}
    return {"index": getattr(event, "index", 0), **out}
