"""Linear layers on packed matrices: column and row parallel, merged, QKV.

Of what vLLM merges, some modules may be unquantized; the layer then reads their rows as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase

from edge_infer.errors import CheckpointError
from edge_infer.vllm_plugin import loading
from edge_infer.vllm_plugin.paths import Choice
from edge_infer.vllm_plugin.segments import Form


class CpuInt4LinearMethod(LinearMethodBase):
    """One vLLM linear layer, which is one packed matrix or several side by side."""

    def __init__(self, choice: Choice, forms: list[Form]) -> None:
        self.choice, self.forms = choice, forms
        """Plain parts get their shape in `create_weights`."""

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
        names = ", ".join(form.name for form in self.forms)
        loading.refuse_sharding(layer, names)
        if len(self.forms) == len(output_partition_sizes):
            self.forms = [
                replace(form, n=n, k=input_size_per_partition) if form.plain else form
                for form, n in zip(self.forms, output_partition_sizes, strict=True)
            ]
        rows, k = [form.n for form in self.forms], {form.k for form in self.forms}
        fits = k == {input_size_per_partition} and sum(rows) == sum(output_partition_sizes)
        if len(rows) == len(output_partition_sizes):  # otherwise merged in the checkpoint, or finer
            fits = fits and rows == list(output_partition_sizes)
        if not fits:
            raise CheckpointError(
                f"the model's config needs [{' + '.join(map(str, output_partition_sizes))}, "
                f"{input_size_per_partition}] for {names}; the checkpoint has "
                f"{', '.join(f'[{form.n}, {form.k}]' for form in self.forms)}."
            )
        loading.expect(layer, self.forms)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        segments = loading.collect(layer, self.forms)
        if segments is not None:
            loading.prepare(layer, self.choice(segments), segments)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., K] -> [..., sum of n] in the dtype of x."""
        out: torch.Tensor = layer.edge_infer_path.apply(layer, x, bias)
        return out
