"""One arm of a comparison: starts vLLM in this process, and prints one JSON line.

    python engine_arm.py MODEL '{"LLM keyword": value, ...}' [TOKENS]

The line has ``tokens`` of a few greedy generations, ``workers`` (the probes), ``processes`` and
memory of the process tree, and ``seconds`` of the start. Everything else goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

PROMPTS = [[5, 17, 99, 250], list(range(10, 60)), [7] * 5, [400, 3, 8]]


def main() -> None:
    model, options = sys.argv[1], json.loads(sys.argv[2])
    tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 8
    answer = os.dup(1)
    os.dup2(2, 1)  # vLLM's processes write to stdout
    started = time.monotonic()
    from vllm import LLM, SamplingParams

    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_model_len": 256,
        "max_num_seqs": 4,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "worker_extension_cls": "edge_infer.vllm_plugin.probes.WorkerProbes",
    }
    llm = LLM(model, **{**settings, **options})
    seconds = time.monotonic() - started
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    inputs = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(inputs, params, use_tqdm=False)
    from edge_infer.harness.memory import tree_memory
    from edge_infer.vllm_plugin.patches.release import released

    document = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "workers": llm.collective_rpc("edge_infer_probe"),
        "kv_config": llm.llm_engine.vllm_config.cache_config.kv_cache_memory_bytes,
        "front_released": released(),
        "memory": tree_memory(os.getpid(), "settled").model_dump(),
        "seconds": seconds,
    }
    os.write(answer, (json.dumps(document) + "\n").encode())


if __name__ == "__main__":
    main()
