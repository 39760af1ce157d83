"""``python -m edge_infer.cli``: the same as the ``edge-infer`` script."""

from edge_infer.cli.main import app

app(prog_name="edge-infer")
