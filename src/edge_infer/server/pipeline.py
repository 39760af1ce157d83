"""One chat generation as a stream of events: what every chat API renders.

``await run_chat(context, job)`` renders the template, compiles the grammar and queues the request;
whatever is wrong with the job is raised there, before an answer begins. What it returns is iterated
for events. An answer that is not streamed is the same events, folded by :func:`collect`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edge_infer.engine.outputs import TokenLogprobs
from edge_infer.engine.params import SamplingParams
from edge_infer.server.errors import ApiError, unsupported_parameter

if TYPE_CHECKING:
    from edge_infer.engine.chat_template import ChatTemplate
    from edge_infer.engine.request import TokenConstraint
    from edge_infer.engine.serving import Delta, Generation
    from edge_infer.server.context import ServerContext
    from edge_infer.server.grammar import GrammarSpec

#: Variables of a template that requests have parameters of their own for.
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
)


@dataclass(frozen=True)
class Content:
    """Text of choice ``index``. ``logprobs``: of the tokens since the last event that had some,
    None unless asked for; they cover every generated token, markup and reasoning too."""

    index: int
    text: str
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True)
class Reasoning:
    """Text between the model's reasoning tags."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins: ``call_index`` counts within the choice; ``id`` is unique."""

    index: int
    call_index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """A piece of the call's arguments, which together are one JSON object."""

    index: int
    call_index: int
    text: str


@dataclass(frozen=True)
class Finished:
    """A choice is complete. ``finish_reason``: stop, length or tool_calls; ``stop_reason``: the
    stop string or token id that ended it, None for EOS."""

    index: int
    finish_reason: str
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens of the whole request; the last event."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


Event = Content | Reasoning | ToolCallStart | ToolCallArguments | Finished | Usage


@dataclass
class ChatJob:
    """A chat request, whatever API it came by.

    ``messages``: as chat templates see them (role, content, tool_calls with arguments as objects,
    tool_call_id). ``params.n`` is the number of choices. ``tools``: function tools in OpenAI's
    form. ``tool_choice``: auto, none, required or ``{"name": …}``. ``response_format``: what the
    text must look like, and ``format_param`` the parameter that says so. ``template_kwargs``:
    variables for the template. ``reasoning_effort``: none to xhigh, for templates with such a
    setting.
    ``continue_final_message``: the answer goes on where the last message, an assistant's, ends.
    """

    messages: list[dict[str, Any]]
    params: SamplingParams
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, str] = "auto"
    parallel_tool_calls: bool = True
    response_format: GrammarSpec | None = None
    format_param: str = "response_format"
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None


class ChatStream:
    """The events of a running generation. Closing it, or cancelling whoever iterates, ends the
    generation."""

    def __init__(self, context: ServerContext, job: ChatJob, generation: Generation) -> None:
        self._context = context
        self._job = job
        self._generation = generation
        self._events = self._run()

    @property
    def prompt_tokens(self) -> int:
        return len(self._generation.prompt_token_ids)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def aclose(self) -> None:
        await self._events.aclose()
        self._generation.cancel()  # also when nobody has asked for an event yet

    async def _run(self) -> AsyncGenerator[Event, None]:
        choices = [_Choice(i) for i in range(self._job.params.n)]
        async with aclosing(self._context.deltas(self._generation)) as deltas:
            async for delta in deltas:
                for event in choices[delta.index].take(delta):
                    yield event
        yield Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum(c.tokens for c in choices),
            cached_tokens=self._generation.cached_tokens,
            reasoning_tokens=sum(c.reasoning_tokens for c in choices),
        )


