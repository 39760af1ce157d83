"""Measures vLLM on the CPU, in bf16 from the Hugging Face folder itself; see ../measure.py.

--eager turns compilation off.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measure import Timing, arguments, length, measure


class Vllm:
    """``further``: arguments of vLLM's LLM, over those here."""

    def __init__(
        self,
        model: str,
        positions: int,
        sequences: int,
        eager: bool,
        further: Mapping[str, Any] | None = None,
    ) -> None:
        from vllm import LLM

        arguments: dict[str, Any] = {
            "dtype": "bfloat16",
            "enforce_eager": eager,
            "max_model_len": positions,
            "max_num_seqs": sequences,
            "enable_prefix_caching": False,
            "skip_tokenizer_init": True,
            "disable_log_stats": False,  # the times of tokens come with them
        }
        self.llm = LLM(model, **{**arguments, **(further or {})})
        self.vocabulary = int(json.loads((Path(model) / "config.json").read_text())["vocab_size"])
        # What vLLM made of the arguments, not what it was given: its CPU platform decides.
        config = self.llm.llm_engine.vllm_config
        self.settings: dict[str, Any] = {
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "enforce_eager": config.model_config.enforce_eager,
            "compilation": config.compilation_config.mode.name,
            "kv_cache_gb": os.environ.get("VLLM_CPU_KVCACHE_SPACE", ""),
            "threads_bind": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ""),
        }

    def run(self, prompts: list[list[int]], tokens: int) -> Timing:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.llm.generate(inputs, params, use_tqdm=False)
        if any(len(output.outputs[0].token_ids) != tokens for output in outputs):
            raise SystemExit(f"Not every sequence has {tokens} tokens.")
        times = [output.metrics for output in outputs]
        first = max(t.first_token_ts for t in times)
        return Timing(
            prefill=first - min(t.scheduled_ts for t in times),
            decode=max(t.last_token_ts for t in times) - first,
        )


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cpus)))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ["VLLM_PLUGINS"] = ""  # stock, also where an environment has plugins (ours is one)
    versions = {name: version(name) for name in ("vllm-cpu", "torch")}
    engine = Vllm(options.model, length(options), options.sequences, options.eager)
    measure(options, engine, versions)


if __name__ == "__main__":
    main()
