"""An explicit kv_cache_memory_bytes is kept where VLLM_CPU_KVCACHE_SPACE is set as well.

vLLM's CPU platform overwrites the argument with the variable, which counts whole GiB. The argument
is the nearer and the finer of the two; the variable goes on to serve where no argument is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from edge_infer.vllm_plugin.patches import mentions, require, wrap

FLAG = "EDGE_INFER_VLLM_KV_BYTES"
TARGETS = ("vllm.platforms.cpu",)


def install(target: str) -> None:
    platform = sys.modules[target].CpuPlatform
    require(
        mentions(
            platform.check_and_update_config.__func__,
            "VLLM_CPU_KVCACHE_SPACE",
            "kv_cache_memory_bytes",
        ),
        "CpuPlatform.check_and_update_config does not set kv_cache_memory_bytes from "
        "VLLM_CPU_KVCACHE_SPACE",
    )
    wrap(platform, "check_and_update_config", _keep)


def _keep(original: Callable[..., Any], cls: Any, vllm_config: Any) -> None:
    wanted = vllm_config.cache_config.kv_cache_memory_bytes
    original(cls, vllm_config)
    if wanted is not None:
        vllm_config.cache_config.kv_cache_memory_bytes = wanted
