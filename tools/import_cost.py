#!/usr/bin/env python3
"""What importing each base dependency costs: time, CPU time, anonymous memory; in fresh processes.

    python tools/import_cost.py                 # the base dependencies of pyproject.toml
    python tools/import_cost.py numpy torch     # any modules
    python tools/import_cost.py --tokenizer DIR # also: loading DIR/tokenizer.json

Prints a Markdown table: the median of the repeats. The interpreter itself is subtracted. The first
import of a module on a cold disk is slower; one unmeasured run warms it. On a busy machine the time
of the CPU says more than that of the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

MODULES = [
    "numpy",
    "safetensors",
    "gguf",
    "tokenizers",
    "huggingface_hub",
    "jinja2",
    "pydantic",
    "psutil",
    "typer",
    "rich",
    "edge_infer",
]

PROBE = """
import json, sys, time
def anonymous():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
before, start, cpu = anonymous(), time.perf_counter(), time.process_time()
{statement}
took, cpu = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps([took * 1e3, cpu * 1e3, (anonymous() - before) / 1024]))
"""


def measure(statement: str, repeats: int) -> tuple[float, float, float] | None:
    """(milliseconds, those of CPU time, MB of anonymous memory), or None where it fails."""
    runs = []
    for _ in range(repeats + 1):
        done = subprocess.run(
            [sys.executable, "-c", PROBE.replace("{statement}", statement)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return None
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    took, cpu, size = (statistics.median(values) for values in zip(*runs[1:], strict=True))
    return took, cpu, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokenizer", metavar="DIR", help="a checkpoint folder")
    args = parser.parse_args()
    rows = {f"`import {name}`": f"import {name}" for name in args.modules}
    if args.tokenizer:
        folder = args.tokenizer
        rows[f"tokenizers, {folder}"] = (
            f"import tokenizers; t = tokenizers.Tokenizer.from_file({folder + '/tokenizer.json'!r})"
        )
        rows[f"edge_infer, {folder}"] = (
            "from edge_infer.engine.tokenizer import Tokenizer;"
            f" t = Tokenizer.from_folder({folder!r}); t.encode('a'); t.decode([1])"
        )
    print("| | ms | ms of CPU | MB anonymous |\n|---|---|---|---|")
    for label, statement in rows.items():
        result = measure(statement, args.repeats)
        shown = "not installed | | "
        if result is not None:
            shown = f"{result[0]:.0f} | {result[1]:.0f} | {result[2]:.1f}"
        print(f"| {label} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
