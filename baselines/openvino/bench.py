"""Measures OpenVINO GenAI on the CPU; see ../measure.py."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measure import Timing, arguments, measure


class OpenVino:
    def __init__(self, model: Path, threads: int) -> None:
        import openvino_genai

        self._genai = openvino_genai
        self.vocabulary = int(json.loads((model / "config.json").read_text())["vocab_size"])
        properties = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.LLMPipeline(str(model), "CPU", **properties)
        self.settings: dict[str, Any] = {"device": "CPU", **properties}

    def run(self, prompts: list[list[int]], tokens: int) -> Timing:
        import numpy as np
        from openvino import Tensor

        ids = Tensor(np.array(prompts, np.int64))
        mask = Tensor(np.ones(ids.shape, np.int64))
        config = self._genai.GenerationConfig(
            max_new_tokens=tokens, ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        result = self._pipeline.generate(self._genai.TokenizedInputs(ids, mask), config)
        if any(len(row) != tokens for row in result.tokens):
            raise SystemExit(f"{[len(row) for row in result.tokens]} tokens came, not {tokens}.")
        raw = result.perf_metrics.raw_metrics
        times = raw.m_new_token_times
        return Timing(
            prefill=raw.m_times_to_first_token[0] / 1e6, decode=(times[-1] - times[0]) / 1e6
        )


def main() -> None:
    options = arguments(__doc__).parse_args()
    versions = {name: version(name) for name in ("openvino-genai", "openvino")}
    measure(options, OpenVino(Path(options.model), options.threads), versions)


if __name__ == "__main__":
    main()
