"""One chat generation as a stream of events: what every chat API renders.

``await run_chat(context, job)`` renders the template, compiles the grammar and queues the request;
whatever is wrong with the job is raised there, before an answer begins. What it returns is iterated
for events. An answer that is not streamed is the same events, folded by :func:`collect`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edge_infer.engine.outputs import TokenLogprobs
from edge_infer.engine.params import SamplingParams

if TYPE_CHECKING:
    from edge_infer.engine.serving import Generation
    from edge_infer.server.choice_reader import ChoiceReader
    from edge_infer.server.context import ServerContext
    from edge_infer.server.grammar import GrammarSpec


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

    def __init__(
        self, context: ServerContext, generation: Generation, readers: list[ChoiceReader]
    ) -> None:
        self._context = context
        self._generation = generation
        self._readers = readers
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
        async with aclosing(self._context.deltas(self._generation)) as deltas:
            async for delta in deltas:
                for event in self._readers[delta.index].take(delta):
                    yield event
        yield Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum(r.tokens for r in self._readers),
            cached_tokens=self._generation.cached_tokens,
            reasoning_tokens=sum(r.reasoning_tokens for r in self._readers),
        )


async def run_chat(context: ServerContext, job: ChatJob) -> ChatStream:
    """Starts a generation.

    Raises EdgeInferError for a job that cannot run: no chat template, a prompt that does not fit,
    a grammar or tools that cannot be used, a full queue.
    """
    from edge_infer.server.prepare import prepare

    # Templates, grammars and long texts take milliseconds and more, which the event loop has not.
    prepared = await asyncio.to_thread(prepare, context, job)
    generation = context.generate(prepared.prompt, prepared.params, prepared.constraint)
    return ChatStream(context, generation, [prepared.reader(i) for i in range(job.params.n)])


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
