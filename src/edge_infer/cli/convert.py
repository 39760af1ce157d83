"""``edge-infer convert``: a Hugging Face folder or a GGUF file to the packed format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_infer.cli.common import JsonOption, Stopwatch, command, megabytes, print_json
from edge_infer.errors import ConfigError

if TYPE_CHECKING:
    from edge_infer.checkpoint.allocation import Importance


@contextmanager
def progress_bar(title: str, wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr that takes (bytes done, bytes in all), or one line where stderr is no
    terminal. Nothing is shown before the first call; None where nothing is wanted."""
    if not wanted:
        yield None
        return
    if not sys.stderr.isatty():
        said = False

        def say(done: int, total: int) -> None:
            nonlocal said
            if not said:
                print(f"{title}: {megabytes(total)} ...", file=sys.stderr, flush=True)
            said = True

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))

    def show(done: int, total: int) -> None:
        if not bar.tasks:
            bar.add_task(title)
            bar.start()
        bar.update(bar.tasks[0].id, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.tasks:
            bar.stop()


@command
def convert(
    source: Annotated[Path, typer.Argument(help="A Hugging Face folder or a GGUF file.")],
    destination: Annotated[Path, typer.Argument(help="The folder to make.")],
    bits: Annotated[
        int | None,
        typer.Option(help="4, 6 or 8. Default: 4 for a folder; a GGUF keeps 4-bit types, 8 above."),
    ] = None,
    group_size: Annotated[int, typer.Option(help="32, 64 or 128 values share a scale.")] = 32,
    minimums: Annotated[
        bool, typer.Option("--minimums", help="Store a minimum beside each scale (4 and 6 bits).")
    ] = False,
    include: Annotated[
        list[str] | None, typer.Option(help="Pattern of modules to quantize; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Pattern of modules to leave alone; repeatable.")
    ] = None,
    module_bits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=BITS",
            help="Other bits for modules that match, e.g. 'model.embed_tokens=6'; repeatable.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="Fit scales to what the inputs of each matrix are on this text file."),
    ] = None,
    calibration_tokens: Annotated[
        int, typer.Option(min=64, help="How much of the text is used.")
    ] = 8192,
    target_bpw: Annotated[
        float | None,
        typer.Option(help="Choose the form of each matrix, for this many bits a weight in all."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert a model to the packed format."""
    from edge_infer.checkpoint.convert import convert as convert_checkpoint

    notes: list[str] = []
    clock = Stopwatch()
    own_bits = [_pair(text) for text in module_bits or ()]
    importance = None
    if calibrate is not None:
        importance = _calibrate(source, calibrate, calibration_tokens, quiet=as_json)
    with progress_bar(f"Converting {source.name}", not as_json) as progress:
        made = convert_checkpoint(
            source,
            destination,
            bits=bits,
            group_size=group_size,
            symmetric=not minimums,
            include=include or (),
            exclude=exclude or (),
            module_bits=own_bits,
            importance=importance,
            target_bpw=target_bpw,
            progress=progress,
            notes=notes,
        )
    size = sum(file.stat().st_size for file in made.iterdir())
    if as_json:
        print_json(
            {
                "path": str(made),
                "bytes": size,
                "seconds": clock.seconds,
                "notes": notes,
            }
        )
        return
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{made}: {megabytes(size)} in {clock.seconds:.1f} s")


def _pair(text: str) -> tuple[str, int]:
    pattern, _, bits = text.rpartition("=")
    if not pattern or not bits.isdecimal():
        raise ConfigError(
            f"{text!r} is no PATTERN=BITS.", remedy="Write it like 'model.embed_tokens=6'."
        )
    return pattern, int(bits)


def _calibrate(source: Path, text: str, count: int, *, quiet: bool) -> Importance:
    """Runs the unquantized model over the beginning of a text."""
    from edge_infer.checkpoint.resolve import cache_dir
    from edge_infer.engine.calibration import input_importance
    from edge_infer.engine.tokenizer import Tokenizer
    from edge_infer.harness.corpus import find_text, read_text

    if not source.is_dir():
        raise ConfigError(
            "Calibration runs the unquantized model, which a GGUF file is not.",
            remedy="Make a folder of it with edge-infer dequantize, and convert that.",
        )
    words = read_text(find_text(text, cache_dir()))
    tokens = Tokenizer.from_folder(source).encode(words, parse_special=False)[:count]
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // total
        if not quiet and tenth > shown:
            print(f"Calibrating: {done} of {total} tokens", file=sys.stderr)
            shown = tenth

    return input_importance(source, tokens, progress=show)
