"""``quantization="cpu_int4"`` on AWQ and GPTQ checkpoints: their modules, from the headers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.models.utils import WeightsMapper
from vllm.transformers_utils.config import get_safetensors_params_metadata

from edge_infer.checkpoint.layout import GROUP_SIZES
from edge_infer.checkpoint.reader import open_tensors
from edge_infer.errors import CheckpointError, UnsupportedError
from edge_infer.vllm_plugin import awq, gptq
from edge_infer.vllm_plugin.config import CpuInt4Config
from edge_infer.vllm_plugin.foreign_form import CODES_PER_WORD, ForeignForm
from edge_infer.vllm_plugin.paths import Choice
from edge_infer.vllm_plugin.segments import Form

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = {"awq": ("qweight", "qzeros", "scales"), "gptq": ("qweight", "qzeros", "scales", "g_idx")}


class ForeignConfig(CpuInt4Config):
    """quantization_config of an AWQ or GPTQ checkpoint; its modules are repacked at load.

    Raises UnsupportedError for what the packed layout cannot say (act-order, other widths).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super(CpuInt4Config, self).__init__()
        self.method = str(config["quant_method"])
        (awq if self.method == "awq" else gptq).check_config(config)
        self.settings = config
        self.forms: dict[str, Form] = {}
        self.choice = Choice(config.get("weight_path"))
        self.tied = False

    @staticmethod
    def get_checkpoint_weight_mapper() -> WeightsMapper:
        return WeightsMapper()  # g_idx is read, to refuse act-order

    def read_headers(self, model_name: str, revision: str | None) -> None:
        """Finds the quantized modules by their tensors."""
        if Path(model_name).is_dir():
            shapes = {name: info.shape for name, info in open_tensors(Path(model_name))[1].items()}
        else:
            found = get_safetensors_params_metadata(model_name, revision=revision)
            shapes = {name: tuple(info["shape"]) for name, info in found.items()}
        self.forms = forms(self.method, self.settings, shapes)
        if not self.forms:
            raise CheckpointError(f"{model_name} has no tensors of {self.method} modules.")

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, RoutedExperts) and any(name.startswith(prefix) for name in self.forms):
            raise UnsupportedError(
                f"{prefix}: routed experts of {self.method} checkpoints are not read.",
                remedy="Convert the unquantized original.",
            )
        return super().get_quant_method(layer, prefix)


def forms(
    method: str, settings: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Form]:
    """The quantized modules among tensors of these shapes, by module name.

    Raises CheckpointError for shapes that fit no 4-bit module, UnsupportedError for other groups.
    """
    found: dict[str, Form] = {}
    for tensor, shape in shapes.items():
        name, _, kind = tensor.rpartition(".")
        if kind != "qweight":
            continue
        given = tuple(kind for kind in KINDS[method] if f"{name}.{kind}" in shapes)
        found[name] = _form(method, settings, name, given, shape, shapes.get(f"{name}.scales", ()))
    return found


def _form(
    method: str,
    settings: dict[str, Any],
    name: str,
    given: tuple[str, ...],
    qweight: tuple[int, ...],
    scales: tuple[int, ...],
) -> ForeignForm:
    if len(qweight) != 2 or len(scales) != 2 or 0 in scales:
        raise CheckpointError(f"module {name} has qweight {qweight} and scales {scales}.")
    groups, n = scales
    rows, words = (qweight[0], qweight[1]) if method == "awq" else (qweight[1], qweight[0])
    k = rows if method == "awq" else words * CODES_PER_WORD
    if (words * CODES_PER_WORD if method == "awq" else rows) != n or k % groups:
        raise CheckpointError(f"module {name} has qweight {qweight} and scales {scales}.")
    group = k // groups
    if group not in GROUP_SIZES or n % CODES_PER_WORD:
        raise UnsupportedError(
            f"module {name} [{n}, {k}] has groups of {group}.",
            remedy=f"Groups of {', '.join(map(str, GROUP_SIZES))} are read, channels in eights.",
        )
    if "qzeros" not in given and not (settings.get("sym") or settings.get("zero_point") is False):
        raise CheckpointError(f"tensor {name}.qzeros is missing.")
    if method == "awq":
        return awq.AwqForm(name, n, k, 4, group, False, given=given)
    offset = gptq.zero_offset(settings)
    return gptq.GptqForm(name, n, k, 4, group, False, given=given, offset=offset)
