"""``edge-infer run``: generate text from a model, once or in a conversation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_infer.cli.common import JsonOption, command, print_json
from edge_infer.cli.convert import progress_bar
from edge_infer.cli.generation import (
    figures,
    load_tokenizer,
    print_figures,
    print_room,
    stream_to_stdout,
)
from edge_infer.errors import ConfigError

if TYPE_CHECKING:
    from edge_infer import LLM, SamplingParams

Model = Annotated[str, typer.Argument(help="A folder, a GGUF file or a hub id (org/name).")]


@command
def run(
    model: Model,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Text; without it, stdin is read.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Use the chat template; without -p, talk in turns.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System message, with --chat.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="A file or a built-in name, with --chat.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Stop after so many, at the latest.")
    ] = 512,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 is off.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text to stop at; repeatable.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Context length in tokens.")] = None,
    threads: Annotated[int | None, typer.Option(help="Default: one per usable core.")] = None,
    weights: Annotated[str, typer.Option(help="mapped, resident or locked.")] = "mapped",
    kv_cache_dtype: Annotated[str, typer.Option(help="f16, bf16 or int8.")] = "f16",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the text.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Generate text."""
    from edge_infer import LLM, SamplingParams

    for option, value in (("--system", system), ("--chat-template", chat_template)):
        if value is not None and not chat:
            raise ConfigError(f"{option} is part of a chat.", remedy="Add --chat.")
    talking = chat and prompt is None and sys.stdin.isatty() and not as_json
    if prompt is None and not talking:
        if sys.stdin.isatty():
            print("Prompt, ended by Ctrl-D:", file=sys.stderr)
        try:
            prompt = sys.stdin.read().removesuffix("\n")  # what ends a piped line, not a text
        except UnicodeDecodeError as e:
            raise ConfigError(
                f"Standard input is not {e.encoding}: byte {e.object[e.start]:#04x} at {e.start}.",
                remedy="Convert the text, or set PYTHONIOENCODING to its encoding.",
            ) from None
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or None,
        max_tokens=max_tokens,
    )
    with progress_bar("Converting (once)", not quiet and not as_json) as progress:
        llm = LLM(
            model,
            max_model_len=max_model_len,
            threads=threads,
            weights=weights,
            kv_cache_dtype=kv_cache_dtype,
            chat_template=chat_template,
            progress=progress,
        )
    seconds = (llm.load_seconds, load_tokenizer(llm))
    if not quiet and not as_json:
        print_room(llm)
    opening = [{"role": "system", "content": system}] if system is not None else []
    if talking:
        _talk(llm, params, opening, seconds, quiet)
        return
    assert prompt is not None
    text: Any = prompt
    if chat:
        text = llm.chat_prompt([*opening, {"role": "user", "content": prompt}])
    if as_json:
        (output,) = llm.generate([text], params)
        document = {"text": output.outputs[0].text, "token_ids": output.outputs[0].token_ids}
        print_json({"model": model, **document, **figures(output, *seconds)})
        return
    if not chat:
        print(prompt, end="", flush=True)
    finished = stream_to_stdout(llm.stream(text, params))
    print(flush=True)
    if finished is not None and not quiet:
        print_figures(figures(finished, *seconds))


def _talk(
    llm: LLM,
    params: SamplingParams,
    messages: list[dict[str, str]],
    seconds: tuple[float, float],
    quiet: bool,
) -> None:
    """Turns of a conversation until end of input; Ctrl-C stops an answer, not the conversation."""
    messages = list(messages)
    # A missing or broken template is reported before the first turn, not after it is typed.
    llm.chat_prompt([*messages, {"role": "user", "content": "Hello"}])
    while True:
        try:
            said = input("> ")
        except EOFError:
            print()
            return
        if not said.strip():
            continue
        messages.append({"role": "user", "content": said})
        try:
            finished = stream_to_stdout(llm.stream(llm.chat_prompt(messages), params))
        except KeyboardInterrupt:
            print("\n(stopped)")
            messages.pop()
            continue
        print(flush=True)
        if finished is not None:
            messages.append({"role": "assistant", "content": finished.outputs[0].text})
            if not quiet:
                print_figures(figures(finished, *seconds))
