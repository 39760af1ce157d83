"""Prints where the demo model's GGUF is."""

from edge_infer.checkpoint.resolve import cache_dir
from edge_infer.cli.demo import demo_model

print(demo_model(cache_dir()))
