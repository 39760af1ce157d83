"""Measures OpenVINO GenAI on the CPU; see ../measure.py."""

from __future__ import annotations

import json
import sys
import time
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
        if len(prompts) == 1:
            times = self._generate(prompts, tokens, streamed=True)
            return Timing(prefill=times[1] - times[0], decode=times[-1] - times[1])
        # Only a single sequence can be streamed: what the first token takes is a run of its own.
        first = self._generate(prompts, 1, streamed=False)
        whole = self._generate(prompts, tokens, streamed=False)
        prefill = first[1] - first[0]
        return Timing(prefill=prefill, decode=whole[1] - whole[0] - prefill)

    def _generate(self, prompts: list[list[int]], tokens: int, streamed: bool) -> list[float]:
        """Seconds on a clock: the start, then each token if streamed, else the end."""
        import numpy as np
        from openvino import Tensor

        ids = Tensor(np.array(prompts, np.int64))
        inputs = self._genai.TokenizedInputs(ids, Tensor(np.ones(ids.shape, np.int64)))
        config = self._genai.GenerationConfig(
            max_new_tokens=tokens, ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        genai, times = self._genai, [time.perf_counter()]

        # The pipeline's own m_new_token_times are not those of the steps: they lie together.
        class Clock(genai.StreamerBase):
            def write(self, produced: int | list[int]) -> Any:
                now = time.perf_counter()
                times.extend([now] * (len(produced) if isinstance(produced, list) else 1))
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                pass

        result = self._pipeline.generate(inputs, config, *([Clock()] if streamed else []))
        if not streamed:
            times.append(time.perf_counter())
        if any(len(row) != tokens for row in result.tokens) or len(times) != 1 + (
            tokens if streamed else 1
        ):
            raise SystemExit(f"{[len(row) for row in result.tokens]} tokens came, not {tokens}.")
        return times


def main() -> None:
    options = arguments(__doc__).parse_args()
    versions = {name: version(name) for name in ("openvino-genai", "openvino")}
    measure(options, OpenVino(Path(options.model), options.threads), versions)


if __name__ == "__main__":
    main()