class _Choice:
    """Deltas of one choice to events."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.tokens = 0
        self.reasoning_tokens = 0
        self._logprobs: list[TokenLogprobs] | None = None  # not yet given out

    def take(self, delta: Delta) -> list[Event]:
        self.tokens += len(delta.token_ids)
        if delta.logprobs is not None:
            self._logprobs = (self._logprobs or []) + delta.logprobs
        events: list[Event] = []
        if delta.text:
            events.append(self._content(delta.text))
        if delta.finish_reason is not None:
            if self._logprobs:
                events.append(self._content(""))
            events.append(Finished(self.index, delta.finish_reason, delta.stop_reason))
        return events

    def _content(self, text: str) -> Content:
        logprobs, self._logprobs = self._logprobs, [] if self._logprobs is not None else None
        return Content(self.index, text, logprobs)


async def run_chat(context: ServerContext, job: ChatJob) -> ChatStream:
    """Starts a generation.

    Raises EdgeInferError for a job that cannot run: no chat template, a prompt that does not fit,
    a full queue.
    """
    # Templates and long texts take milliseconds and more, which the event loop has not.
    prompt, constraint = await asyncio.to_thread(_prepare, context, job)
    return ChatStream(context, job, context.generate(prompt, job.params, constraint))


def _prepare(
    context: ServerContext, job: ChatJob
) -> tuple[dict[str, Any], Callable[[], TokenConstraint] | None]:
    prompt = chat_prompt(context, job)
    if job.response_format is None:
        return prompt, None
    return prompt, context.compile(job.response_format, job.format_param)


def chat_prompt(context: ServerContext, job: ChatJob) -> dict[str, Any]:
    """The job's conversation as the chat template renders it: text and token ids."""
    if job.tools and job.tool_choice != "none":
        raise unsupported_parameter("tools", "tool calls are not built yet")
    template = context.templates.get()
    going_on = job.continue_final_message
    if going_on and (not job.messages or job.messages[-1]["role"] != "assistant"):
        raise ApiError(
            "continue_final_message needs a last message of the assistant.",
            param="continue_final_message",
        )
    text = template.render(
        job.messages,
        add_generation_prompt=job.add_generation_prompt and not going_on,
        **_template_variables(job, template),
    )
    if going_on:
        text = _cut_after(text, job.messages[-1].get("content"))
    ids = context.tokenizer.encode(text, add_special_tokens=False)
    return {"prompt": text, "prompt_token_ids": ids}


def _template_variables(job: ChatJob, template: ChatTemplate) -> dict[str, Any]:
    """The job's variables. Raises ApiError 400 for one that the template never looks at."""
    for name in job.template_kwargs:
        if name in _RESERVED or name not in template.source:
            why = "it is set by the server" if name in _RESERVED else "the chat template ignores it"
            raise unsupported_parameter(f"chat_template_kwargs.{name[:100]}", why)
    variables = dict(job.template_kwargs)
    effort = job.reasoning_effort
    if effort is not None:
        if "reasoning_effort" in template.source:
            variables.setdefault("reasoning_effort", effort)
        elif "enable_thinking" in template.source:
            variables.setdefault("enable_thinking", effort not in ("none", "minimal"))
        elif effort != "none":
            raise unsupported_parameter("reasoning_effort", "the model's template has no reasoning")
    return variables


def _cut_after(text: str, content: Any) -> str:
    """The rendered prompt up to the end of its last message, without what closes a turn."""
    # Templates may trim a message, so its own white space is not looked for at the front.
    wanted = content.strip() if isinstance(content, str) else ""
    at = text.rfind(wanted) if wanted else -1
    if at < 0:
        raise ApiError(
            "continue_final_message: the chat template does not show the last message's text.",
            param="continue_final_message",
            remedy="Give the last message some text, or leave the parameter out.",
        )
    end = at + len(wanted)
    tail = content[len(content.rstrip()) :]
    return text[:end] + (tail if text.startswith(tail, end) else "")


@dataclass
class ToolCall:
    """A complete call; ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass
class Choice:
    """A complete choice. ``content`` has no reasoning and no tool calls in it."""

    index: int
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str = ""
    stop_reason: str | int | None = None


def collect(events: Iterable[Event]) -> tuple[list[Choice], Usage]:
    """Folds the events of one generation into its choices, by index, and its usage."""
    choices: dict[int, Choice] = {}
    usage = Usage(0, 0)
    for event in events:
        if isinstance(event, Usage):
            usage = event
            continue
        choice = choices.setdefault(event.index, Choice(event.index))
        if isinstance(event, Content):
            choice.content += event.text
            if event.logprobs is not None:
                choice.logprobs = (choice.logprobs or []) + event.logprobs
        elif isinstance(event, Reasoning):
            choice.reasoning += event.text
        elif isinstance(event, ToolCallStart):
            choice.tool_calls.append(ToolCall(event.id, event.name, ""))
        elif isinstance(event, ToolCallArguments):
            choice.tool_calls[event.call_index].arguments += event.text
        else:
            choice.finish_reason, choice.stop_reason = event.finish_reason, event.stop_reason
    return [choices[i] for i in sorted(choices)], usage


async def complete_chat(context: ServerContext, job: ChatJob) -> tuple[list[Choice], Usage]:
    """The whole answer of a job."""
    stream = await run_chat(context, job)
    try:
        return collect([event async for event in stream])
    finally:
        await stream.aclose()


def new_id(prefix: str) -> str:
    """An identifier like ``chatcmpl-3f…``."""
    return f"{prefix}{uuid.uuid4().hex}"
