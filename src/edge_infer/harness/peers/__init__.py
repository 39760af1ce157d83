"""Other engines as arms of a comparison, each run by its own benchmark program.

``llamacpp`` is measured by its own programs, as they come or without the second copy of the
weights that they repack (``llamacpp-no-repack``); the others are Python packages (``python_peer``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edge_infer.errors import ConfigError
from edge_infer.harness.schema import EngineBuild, MemoryReport, Scalar

if TYPE_CHECKING:
    from edge_infer.harness.bench import BenchOptions

GGUF_PEERS = ("llamacpp", "llamacpp-no-repack")
"""They read a GGUF file; the others read a folder."""
PEERS = (*GGUF_PEERS, "openvino", "onnxruntime-genai", "vllm-cpu", "vllm-cpu-eager")


@dataclass(frozen=True)
class PeerRun:
    """One pass of a peer. ``samples`` by metric: "prefill", "decode", "decode.together" in tok/s,
    "load.start_to_first_token" in seconds, with the meaning that
    :mod:`edge_infer.harness.bench` gives them."""

    samples: dict[str, list[float]]
    command: list[str]
    threads: int
    settings: dict[str, Scalar]
    memory: MemoryReport


class Peer(Protocol):
    """An engine that can be measured beside ours."""

    name: str

    def run(self, model: Path, options: BenchOptions, cpus: Sequence[int]) -> PeerRun:
        """Measures ``model`` once as ``options`` says, with one thread on each of ``cpus``.

        Raises ExecutionError where the peer fails or takes too long, UnsupportedError where it
        cannot measure what was asked for.
        """

    def build(self) -> EngineBuild:
        """What the peer is, for the provenance."""


def open_peer(name: str) -> Peer:
    """The peer of that name. Raises ConfigError for an unknown one, and the peer's own
    UnsupportedError where it is not installed."""
    if name not in PEERS:
        raise ConfigError(f"There is no peer {name!r}.", remedy=f"Use one of {', '.join(PEERS)}.")
    if name in GGUF_PEERS:
        from edge_infer.harness.peers import llamacpp

        return llamacpp.open_peer(repack=name == "llamacpp")
    from edge_infer.harness.peers import python_peer

    return python_peer.open_peer(name)
