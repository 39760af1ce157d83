"""The commands by name, and the command line that is made of them."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

#: Command to the module of ``edge_infer.cli`` that has a function of its name.
COMMANDS = {
    "run": "run",
    "serve": "serve",
    "demo": "demo",
    "convert": "convert",
    "inspect": "inspect",
    "bench": "bench",
    "compare": "bench",
    "agent-suite": "agent_suite",
    "grid": "grid",
    "report": "report",
    "ledger": "ledger",
    "init": "init",
    "profile": "profile",
    "roofline": "roofline",
    "device": "device",
    "doctor": "doctor",
    "synth": "synth",
    "dequantize": "dequantize",
    "fidelity": "fidelity",
}


def make_app(only: str | None = None) -> typer.Typer:
    """The command line. ``only``: with this command alone, since the options of all the others take
    longer to put together than most commands to begin."""
    app = typer.Typer(
        name="edge-infer",
        help="Run language models on the CPU, inside a memory budget.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [only] if only else COMMANDS:
        module = import_module(f"edge_infer.cli.{COMMANDS[name]}")
        app.command(name)(getattr(module, name.replace("-", "_")))
    return app


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(version("edge-infer"))
        raise typer.Exit(0)


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass
