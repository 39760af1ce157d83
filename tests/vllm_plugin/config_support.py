"""Quantization configs that tests of the plugin share."""

from __future__ import annotations


def entry(n: int, k: int = 64, **changes) -> dict:
    """A packed module as the config lists it."""
    return {"bits": 4, "group_size": 32, "symmetric": True, "n": n, "k": k} | changes


def config(modules: dict | None = None, **changes) -> dict:
    """A checkpoint's quantization_config."""
    return {
        "quant_method": "cpu_int4",
        "version": 1,
        "group_size": 32,
        "symmetric": True,
        "bits": 4,
        "modules": modules or {},
    } | changes
