"""``edge-infer profile``: where the time of a step goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edge_infer.cli.bench import KvDtype, Model, Output, Threads, finish, say
from edge_infer.cli.common import JsonOption, command

if TYPE_CHECKING:
    from edge_infer.harness.schema_profile import StepProfile


def _print(found: StepProfile) -> None:
    print(
        f"{found.phase}: {1e3 * found.seconds:.2f} ms a step of {found.rows:g} rows, "
        f"{found.context} tokens before it, {len(found.steps)} steps"
    )
    print(f"  {'':<52}{'ms':>9}{'share':>7}{'GB/s':>8}{'Gop/s':>9}")
    for part in found.parts:
        rate = part.bytes_per_second / 1e9
        operations = part.operations_per_second / 1e9
        print(
            f"  {part.name:<52}{1e3 * part.seconds:>9.3f}{part.seconds / found.seconds:>7.1%}"
            + (f"{rate:>8.1f}" if rate else "")
            + (f"{operations:>9.1f}" if operations else "")
        )


@command
def profile(
    model: Model,
    context: Annotated[int, typer.Option(help="Tokens in the cache before the steps.")] = 0,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of the prefill.")] = 512,
    steps: Annotated[int, typer.Option(help="Steps of the decode.")] = 32,
    sequences: Annotated[int, typer.Option(help="That decode in the same steps.")] = 1,
    threads: Threads = None,
    kv_cache_dtype: KvDtype = None,
    weights: Annotated[str | None, typer.Option(help="mapped, resident or locked.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="Rows of one prefill step.")] = None,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Show the time, bytes and arithmetic of each kind of operation in a decode and a prefill step.

    The times add up to the step: waiting, sampling and Python are parts of their own.
    """
    from edge_infer.harness.profile import ProfileOptions
    from edge_infer.harness.profile import profile as measure

    options = ProfileOptions(
        model=model,
        context=context,
        prompt_tokens=prompt_tokens,
        steps=steps,
        sequences=sequences,
        threads=threads,
        weights=weights,
        chunk_size=chunk_size,
        kv_cache_dtype=kv_cache_dtype,
    )
    artifact = measure(options, say)
    finish(artifact, output, as_json)
    if not as_json:
        for found in artifact.arms[0].profiles:
            _print(found)
