"""vLLM in the tests' own process, and what its model consists of."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "models"))  # tiny models and the native runner


@contextmanager
def engine(folder: Path, **options: Any) -> Iterator[Any]:
    """An LLM whose engine and worker run in this process, shut down at the end."""
    variable = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(variable)
    os.environ[variable] = "0"
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    settings: dict[str, Any] = {
        "quantization": "cpu_int4",
        "dtype": "bfloat16",
        "max_model_len": 128,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 64 << 20,
        "max_logprobs": 300,
    }
    try:
        llm = LLM(str(folder), **{**settings, **options})
    finally:  # engines that other tests start have processes as always
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def model_of(llm: Any) -> Any:
    """The torch module that the in-process worker runs."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner.model


def generate(llm: Any, prompts: list[list[int]], tokens: int, **options: Any) -> list[Any]:
    """Greedy outputs of prompts given as token ids."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, **options
    )
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm.generate(inputs, params, use_tqdm=False)
