"""A chat job made ready for the engine: prompt, grammar, and readers of the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edge_infer.engine.params import SamplingParams
from edge_infer.server.choice_reader import ChoiceReader
from edge_infer.server.errors import ApiError, unsupported_parameter
from edge_infer.server.pipeline import ChatJob
from edge_infer.server.reasoning import ReasoningFormat, reasoning_for
from edge_infer.server.tools import Tool, ToolFormat, declared, format_for

if TYPE_CHECKING:
    from edge_infer.engine.chat_template import ChatTemplate
    from edge_infer.engine.request import TokenConstraint
    from edge_infer.server.context import ServerContext

#: Variables of a template that requests have parameters of their own for.
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
)


@dataclass(frozen=True)
class Prepared:
    """``prompt``: text and token ids; ``reader(index)`` reads one choice."""

    prompt: dict[str, Any]
    params: SamplingParams
    constraint: Callable[[], TokenConstraint] | None
    reader: Callable[[int], ChoiceReader]


def prepare(context: ServerContext, job: ChatJob) -> Prepared:
    """Raises EdgeInferError for a job that cannot run."""
    prompt = chat_prompt(context, job)
    template = context.templates.get(with_tools=bool(offered(job)))
    reasoning = None if job.continue_final_message else reasoning_for(template.source)
    calls: ToolFormat | None = None
    tools: dict[str, Tool] = {}
    spec, param = job.response_format, job.format_param
    if offered(job):
        calls = format_for(template.source, context.config.tool_format)
        tools = declared(job.tools)
        choice = job.tool_choice if isinstance(job.tool_choice, str) else job.tool_choice["name"]
        spec = calls.grammar(tools, choice, job.parallel_tool_calls, spec)
        param = "tools" if job.response_format is None else job.format_param
    constraint = None
    if spec is not None:
        if reasoning is not None:
            spec = replace(spec, reasoning=reasoning.prefix(prompt["prompt"]))
        constraint = context.compile(spec, param)

    def reader(index: int) -> ChoiceReader:
        text = prompt["prompt"]
        return ChoiceReader(
            index,
            None if reasoning is None else reasoning.splitter(text),
            None if calls is None else calls.stream(tools, constrained=True),
            reasons=reasoning is not None and reasoning.starts_open(text),
        )

    params = replace(job.params, keep_special_token_ids=_tags(context, calls, reasoning))
    return Prepared(prompt, params, constraint, reader)


def offered(job: ChatJob) -> list[dict[str, Any]] | None:
    """The tools that the model is told of."""
    return job.tools if job.tools and job.tool_choice != "none" else None


def _tags(
    context: ServerContext, calls: ToolFormat | None, reasoning: ReasoningFormat | None
) -> frozenset[int]:
    """Special tokens that must stay in the text, because their readers look for them."""
    tags = [*(calls.tags if calls else ())]
    if reasoning is not None:
        tags += [reasoning.open_tag, reasoning.close_tag]
    ids = {context.tokenizer.token_to_id(tag) for tag in tags}
    return frozenset(i for i in ids if i in context.tokenizer.special_ids)


def chat_prompt(context: ServerContext, job: ChatJob) -> dict[str, Any]:
    """The job's conversation as the chat template renders it: text and token ids."""
    template = context.templates.get(with_tools=bool(offered(job)))
    going_on = job.continue_final_message
    if going_on and (not job.messages or job.messages[-1]["role"] != "assistant"):
        raise ApiError(
            "continue_final_message needs a last message of the assistant.",
            param="continue_final_message",
        )
    text = template.render(
        job.messages,
        tools=offered(job),
        add_generation_prompt=job.add_generation_prompt and not going_on,
        **_template_variables(job, template),
    )
    if going_on:
        text = _cut_after(text, job.messages[-1].get("content"))
    ids = context.encode(text, add_special_tokens=False)
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
