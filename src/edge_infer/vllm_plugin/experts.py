"""Routed experts on packed matrices, stacked or one by one in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from edge_infer.errors import CheckpointError, UnsupportedError
from edge_infer.vllm_plugin import loading
from edge_infer.vllm_plugin.paths import Choice
from edge_infer.vllm_plugin.segments import KINDS, Form, Segment

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


class CpuInt4ExpertsMethod(FusedMoEMethodBase):
    """All experts of one layer, on the native path.

    The checkpoint has them stacked (``gate_up_proj`` [E, 2*I, H], gate first, and ``down_proj``
    [E, H, I]) or each for itself (``0.gate_proj``, ``0.up_proj``, ``0.down_proj``).
    """

    def __init__(
        self, moe: Any, layer: torch.nn.Module, forms: dict[str, Form], choice: Choice
    ) -> None:
        """`forms`: the packed modules below the layer, by their names relative to it."""
        super().__init__(moe)
        choice.native(layer.layer_name, "routed experts")
        self.forms = forms
        self.gate, self.up = layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name
        self.down = layer.ckpt_down_proj_name
        self.stacked = [f for f in forms if f.rpartition(".")[0] == ""]

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Raises UnsupportedError for what the experts cannot do, CheckpointError for shapes."""
        name = layer.layer_name
        parallel = self.moe.moe_parallel_config
        if parallel.tp_size > 1 or parallel.ep_size > 1 or parallel.dp_size > 1:
            raise UnsupportedError(
                f"{name}: packed experts are not divided over ranks.",
                remedy="Use tensor_parallel_size=1: one process drives all CPUs of the machine.",
            )
        activation = layer.activation.value
        if activation not in ACTIVATIONS or not self.moe.is_act_and_mul or self.moe.has_bias:
            raise UnsupportedError(
                f"{name}: experts with activation {activation!r}"
                f"{' and biases' if self.moe.has_bias else ''} are not supported.",
                remedy=f"Known: gated {', '.join(ACTIVATIONS)}, without biases. Convert with "
                "--exclude '*.experts.*' to keep these matrices unquantized.",
            )
        self.sizes = num_experts, hidden_size, intermediate_size_per_partition
        for expert in range(num_experts):
            for form, n, k in self._expected(expert):
                if (form.n, form.k) != (n, k) or form.experts not in (None, num_experts):
                    raise CheckpointError(
                        f"the model's config needs {num_experts} experts [{n}, {k}] for "
                        f"{form.name}; the checkpoint has {form.experts or 'one'} "
                        f"[{form.n}, {form.k}]."
                    )
            if self.stacked:
                break
        self.parts: dict[str, dict[str, torch.Tensor]] | None = {}
        self.guards: set[Any] = set()
        # vLLM's own loader takes every tensor of three dimensions for stacked plain weights
        layer.load_weights = self._load
        for projection in ("w13", "w2"):
            for kind in KINDS:
                parameter = torch.nn.Parameter(
                    torch.empty(0, dtype=torch.uint8), requires_grad=False
                )
                parameter.weight_loader = self._keep  # for models that read experts themselves
                layer.register_parameter(f"{projection}_{kind}", parameter)

    def _expected(self, expert: int) -> list[tuple[Form, int, int]]:
        """The forms that make up an expert, gate and up before down, each with its [n, k]."""
        _, hidden, inner = self.sizes
        if self.stacked:
            wanted = [("gate_up_proj", 2 * inner, hidden), (self.down, hidden, inner)]
        else:
            wanted = [
                (f"{expert}.{self.gate}", inner, hidden),
                (f"{expert}.{self.up}", inner, hidden),
                (f"{expert}.{self.down}", hidden, inner),
            ]
        missing = [name for name, _, _ in wanted if name not in self.forms]
        if missing:
            raise CheckpointError(f"experts lack the packed modules {', '.join(missing)}.")
        return [(self.forms[name], n, k) for name, n, k in wanted]

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[str]:
        for name, tensor in weights:
            module, _, kind = name.rpartition(".")
            if module not in self.forms or kind not in KINDS or self.parts is None:
                raise CheckpointError(f"tensor {name} does not belong to packed experts.")
            self.parts.setdefault(module, {})[kind] = loading.taken(tensor, self.guards)
            yield name

    def _keep(
        self,
        param: torch.nn.Parameter,
        loaded_weight: torch.Tensor,
        weight_name: str = "",
        shard_id: str = "",
        expert_id: int = 0,
        return_success: bool = False,
    ) -> bool | None:
        part = {"w1": self.gate, "w2": self.down, "w3": self.up}[shard_id]
        for _ in self._load([(f"{expert_id}.{part}.{weight_name.rpartition('_')[2]}",
                              loaded_weight)]):  # fmt: skip
            pass
        return True if return_success else None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if self.parts is None:
            return
        from edge_infer.vllm_plugin import ops

        for module, tensors in self.parts.items():
            for kind, tensor in tensors.items():
                self.forms[module].check(kind, tensor)
        gate_up, down = [], []
        for expert in range(self.sizes[0]):
            *first, last = [self._segment(form, expert) for form, _, _ in self._expected(expert)]
            gate_up.append(first)
            down.append([last])
        layer.edge_infer_experts, handle = ops.experts(gate_up, down, layer.activation.value)
        # for whoever asks what the layer consists of
        layer.edge_infer_segments = [segment for parts in gate_up + down for segment in parts]
        layer.edge_infer_handle = torch.nn.Parameter(handle, requires_grad=False)
        self.parts = None
        self.guards = set()
        for projection in ("w13", "w2"):
            for kind in KINDS:
                delattr(layer, f"{projection}_{kind}")

    def _segment(self, form: Form, expert: int) -> Segment:
        assert self.parts is not None
        relative = next(name for name, known in self.forms.items() if known is form)
        parts = self.parts.get(relative, {})
        if form.experts is not None:
            parts = {kind: tensor[expert] for kind, tensor in parts.items()}
        return loading.guarded(Segment.of(form, parts), parts, self.guards)

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> None:
        """None: vLLM's own MoE kernels never see these weights."""
        return None

    def apply(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [rows, H], weights and ids [rows, top] -> [rows, H] in the dtype of x."""
        out: torch.Tensor = torch.ops.edge_infer.experts(
            x, layer.edge_infer_handle, topk_ids, topk_weights, layer.apply_router_weight_on_input
        )
        return out
