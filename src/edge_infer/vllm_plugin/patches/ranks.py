"""Tensor and pipeline parallelism of packed models are refused before any worker starts.

A layer of cpu_int4 refuses tensor parallelism too, but it is built in a worker: by then several
processes have started, and the caller is told only that one of them failed. Pipeline stages of
vLLM 0.30 on the CPU fail by themselves at the first request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from edge_infer.checkpoint.reader import QUANT_METHOD
from edge_infer.errors import UnsupportedError
from edge_infer.vllm_plugin.patches import mentions, require, wrap

FLAG = "EDGE_INFER_VLLM_RANKS"
TARGETS = ("vllm.platforms.cpu",)


def install(target: str) -> None:
    platform = sys.modules[target].CpuPlatform
    require(
        mentions(platform.check_and_update_config.__func__, "parallel_config"),
        "CpuPlatform.check_and_update_config does not see the parallel_config",
    )
    wrap(platform, "check_and_update_config", _refuse)


def _refuse(original: Callable[..., Any], cls: Any, vllm_config: Any) -> None:
    config = vllm_config.quant_config
    if config is not None and config.get_name() == QUANT_METHOD:
        refuse_ranks(vllm_config.parallel_config)
    original(cls, vllm_config)


def refuse_ranks(parallel: Any) -> None:
    """Raises UnsupportedError for a vLLM ParallelConfig of several ranks or stages."""
    ranks = parallel.tensor_parallel_size
    if ranks > 1:
        raise UnsupportedError(
            f"tensor parallelism over {ranks} ranks would cut packed matrices.",
            remedy="Use tensor_parallel_size=1: one process drives all CPUs of the machine.",
        )
    stages = parallel.pipeline_parallel_size
    if stages > 1:
        raise UnsupportedError(
            f"pipeline parallelism over {stages} stages is not supported: vLLM's own CPU worker "
            "ends at the first request.",
            remedy="Use pipeline_parallel_size=1: one process drives all CPUs of the machine.",
        )
