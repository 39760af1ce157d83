"""The native path: our kernels on torch's threads, reading the mapped layout where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge_infer.vllm_plugin.paths import WeightPath

if TYPE_CHECKING:
    import torch

    from edge_infer.vllm_plugin.segments import Segment


class Path(WeightPath):
    """Takes every form of the packed layout."""

    name = "native"

    def refusal(self, segments: Sequence[Segment]) -> str | None:
        return None

    def prepare(self, layer: torch.nn.Module, segments: list[Segment]) -> None:
        raise NotImplementedError

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        raise NotImplementedError
