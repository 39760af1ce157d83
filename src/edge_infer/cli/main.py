"""The command line: registers one function per command. Heavy imports happen inside commands."""

from __future__ import annotations

from typing import Annotated

import typer

from edge_infer.cli import (
    agent_suite,
    bench,
    convert,
    demo,
    dequantize,
    device,
    doctor,
    fidelity,
    grid,
    init,
    inspect,
    ledger,
    profile,
    report,
    roofline,
    run,
    serve,
    synth,
)

app = typer.Typer(
    name="edge-infer",
    help="Run language models on the CPU, inside a memory budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(version("edge-infer"))
        raise typer.Exit(0)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


for name, function in (
    ("run", run.run),
    ("serve", serve.serve),
    ("demo", demo.demo),
    ("convert", convert.convert),
    ("inspect", inspect.inspect),
    ("bench", bench.bench),
    ("compare", bench.compare),
    ("agent-suite", agent_suite.agent_suite),
    ("grid", grid.grid),
    ("report", report.report),
    ("ledger", ledger.ledger),
    ("init", init.init),
    ("profile", profile.profile),
    ("roofline", roofline.roofline),
    ("device", device.device),
    ("doctor", doctor.doctor),
    ("synth", synth.synth),
    ("dequantize", dequantize.dequantize),
    ("fidelity", fidelity.fidelity),
):
    app.command(name)(function)
