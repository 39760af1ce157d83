"""``edge-infer init``: memory of a start."""

from __future__ import annotations

from typing import Annotated

import typer

from edge_infer.cli.bench import KvDtype, Model, Output, Threads, Timeout, finish, say
from edge_infer.cli.common import JsonOption, command


@command
def init(
    model: Model,
    context: Annotated[int, typer.Option(help="Tokens that fill the context at the end.")] = 2048,
    starts: Annotated[int, typer.Option(help="Fresh processes.")] = 3,
    threads: Threads = None,
    kv_cache_dtype: KvDtype = None,
    weights: Annotated[str | None, typer.Option(help="mapped, resident or locked.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="Rows of one prefill step.")] = None,
    timeout: Timeout = 600.0,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Measure peak memory while starting, settled memory, and memory with a full context."""
    from edge_infer.harness.init import InitOptions
    from edge_infer.harness.init import init as measure

    options = InitOptions(
        model=model,
        context=context,
        starts=starts,
        threads=threads,
        weights=weights,
        chunk_size=chunk_size,
        kv_cache_dtype=kv_cache_dtype,
        timeout=timeout,
    )
    finish(measure(options, say), output, as_json)
