"""Measures ONNX Runtime GenAI on the CPU; see ../measure.py."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measure import Timing, arguments, length, measure


class OnnxRuntime:
    def __init__(self, model: Path, threads: int, positions: int) -> None:
        import onnxruntime_genai

        self._genai = onnxruntime_genai
        config = onnxruntime_genai.Config(str(model))
        session = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = onnxruntime_genai.Model(config)
        document = json.loads((model / "genai_config.json").read_text())
        self.vocabulary = int(document["model"]["vocab_size"])
        self._positions = positions
        self.settings: dict[str, Any] = {"device": "cpu", **session}

    def run(self, prompts: list[list[int]], tokens: int) -> Timing:
        import numpy as np

        params = self._genai.GeneratorParams(self._model)
        start = len(prompts[0])
        params.set_search_options(
            do_sample=False,
            batch_size=len(prompts),
            max_length=self._positions,
            min_length=start + tokens,
        )
        generator = self._genai.Generator(self._model, params)
        begun = time.perf_counter()
        generator.append_tokens(np.array(prompts, np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(tokens - 1):
            generator.generate_next_token()
        last = time.perf_counter()
        produced = len(generator.get_sequence(0)) - start
        if produced != tokens:
            raise SystemExit(f"{produced} tokens came, not {tokens}.")
        return Timing(prefill=first - begun, decode=last - first)


def main() -> None:
    options = arguments(__doc__).parse_args()
    versions = {name: version(name) for name in ("onnxruntime-genai", "onnxruntime")}
    engine = OnnxRuntime(Path(options.model), options.threads, length(options))
    measure(options, engine, versions)


if __name__ == "__main__":
    main()
