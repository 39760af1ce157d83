"""The native path: our kernels on torch's threads, reading the mapped layout where it lies."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edge_infer.vllm_plugin import ops
from edge_infer.vllm_plugin.paths import WeightPath
from edge_infer.vllm_plugin.segments import Segment


class Path(WeightPath):
    """Takes every form of the packed layout. Sums in f32, whatever the dtype of the model."""

    name = "native"

    def refusal(self, segments: Sequence[Segment]) -> str | None:
        return None

    def prepare(self, layer: torch.nn.Module, segments: list[Segment]) -> None:
        bias = getattr(layer, "bias", None)
        if bias is not None:  # vLLM pads that of a head with its vocabulary
            bias = bias[: sum(segment.n for segment in segments)]
        # the native object holds the segments, and so the file's map
        layer.edge_infer_linear, handle = ops.linear(segments, bias)
        layer.edge_infer_segments = segments  # for whoever asks what the layer consists of
        layer.edge_infer_n = sum(segment.n for segment in segments)
        layer.edge_infer_k = segments[0].k
        layer.edge_infer_has_bias = bias is not None
        layer.edge_infer_handle = torch.nn.Parameter(handle, requires_grad=False)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        own = bias is not None and layer.edge_infer_has_bias
        out: torch.Tensor = torch.ops.edge_infer.linear(
            x, layer.edge_infer_handle, layer.edge_infer_n, own
        )
        return out if bias is None or own else out + bias

    def embedding(
        self, layer: torch.nn.Module, ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        out: torch.Tensor = torch.ops.edge_infer.lookup(
            ids, layer.edge_infer_handle, layer.edge_infer_k, dtype
        )
        return out
