"""``edge-infer ledger``: every resident byte of a process by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edge_infer.cli.common import JsonOption, command, megabytes, print_json

if TYPE_CHECKING:
    from edge_infer.device.ledger import Ledger, Tensor

PROMPT = "The first thing to know about the sea is that"


def _of_model(model: str, prompt_tokens: int, max_tokens: int) -> Ledger:
    """Opens the model, generates, and looks while the last request's text is still there."""
    from edge_infer import LLM, SamplingParams
    from edge_infer.device.ledger import ledger

    llm = LLM(model)
    text = llm.tokenizer.encode(PROMPT)
    prompt = (text * -(-prompt_tokens // len(text)))[:prompt_tokens]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompt}], params)
    return ledger(llm)


def _resident(tensor: Tensor) -> str:
    kinds = (("anonymous", tensor.anonymous), ("file-backed", tensor.file_backed))
    return "".join(f", {megabytes(size)} {kind}" for kind, size in kinds if size)


def _print(found: Ledger) -> None:
    print(f"process {found.pid}" + (f", {found.model}" if found.model else ""))
    print(f"{'':<42}{'anonymous':>12}{'file-backed':>12}{'planned':>12}{'page cache':>12}")
    for line in found.lines:
        planned, cached = (
            "" if size is None else megabytes(size) for size in (line.planned, line.page_cache)
        )
        print(
            f"{line.name:<42}{megabytes(line.anonymous):>12}{megabytes(line.file_backed):>12}"
            f"{planned:>12}{cached:>12}"
        )
    print(f"{'':<42}{megabytes(found.anonymous):>12}{megabytes(found.file_backed):>12}")
    for tensor in found.unread:
        print(f"Nothing reads {megabytes(tensor.bytes)} of {tensor.name}.")
    if found.largest:
        print("\nlargest tensors")
    for one in found.largest:
        print(f"{megabytes(one.bytes):>10}  {one.name}{_resident(one)}")
    for note in found.notes:
        print(note)


@command
def ledger(
    target: Annotated[
        str, typer.Argument(metavar="PID|MODEL", help="A process, or a model to open here.")
    ],
    prompt_tokens: Annotated[
        int | None, typer.Option(help="For a model: length of the prompt, 64 by default.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="For a model: tokens to generate, 16 by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Name every resident byte of a process: weights, KV pool, tokenizer, libraries, and the rest.

    For a model, it is opened and generates text first, so that what serving touches is there. A
    process of vLLM is asked for its tensors.
    """
    from edge_infer.device.ledger import process_ledger
    from edge_infer.errors import ConfigError

    given = [n for n in (prompt_tokens, max_tokens) if n is not None]
    if target.isdigit():
        if given:
            raise ConfigError("--prompt-tokens and --max-tokens have no effect on a process.")
        found = process_ledger(int(target))
    else:
        if any(n < 1 for n in given):
            raise ConfigError(f"{min(given)} tokens were asked for; 1 or more are needed.")
        found = _of_model(target, prompt_tokens or 64, max_tokens or 16)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)
