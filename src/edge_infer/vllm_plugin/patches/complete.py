"""A checkpoint that lacks weights which the model needs is refused.

vLLM checks this for unquantized models only, and there not for linear layers; a quantized model
with a layer more than its checkpoint runs on whatever its memory holds. Packed matrices are checked
where they are collected (loading.py), all others here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from edge_infer.checkpoint.reader import QUANT_METHOD
from edge_infer.errors import CheckpointError
from edge_infer.vllm_plugin.patches import mentions, require, wrap

FLAG = "EDGE_INFER_VLLM_COMPLETE"
TARGETS = ("vllm.model_executor.model_loader.default_loader",)
PLAIN = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
_NAMED = 4


def install(target: str) -> None:
    loader = vars(sys.modules[target]).get("DefaultModelLoader")
    require(
        mentions(vars(loader or object).get("load_weights"), "load_weights", "get_all_weights"),
        "DefaultModelLoader.load_weights does not call the model's load_weights",
    )
    wrap(loader, "load_weights", _complete)


def _complete(
    original: Callable[..., Any], self: Any, model: Any, model_config: Any, *args: Any
) -> Any:
    if model_config.quantization != QUANT_METHOD:
        return original(self, model, model_config, *args)
    load, loaded = model.load_weights, None

    def noting(*args: Any, **kwargs: Any) -> Any:
        nonlocal loaded
        loaded = load(*args, **kwargs)
        return loaded

    model.__dict__["load_weights"] = noting
    try:
        result = original(self, model, model_config, *args)
    finally:
        del model.__dict__["load_weights"]
    if loaded is not None:  # a model that does not say what it has loaded
        missing = sorted(set(wanted(model)) - set(loaded))
        if missing:
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise CheckpointError(
                f"the model's config needs weights that the checkpoint does not have: "
                f"{', '.join(missing[:_NAMED])}{more}.",
                remedy="config.json has to be that of these weights; convert the model again.",
            )
    return result


def wanted(model: Any) -> Iterator[str]:
    """Names of the parameters that a checkpoint has to fill.

    Not those of modules with a quantization method of their own, which makes and checks its own.
    """
    own: set[str] = set()
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None and type(method).__name__ not in PLAIN:
            own.add(name)
    for name, _ in model.named_parameters():
        if name.rpartition(".")[0] not in own:
            yield name
