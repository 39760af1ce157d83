"""Spark 2.5 from the package vllm-spark2-5-plugin loads in this vLLM.

The package gives vLLM's AutoWeightsLoader the argument ``skip_prefixes``, which vLLM 0.30.0 no
longer has. What it skips is the head that is tied to the embedding: its tensors, where a checkpoint
has them, are ignored, which the loader's ``ignore_unexpected_prefixes`` does.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from edge_infer.vllm_plugin.patches import require

FLAG = "EDGE_INFER_VLLM_SPARK_LOADER"
TARGETS = ("vllm_spark2_5_plugin.spark2_5",)
_OLD = "skip_prefixes"


def install(target: str) -> None:
    module: Any = sys.modules[target]
    loader = module.AutoWeightsLoader
    known = inspect.signature(loader.__init__).parameters
    if _OLD in known:
        return
    source = inspect.getsource(module)
    require(
        "ignore_unexpected_prefixes" in known and f'{_OLD}=(["lm_head."]' in source,
        f"{target} does not skip lm_head. by {_OLD}",
    )

    class SkippingLoader(loader):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            model: Any,
            *,
            skip_prefixes: Sequence[str] | None = None,
            ignore_unexpected_prefixes: Sequence[str] | None = None,
            **options: Any,
        ) -> None:
            ignored = [*(skip_prefixes or ()), *(ignore_unexpected_prefixes or ())]
            super().__init__(model, ignore_unexpected_prefixes=ignored, **options)

    module.AutoWeightsLoader = SkippingLoader
