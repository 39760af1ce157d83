"""Tables of rotary embeddings end with the context that is served, not with the advertised one.

vLLM computes cosines and sines for every position that the model's config advertises, first in f32
and then again in the model's dtype; at a million positions that is hundreds of MB for rows that
``max_model_len`` never lets anybody read. Frequencies depend on the advertised length (YaRN,
dynamic NTK), so that stays as it is: only the list of positions is cut, while the table is being
computed. The rows that remain have the same bits.

Multimodal positions may run ahead of the number of tokens (a video's clock), so their tables keep
four times the context, vLLM's own allowance, and at least 32,768 rows. In multimodal models only
tables of the language model's length are cut: an encoder may use the same classes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from edge_infer.vllm_plugin.patches import mentions, require, wrap

FLAG = "EDGE_INFER_VLLM_ROPE_CAP"
_PACKAGE = "vllm.model_executor.layers.rotary_embedding"
TARGETS = (_PACKAGE,)
MULTIMODAL_FACTOR, MULTIMODAL_ROWS = 4, 32768
_LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")
_logger = logging.getLogger("vllm.edge_infer")


def install(target: str) -> None:
    package: Any = sys.modules[target]
    base = sys.modules[f"{_PACKAGE}.base"].RotaryEmbeddingBase
    require(
        mentions(base.__init__, "_compute_cos_sin_cache")
        and mentions(base._compute_cos_sin_cache, "arange", "max_position_embeddings"),
        "RotaryEmbeddingBase does not compute its table from arange(max_position_embeddings)",
    )
    require(
        type(vars(package).get("_ROPE_DICT")) in (dict, _ByLength),
        f"{_PACKAGE} has no dictionary _ROPE_DICT",
    )
    # A table cut for one engine must not serve a later one with a longer context.
    if type(package._ROPE_DICT) is dict:
        package._ROPE_DICT = _ByLength(package._ROPE_DICT)
    wrap(base, "__init__", _init)
    for name in ("Phi3LongRoPEScaledRotaryEmbedding", "DualChunkRotaryEmbedding"):
        wrap(vars(package)[name], "__init__", _init)
    # Computes its table once more in its first forward pass.
    wrap(package.FourierRotaryEmbedding, "_compute_cos_sin_cache", _init)


def _init(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    rows = _rows(self)
    if rows is None:
        return original(self, *args, **kwargs)
    from torch import arange
    from torch.overrides import TorchFunctionMode

    config = _config()
    only = _language_lengths(config) if _multimodal(config) else None

    class Positions(TorchFunctionMode):
        """The positions are the only ``arange`` with one argument in these classes."""

        def __torch_function__(
            self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is arange and len(args) == 1 and not kwargs.keys() & {"start", "end", "step"}:
                count = args[0]
                if count > rows and (only is None or int(count) in only):
                    _logger.debug("edge-infer: RoPE table of %s rows cut to %s", count, rows)
                    args = (rows,)
            return func(*args, **kwargs)

    with Positions():
        return original(self, *args, **kwargs)


def _config() -> Any:
    from vllm.config import get_current_vllm_config_or_none

    return get_current_vllm_config_or_none()


def _rows(rope: Any) -> int | None:
    """Rows that this table needs; None where it is none of ours."""
    config = _config()
    package = sys.modules[_PACKAGE]
    if config is None or config.model_config is None:
        return None
    if isinstance(rope, package.Llama4VisionRotaryEmbedding):  # rows are patches of an image
        return None
    rows = _served(config)
    if isinstance(rope, package.MRotaryEmbedding):
        return max(MULTIMODAL_FACTOR * rows, MULTIMODAL_ROWS)
    return rows


def _served(config: Any) -> int:
    """Positions that a sequence can reach, guesses of speculation included."""
    guesses = getattr(config.speculative_config, "num_speculative_tokens", None) or 0
    return int(config.model_config.max_model_len) + int(guesses) + 1


def _multimodal(config: Any) -> bool:
    return config.model_config.multimodal_config is not None


def _language_lengths(config: Any) -> set[int]:
    """Rows that the language model's tables have without the patch."""
    text = config.model_config.hf_text_config
    found: set[int] = set()
    entries = [vars(text)]
    parameters = getattr(text, "rope_parameters", None)
    if isinstance(parameters, dict):
        entries += [parameters, *(v for v in parameters.values() if isinstance(v, dict))]
    for entry in entries:
        for length in (entry.get(key) for key in _LENGTHS):
            if isinstance(length, int):
                factors = [e.get("factor") for e in entries if e.get("factor")]
                for factor in (1, *factors):
                    found |= {int(length * factor) * m for m in (1, 4, 16)}
    return found


class _ByLength(dict):
    """vLLM's cache of tables, with the served context as part of the key."""

    @staticmethod
    def _key(key: Any) -> Any:
        config = _config()
        known = config is not None and config.model_config is not None
        return key, _served(config) if known else None

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._key(key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._key(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(self._key(key), value)
