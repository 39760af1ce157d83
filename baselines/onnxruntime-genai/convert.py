"""Converts a Hugging Face folder to ONNX with 4-bit weights, by the peer's own model builder.

    build/venv/bin/python convert.py MODEL DESTINATION [--group 32]

Symmetric 4 bits in groups (MatMulNBits) with 8-bit activations (accuracy level 4), the builder's
fastest setting for CPUs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--group", type=int, default=32)
    options = parser.parse_args()
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(options.model)]
    command += ["-o", str(options.destination), "-p", "int4", "-e", "cpu"]
    command += ["-c", str(options.destination / "cache"), "--extra_options"]
    command += ["accuracy_level=4", f"block_size={options.group}"]
    command += ["is_symmetric=true", "hf_token=false"]
    raise SystemExit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
