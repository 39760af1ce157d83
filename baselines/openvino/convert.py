"""Converts a Hugging Face folder to OpenVINO with 4-bit weights.

    build/venv/bin/python convert.py MODEL DESTINATION [--group 32]

Symmetric 4 bits in groups for every matrix of the layers. The tokenizer is not converted: speed is
measured on token ids.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--group", type=int, default=32)
    options = parser.parse_args()

    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    config = OVWeightQuantizationConfig(
        bits=4, sym=True, group_size=options.group, ratio=1.0, all_layers=True
    )
    model = OVModelForCausalLM.from_pretrained(
        options.model, export=True, quantization_config=config, compile=False
    )
    model.save_pretrained(options.destination)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(options.model / name, options.destination / name)


if __name__ == "__main__":
    main()
