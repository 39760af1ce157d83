"""``edge-infer roofline``: the ceilings of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from edge_infer.cli.bench import Output, finish, say
from edge_infer.cli.common import JsonOption, command


@command
def roofline(
    threads: Annotated[
        int | None, typer.Option(help="Up to so many threads; default: one per usable core.")
    ] = None,
    repeat: Annotated[int, typer.Option(help="Samples of each ceiling.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of one sample of a peak.")] = 0.1,
    output: Output = None,
    as_json: JsonOption = False,
) -> None:
    """Measure streaming reads, and int8 and bf16 multiplication, by 1 to N threads."""
    from edge_infer.harness.roofline import RooflineOptions
    from edge_infer.harness.roofline import roofline as measure

    finish(measure(RooflineOptions(threads, repeat, seconds), say), output, as_json)
