"""POST /v1/completions: text continued, without a chat template."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from edge_infer.engine.request import Call
from edge_infer.server.context import ServerContext, context_of
from edge_infer.server.pipeline import Usage, new_id
from edge_infer.server.protocol.chat import usage_document
from edge_infer.server.protocol.completions import (
    DEFAULT_MAX_TOKENS,
    CompletionLogprobs,
    CompletionRequest,
)
from edge_infer.server.protocol.structured import grammar_of
from edge_infer.server.sse import EventStream, data, guarded, merged, unless_gone

if TYPE_CHECKING:
    from edge_infer.engine.serving import Generation

router = APIRouter()


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continues one or several prompts."""
    context = context_of(request)
    model = context.check_model(body.model)
    job = await _start(context, body)
    head = {"id": new_id("cmpl-"), "created": int(time.time()), "model": model}
    head["object"] = "text_completion"
    if body.stream:
        options = body.stream_options
        chunks = _chunks(job, head, bool(options and options.include_usage))
        return EventStream(guarded(chunks, request), context.config)
    return JSONResponse({**head, **await unless_gone(request, _complete(job))})


@dataclass(frozen=True)
class _Part:
    """New text of a choice; ``logprobs``: a document, None unless asked for."""

    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class _Job:
    """The generations of one request, a choice of each prompt after the other."""

    def __init__(self, context: ServerContext, n: int, echoes: list[str | None]) -> None:
        self.context = context
        self.generations: list[Generation] = []
        self.n = n
        self.echoes = echoes  # the text before each prompt's answers, None without echo
        self.completion_tokens = 0

    def cancel(self) -> None:
        for generation in self.generations:
            generation.cancel()

    async def parts(self) -> AsyncGenerator[_Part, None]:
        deltas = [self.context.deltas(g) for g in self.generations]
        writers = [CompletionLogprobs(self.context.tokenizer) for _ in range(self.n * len(deltas))]
        echoed: set[int] = set()
        async with aclosing(merged(deltas)) as stream:
            async for prompt, delta in stream:
                self.completion_tokens += len(delta.token_ids)
                index = prompt * self.n + delta.index
                if index not in echoed:
                    echoed.add(index)
                    if (echo := self.echoes[prompt]) is not None:
                        yield self._echo(index, echo, self.generations[prompt], writers[index])
                if delta.text or delta.logprobs or delta.finish_reason:
                    tokens = delta.logprobs
                    logprobs = None if tokens is None else writers[index].document(tokens)
                    yield _Part(index, delta.text, logprobs, delta.finish_reason, delta.stop_reason)

    def _echo(
        self, index: int, text: str, generation: Generation, writer: CompletionLogprobs
    ) -> _Part:
        found = generation.prompt_logprobs
        ids = generation.prompt_token_ids
        return _Part(index, text, None if found is None else writer.prompt(ids, text, found))

    @property
    def usage(self) -> Usage:
        return Usage(
            sum(len(g.prompt_token_ids) for g in self.generations),
            self.completion_tokens,
            sum(g.cached_tokens for g in self.generations),
        )


async def _start(context: ServerContext, body: CompletionRequest) -> _Job:
    """Queues every prompt, or none of them."""
    body.check()
    context.check_limits(n=body.n, logprobs=body.logprobs)
    context.engine.check_room(len(body.prompts()) * (body.n or 1))
    params = body.sampling(
        context.defaults,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    grammar, param = grammar_of(body.response_format, body.structured_outputs)
    constraint = None
    if grammar is not None:
        constraint = await asyncio.to_thread(context.compile, grammar, param)
    prompts = await asyncio.to_thread(_encode, context, body)
    job = _Job(context, params.n, [p["prompt"] if body.echo else None for p in prompts])
    try:
        call = Call()
        for prompt in prompts:
            job.generations.append(context.generate(prompt, params, constraint, call))
    except BaseException:
        job.cancel()
        raise
    return job


def _encode(context: ServerContext, body: CompletionRequest) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for prompt in body.prompts():
        if isinstance(prompt, str):
            ids = context.encode(prompt, body.add_special_tokens is not False)
            out.append({"prompt": prompt, "prompt_token_ids": ids})
        else:
            context.check_tokens(prompt, "prompt")
            text = context.tokenizer.decode(prompt) if body.echo else ""
            out.append({"prompt": text, "prompt_token_ids": prompt})
    return out


async def _complete(job: _Job) -> dict[str, Any]:
    choices: list[dict[str, Any]] = [
        {"index": i, "text": "", "logprobs": None, "finish_reason": None, "stop_reason": None}
        for i in range(job.n * len(job.generations))
    ]
    async with aclosing(job.parts()) as parts:
        async for part in parts:
            choice = choices[part.index]
            choice["text"] += part.text
            choice.update(finish_reason=part.finish_reason, stop_reason=part.stop_reason)
            if choice["logprobs"] is None:
                choice["logprobs"] = part.logprobs
            elif part.logprobs is not None:
                for name, values in part.logprobs.items():
                    choice["logprobs"][name] += values
    return {"choices": choices, "usage": usage_document(job.usage)}


async def _chunks(
    job: _Job, head: dict[str, Any], include_usage: bool
) -> AsyncGenerator[bytes, None]:
    def chunk(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        document = {**head, "choices": choices}
        if include_usage:
            document["usage"] = usage
        return data(json.dumps(document, ensure_ascii=False))

    try:
        async with aclosing(job.parts()) as parts:
            async for part in parts:
                yield chunk([vars(part)])
        if include_usage:
            yield chunk([], usage_document(job.usage))
    finally:
        job.cancel()
    yield b"data: [DONE]\n\n"
