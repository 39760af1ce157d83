"""Packed embeddings are read by models that pass no quantization to their embedding, or no name.

Most of vLLM's models build their vocabulary embedding, some their head too, without
``quant_config`` or without a name, as the stock methods leave both in 16 bits; a checkpoint whose
embedding is packed then finds no place for its tensors. Here such a layer gets the model's cpu_int4
config. A layer without a name is known by its shape, and by whether it is a head. A draft model of
another folder is built beside the target's config and gets nothing.

Other layers that a model keeps in 16 bits (gates, projectors) stay so: a packed module that has no
place is named, with the way to leave it out.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from edge_infer.checkpoint.reader import QUANT_METHOD
from edge_infer.errors import CheckpointError
from edge_infer.vllm_plugin.patches import require, wrap

FLAG = "EDGE_INFER_VLLM_EMBEDDINGS"
_MODULE = "vllm.model_executor.layers.vocab_parallel_embedding"
_LOADER = "vllm.model_executor.model_loader.default_loader"
_BASE = "vllm.model_executor.model_loader.base_loader"
TARGETS = (_MODULE, _LOADER, _BASE)
_NEEDED = {"num_embeddings", "embedding_dim", "org_num_embeddings", "quant_config", "prefix"}
HEADS = frozenset({"lm_head", "embed_out", "output", "head"})
"""Last names of output heads; other modules of that shape are embeddings."""
_draft: ContextVar[bool] = ContextVar("draft", default=False)
_TENSOR = re.compile(r"([\w.]+)\.(?:codes|scales|minimums)\b")
_MODULE_NAME = re.compile(r"no module or parameter named '([\w.]+)'")


def install(target: str) -> None:
    module: Any = sys.modules[target]
    if target in _LOADERS:
        owner, name, wrapper = _LOADERS[target]
        loader = vars(module).get(owner)
        require(callable(vars(loader or object).get(name)), f"there is no {owner} that has {name}")
        wrap(loader, name, wrapper)
        return
    for owner in (module.VocabParallelEmbedding, module.ParallelLMHead):
        parameters = inspect.signature(owner.__init__).parameters
        require(
            parameters.keys() >= _NEEDED,
            f"{owner.__name__} has no parameters {', '.join(sorted(_NEEDED))}",
        )
    wrap(module.VocabParallelEmbedding, "__init__", _with_config)


def _with_config(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    given = inspect.signature(original).bind(self, *args, **kwargs)
    given.apply_defaults()
    values = given.arguments
    lacks = values["quant_config"] is None or not values["prefix"]  # Llama gives the one only
    if lacks and (config := _config()) is not None:
        shape = (values["org_num_embeddings"] or values["num_embeddings"], values["embedding_dim"])
        name = packed_name(config, values["prefix"], shape, _is_head(self))
        if name is not None:
            values["quant_config"], values["prefix"] = config, name
    original(*given.args, **given.kwargs)


def packed_name(config: Any, prefix: str, shape: tuple[int, int], head: bool) -> str | None:
    """The name under which ``config`` knows the layer; None for a layer that is not packed."""
    fitting = [n for n, form in config.forms.items() if (form.n, form.k) == shape]
    embeddings = [n for n in fitting if n.rpartition(".")[2] not in HEADS]
    heads = [n for n in fitting if n not in embeddings]
    if prefix in fitting:
        return prefix
    if head and config.tied and embeddings:
        return prefix or "lm_head"
    own = [] if prefix else heads if head else embeddings
    return own[0] if len(own) == 1 else None


def _with_names(
    original: Callable[..., Any], self: Any, model: Any, model_config: Any, *args: Any
) -> Any:
    try:
        return original(self, model, model_config, *args)
    except (KeyError, ValueError) as e:  # what models raise for a tensor that they do not expect
        text = str(e).partition("The available parameters")[0]
        found = _TENSOR.search(text) or _MODULE_NAME.search(text)
        if found is None or model_config.quantization != QUANT_METHOD:
            raise
        parent = found[1].rpartition(".")[0]
        known = any(f".{name}".endswith(f".{parent}") for name, _ in model.named_modules())
        if found.re is _MODULE_NAME or not known:
            raise CheckpointError(
                f"the checkpoint has {found[1]}; the {type(model).__name__} that its config "
                "describes has no such module.",
                remedy="config.json has to be that of these weights; convert the model again.",
            ) from e
        pattern = re.sub(r"\b\d+\b", "*", found[1])  # the same module of every layer
        raise CheckpointError(
            f"vLLM's {type(model).__name__} keeps {found[1]} unquantized; the checkpoint has it "
            "packed.",
            remedy=f"Convert the model again with --exclude '*{pattern}'.",
        ) from e


def _knows_drafts(
    original: Callable[..., Any], self: Any, vllm_config: Any, model_config: Any, prefix: str = ""
) -> Any:
    """A draft from the target's own folder (MTP) shares its packed embedding."""
    before = _draft.set(model_config.model != vllm_config.model_config.model)
    try:
        return original(self, vllm_config, model_config, prefix=prefix)
    finally:
        _draft.reset(before)


_LOADERS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    _LOADER: ("DefaultModelLoader", "load_weights", _with_names),
    _BASE: ("BaseModelLoader", "load_model", _knows_drafts),
}


def _is_head(layer: Any) -> bool:
    return isinstance(layer, sys.modules[_MODULE].ParallelLMHead)


def _config() -> Any:
    from vllm.config import get_current_vllm_config_or_none

    current = get_current_vllm_config_or_none()
    config = current.quant_config if current is not None and not _draft.get() else None
    return config if config is not None and config.get_name() == QUANT_METHOD else None
