"""``edge-infer dequantize``: a GGUF file to a bf16 folder, the reference for fidelity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge_infer.cli.common import JsonOption, Stopwatch, command, megabytes, print_json
from edge_infer.cli.convert import progress_bar


@command
def dequantize(
    source: Annotated[Path, typer.Argument(help="A GGUF file.")],
    destination: Annotated[Path, typer.Argument(help="The folder to make.")],
    noise: Annotated[
        float,
        typer.Option(help="Uniform noise, in steps of the source's grid either way: 0 to 0.5."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same noise.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write a GGUF's values as a bf16 Hugging Face folder, which any quantizer can start from."""
    from edge_infer.checkpoint.dequantize import dequantize as write

    clock = Stopwatch()
    with progress_bar(f"Dequantizing {source.name}", not as_json) as progress:
        made = write(source, destination, noise=noise, seed=seed, progress=progress)
    size = sum(file.stat().st_size for file in made.iterdir())
    if as_json:
        print_json({"path": str(made), "bytes": size, "seconds": clock.seconds})
        return
    print(f"{made}: {megabytes(size)} in {clock.seconds:.1f} s")
