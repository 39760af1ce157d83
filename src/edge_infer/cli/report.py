"""``edge-infer report``: tables, plots and pages from artifacts; no figure is typed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_infer.cli.common import JsonOption, command, print_json
from edge_infer.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from edge_infer.harness.report.collect import Loaded

RESULTS = Path("benchmarks/results")


@command
def report(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Artifacts or folders; benchmarks/results.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one HTML page to this file.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write PNG plots to this folder.")] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Make the tables and plots of this page again, and check its numbers."),
    ] = None,
    retract: Annotated[
        str | None, typer.Option(help="Mark the one artifact as retracted, for this reason.")
    ] = None,
    successor: Annotated[
        str | None, typer.Option(help="With --retract: the file that replaces it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show artifacts as tables; write them as Markdown, HTML or plots."""
    from edge_infer.harness.files import write_whole
    from edge_infer.harness.report import collect
    from edge_infer.harness.report.markdown import report_text

    files = paths or [RESULTS]
    if retract is not None:
        if len(files) != 1 or not files[0].is_file():
            raise ConfigError("--retract needs one artifact.", remedy="Name its file.")
        collect.retract(files[0], retract, successor)
    elif successor is not None:
        raise ConfigError("--successor has no effect without --retract.")
    loaded = collect.read_artifacts(files)
    written: list[str] = []
    if markdown is not None:
        write_whole(markdown, report_text(loaded).encode())
        written.append(str(markdown))
    if html is not None:
        from edge_infer.harness.report.page import report_page

        write_whole(html, report_page(loaded).encode())
        written.append(str(html))
    if plots is not None:
        written += _plots(plots, collect.current(loaded))
    if page is not None:
        written += _page(page, files[0] if files[0].is_dir() else files[0].parent)
    if as_json:
        retracted = {
            one.name: one.artifact.retracted.model_dump()
            for one in loaded
            if one.artifact.retracted is not None
        }
        counting = [one.name for one in collect.current(loaded)]
        print_json({"artifacts": counting, "retracted": retracted, "written": written})
    elif written:
        print("\n".join(written))
    else:
        print(report_text(loaded), end="")


def _plots(folder: Path, loaded: list[Loaded]) -> list[str]:
    from edge_infer.harness.files import write_whole
    from edge_infer.harness.report.plots import plots

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for one in loaded:
        for name, image in plots(one.artifact).items():
            file = folder / f"{Path(one.name).stem}-{name}.png"
            write_whole(file, image)
            written.append(str(file))
    return written


def _page(page: Path, folder: Path) -> list[str]:
    from edge_infer.harness.files import write_whole
    from edge_infer.harness.report.citations import unsupported
    from edge_infer.harness.report.markdown import page_plots, update

    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{page} cannot be read: {error}.") from None
    text = update(text, folder)
    write_whole(page, text.encode())
    written = [str(page)]
    for name, image in page_plots(text, folder):
        write_whole(page.with_name(name), image)
        written.append(str(page.with_name(name)))
    claims = unsupported(text, folder)
    if claims:
        raise ConfigError(
            f"{page.name}: " + "; ".join(map(str, claims[:8])) + ".",
            remedy="Cite the artifact that the number is from, or take the number out.",
        )
    return written
