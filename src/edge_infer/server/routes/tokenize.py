"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from edge_infer.engine.params import SamplingParams
from edge_infer.server.context import ServerContext, context_of
from edge_infer.server.errors import ApiError
from edge_infer.server.pipeline import ChatJob
from edge_infer.server.prepare import chat_prompt
from edge_infer.server.protocol.chat import template_messages
from edge_infer.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

router = APIRouter()


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Token ids of a text, or of a conversation as the chat template renders it."""
    context = context_of(request)
    context.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("Give either prompt or messages.", param="prompt")
    ids = await asyncio.to_thread(_ids, context, body)
    answer = {"count": len(ids), "max_model_len": context.engine.llm.max_model_len, "tokens": ids}
    if body.return_token_strs:
        tokenizer = context.tokenizer
        raw = [tokenizer.token_bytes(i, skip_special_tokens=False) for i in ids]
        answer["token_strs"] = [r.decode("utf-8", errors="replace") for r in raw]
    return answer


def _ids(context: ServerContext, body: TokenizeRequest) -> list[int]:
    if body.messages is None:
        for name in ("tools", "add_generation_prompt", "continue_final_message"):
            if getattr(body, name) is not None:
                raise ApiError(f"{name} goes with messages.", param=name)
        assert body.prompt is not None
        return context.encode(body.prompt, body.add_special_tokens is not False)
    if body.add_special_tokens:
        raise ApiError(
            "add_special_tokens goes with prompt: a chat template writes its own.",
            param="add_special_tokens",
        )
    job = ChatJob(
        template_messages(body.messages),
        SamplingParams(),
        tools=[t.model_dump(exclude_none=True) for t in body.tools or []],
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=body.chat_template_kwargs or {},
    )
    ids: list[int] = chat_prompt(context, job)["prompt_token_ids"]
    return ids


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, Any]:
    """The text of token ids, special tokens with it."""
    context = context_of(request)
    context.check_model(body.model)
    context.check_tokens(body.tokens, "tokens")
    text = await asyncio.to_thread(context.tokenizer.decode, body.tokens, False)
    return {"prompt": text}
