"""The whole command line, with every command. Heavy imports happen inside commands."""

from __future__ import annotations

from edge_infer.cli.commands import make_app

app = make_app()
