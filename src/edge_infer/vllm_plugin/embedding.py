"""The vocabulary embedding and the output head over one packed matrix."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

from edge_infer.errors import CheckpointError, ExecutionError
from edge_infer.vllm_plugin import loading
from edge_infer.vllm_plugin.paths import Choice
from edge_infer.vllm_plugin.segments import Form


class CpuInt4EmbeddingMethod(QuantizeMethodBase):
    """A packed embedding or head; with `form` None a head that is tied to the embedding.

    vLLM pads vocabularies to 64. The packed matrix has the rows that the checkpoint has: logits
    beyond them do not exist, and no token id asks for their rows.
    """

    def __init__(self, choice: Choice, form: Form | None) -> None:
        self.choice, self.form = choice, form

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Raises UnsupportedError for tensor parallelism, CheckpointError for other shapes."""
        layer.edge_infer_dtype = params_dtype
        if self.form is None:
            return
        loading.refuse_sharding(layer, self.form.name)
        rows = getattr(layer, "org_vocab_size", self.form.n)
        if self.form.k != input_size_per_partition or self.form.n != rows:
            raise CheckpointError(
                f"the model's config needs [{rows}, {input_size_per_partition}] for "
                f"{self.form.name}; the checkpoint has [{self.form.n}, {self.form.k}]."
            )
        loading.expect(layer, [self.form])

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if self.form is None:
            return
        segments = loading.collect(layer, [self.form])
        if segments is not None:
            loading.prepare(layer, self.choice(segments, embedding=True), segments)

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> torch.nn.Module:
        """From now on `layer` multiplies with the embedding's one copy."""
        if not isinstance(embed_tokens.quant_method, CpuInt4EmbeddingMethod):
            # the embedding is not packed, so its head is not either
            layer.quant_method = embed_tokens.quant_method
            return layer.quant_method.tie_weights(layer, embed_tokens)
        # not an attribute: torch would register the embedding as a child of the head
        layer.__dict__["edge_infer_embedding"] = embed_tokens
        return layer

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits: x [..., K] -> [..., N] in the dtype of x; bias [N] or more, for padded rows."""
        if self.form is not None:
            rows = self.form.n
        else:
            tied = layer.__dict__.get("edge_infer_embedding")
            if tied is None:
                raise ExecutionError("the output head was never tied to the embedding.")
            layer, rows = tied, tied.quant_method.form.n
        if bias is not None:
            bias = bias[:rows]
        out: torch.Tensor = layer.edge_infer_path.apply(layer, x, bias)
        return out

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """Token ids [...] -> [..., K] in the model's dtype."""
        out: torch.Tensor = layer.edge_infer_path.embedding(layer, input_, layer.edge_infer_dtype)
        return out
