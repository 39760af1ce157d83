"""A prompt with a token id that the packed embedding has no row for is refused, not computed.

vLLM refuses ids beyond the larger of the model's vocabulary and the tokenizer's ``max_token_id``,
and that one is often the vocabulary's size itself. An id in between reaches the embedding, where
the lookup fails, and the engine ends with it: one request stops a server. Multimodal models keep
vLLM's rule, because their placeholders may lie beyond the vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from edge_infer.checkpoint.reader import QUANT_METHOD
from edge_infer.vllm_plugin.patches import mentions, require, wrap

FLAG = "EDGE_INFER_VLLM_TOKEN_IDS"
TARGETS = ("vllm.v1.engine.input_processor",)


def install(target: str) -> None:
    processor = sys.modules[target].InputProcessor
    require(
        mentions(
            vars(processor).get("_validate_model_input"),
            "prompt_token_ids",
            "max_token_id",
            "get_vocab_size",
        ),
        "InputProcessor._validate_model_input does not compare token ids with the vocabulary",
    )
    wrap(processor, "_validate_model_input", _within_vocabulary)


def _within_vocabulary(
    original: Callable[..., Any], self: Any, prompt_input: Any, *args: Any, **kwargs: Any
) -> None:
    original(self, prompt_input, *args, **kwargs)
    model = self.model_config
    if model.quantization != QUANT_METHOD or model.is_multimodal_model:
        return
    if prompt_input["type"] == "embeds":
        return
    highest, rows = max(prompt_input["prompt_token_ids"], default=0), model.get_vocab_size()
    if highest >= rows:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(
            f"Token id {highest} is out of vocabulary: the model has ids below {rows}"
        )
