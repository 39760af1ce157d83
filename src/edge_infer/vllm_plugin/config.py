"""The quantization method ``cpu_int4``: which module is packed, and in what form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from edge_infer.checkpoint.reader import QUANT_METHOD, Checkpoint, quantization_of
from edge_infer.errors import CheckpointError, UnsupportedError
from edge_infer.vllm_plugin.paths import Choice
from edge_infer.vllm_plugin.segments import Form, PlainForm

if TYPE_CHECKING:
    from vllm.model_executor.models.utils import WeightsMapper

# What vLLM's models merge, where a model does not say so itself (some say it too late).
MERGED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
FOREIGN = ("awq", "gptq")  # methods whose 4-bit checkpoints are read too


class CpuInt4Config(QuantizationConfig):
    """quantization_config of a checkpoint in the packed layout.

    Raises UnsupportedError for a newer format version, CheckpointError for entries that make no
    sense, ConfigError or DeviceError for a weight path that does not exist or cannot run here.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        quantization = quantization_of({"quantization_config": config})
        assert quantization is not None
        modules = quantization.get("modules")
        if not isinstance(modules, dict):
            raise CheckpointError("quantization_config has no modules.")
        self.forms = {name: Form.of(name, entry) for name, entry in modules.items()}
        self.choice = Choice(quantization.get("weight_path"))
        self.tied = False

    @classmethod
    def get_name(cls) -> str:
        return QUANT_METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []  # the config of the folder carries it

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CpuInt4Config:
        if config.get("quant_method") in FOREIGN:
            from edge_infer.vllm_plugin.foreign import ForeignConfig

            return ForeignConfig(config)
        return cls(config)

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Takes AWQ and GPTQ checkpoints when the user names this method."""
        ours = user_quant == QUANT_METHOD and hf_quant_cfg.get("quant_method") in FOREIGN
        return QUANT_METHOD if ours else None

    def maybe_update_config(
        self, model_name: str, hf_config: Any = None, revision: str | None = None
    ) -> None:
        """Validates all headers and shapes of a local folder before anything is loaded."""
        normalized = False
        if hf_config is not None:
            text = hf_config.get_text_config()
            self.tied = bool(getattr(text, "tie_word_embeddings", False))
            # vLLM's compile cache key covers the model's config, and must cover the path: graphs
            # of two paths call different operations.
            settings = getattr(hf_config, "quantization_config", None)
            if isinstance(settings, dict):
                settings["weight_path"] = self.choice.path.name
                settings["weight_path_graph"] = self.choice.path.graph
            normalized = bool(getattr(text, "norm_head", False))
        self.read_headers(model_name, revision)
        heads = [name for name in self.forms if name.rpartition(".")[2] == "lm_head"]
        if normalized and heads:
            raise UnsupportedError(
                f"the model normalizes its output head {heads[0]} at load (norm_head), which "
                "packed codes do not allow.",
                remedy=f"Convert it with --exclude '{heads[0]}'.",
            )

    def read_headers(self, model_name: str, revision: str | None) -> None:
        """Raises CheckpointError for a local folder whose headers and shapes do not fit."""
        if Path(model_name).is_dir():
            Checkpoint.open(model_name)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        self.forms = hf_to_vllm_mapper.apply_dict(self.forms)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Ours for packed modules, vLLM's own for the others."""
        from edge_infer.vllm_plugin.embedding import CpuInt4EmbeddingMethod
        from edge_infer.vllm_plugin.linear import CpuInt4LinearMethod

        refuse_adapters()
        if isinstance(layer, ParallelLMHead):
            if prefix in self.forms:
                return CpuInt4EmbeddingMethod(self.choice, self.forms[prefix])
            return CpuInt4EmbeddingMethod(self.choice, None) if self.tied else None
        if isinstance(layer, VocabParallelEmbedding):
            if prefix in self.forms:
                return CpuInt4EmbeddingMethod(self.choice, self.forms[prefix])
            return UnquantizedEmbeddingMethod()
        if isinstance(layer, LinearBase):
            forms = self.forms_of(prefix)
            return CpuInt4LinearMethod(self.choice, forms) if forms else UnquantizedLinearMethod()
        if isinstance(layer, RoutedExperts):
            from edge_infer.vllm_plugin.experts import CpuInt4ExpertsMethod

            start = f"{prefix}."
            experts = {
                name.removeprefix(start): form
                for name, form in self.forms.items()
                if name.startswith(start)
            }
            if not experts:
                return None
            return CpuInt4ExpertsMethod(layer.moe_config, layer, experts, self.choice)
        return None

    def forms_of(self, prefix: str) -> list[Form]:
        """The modules that vLLM's layer `prefix` consists of, in its order.

        Empty when none of them is packed; plain where some are not.
        """
        if prefix in self.forms:  # one module, or merged already in the checkpoint
            return [self.forms[prefix]]
        parent, _, last = prefix.rpartition(".")
        parts = self.packed_modules_mapping.get(last) or MERGED.get(last, [])
        names = [f"{parent}.{part}" if parent else part for part in parts]
        if not any(name in self.forms for name in names):
            return []
        return [self.forms.get(name) or PlainForm.named(name) for name in names]


def refuse_adapters() -> None:
    """Raises UnsupportedError for LoRA adapters, whose layers read plain weights."""
    current = get_current_vllm_config_or_none()
    if current is not None and current.lora_config is not None:
        raise UnsupportedError(
            "LoRA adapters (enable_lora) cannot be added to packed matrices.",
            remedy="Merge the adapter into the model, and convert the result.",
        )


def register_config() -> None:
    """Adds the method to vLLM's table; a second call changes nothing."""
    register_quantization_config(QUANT_METHOD)(CpuInt4Config)
