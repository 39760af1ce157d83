"""The matrix products of one decoder layer over a chunk of prompt rows, by our engine or by torch.

    python benchmarks/matmul.py edge-infer|torch MODEL [--rows 512] [--repeat 5] [--threads N]

MODEL is a packed folder; its first layer gives the shapes. Ours multiplies the packed weights as a
prefill step does (a program of one linear: input rows in f32, their conversion included). torch
multiplies bf16 rows with bf16 weights: as ``linear``, and with weights that oneDNN has packed
before; each product counts by the faster of the two. One JSON document on stdout: Tflop/s of each
product, and of all of them together. `grids/matmul.yaml` runs both in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edge_infer.checkpoint import Checkpoint

# products of a layer: matrices that are multiplied as one
PRODUCTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
LAYER = "model.layers.0."


def seconds(run: Callable[[], Any], repeat: int) -> list[float]:
    """Of each run, after two that do not count."""
    found = []
    for _ in range(repeat + 2):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found[2:]


def rows_of(rows: int, k: int) -> np.ndarray:
    return np.random.default_rng(k).standard_normal((rows, k)).astype(np.float32)


def ours(model: Path, rows: int, repeat: int, threads: int) -> tuple[dict[str, Any], dict]:
    """Seconds by product, and what ran."""
    from edge_infer import _native
    from edge_infer.models.builder import ProgramBuilder
    from edge_infer.models.weights import Weights

    checkpoint = Checkpoint.open(model)
    weights = Weights(checkpoint)
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    team = _native.Team(threads, cpus)
    found, level = {}, ""
    for name, modules in PRODUCTS.items():
        parts = [checkpoint.matrices[LAYER + module] for module in modules]
        builder = ProgramBuilder(max_rows=rows, max_outputs=1)
        x = builder.embed(None, width=parts[0].k, rows=True)
        builder.linear(x, [weights.linear(p.name, p.n, p.k, bias=False) for p in parts])
        program = builder.create(team, None, weights.maps)
        level = program.isa
        index = np.arange(rows, dtype=np.int32)
        step = {
            "tokens": np.full(rows, -1, np.int32),
            "decode_rows": 0,
            "positions": index[None],
            "cache_index": index,
            "visible_end": index + 1,
            "sequence": np.zeros(rows, np.int32),
            "tables": [],
            "lengths": [],
            "output_rows": index[:1],
            "embeds": rows_of(rows, parts[0].k),
        }
        found[name] = seconds(lambda program=program, step=step: program.step(**step), repeat)
    return found, {"isa": level, "bf16": _native.kernels.bf16_prefill(level)}


def torch_onednn(model: Path, rows: int, repeat: int, threads: int) -> tuple[dict[str, Any], dict]:
    """Seconds by product, and what ran."""
    import torch
    from torch.utils import mkldnn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    checkpoint = Checkpoint.open(model)
    found = {}
    with torch.inference_mode():
        for name, modules in PRODUCTS.items():
            parts = [checkpoint.matrices[LAYER + module] for module in modules]
            n, k = sum(p.n for p in parts), parts[0].k
            plain = torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
            x = torch.from_numpy(rows_of(rows, k)).to(torch.bfloat16)
            ways = [seconds(lambda plain=plain, x=x: plain(x), repeat)]
            # oneDNN's own form of weights and rows, so that nothing is repacked in the call
            packed = mkldnn.to_mkldnn(torch.nn.Linear(k, n, dtype=torch.bfloat16), torch.bfloat16)
            own = x.to_mkldnn()
            ways.append(seconds(lambda packed=packed, own=own: packed(own), repeat))
            found[name] = min(ways, key=median)
    capability = torch.backends.cpu.get_cpu_capability()
    settings = {
        "torch": torch.__version__,
        "onednn": torch.backends.mkldnn.is_available(),
        "dtype": str(x.dtype),
        "capability": capability,
        "threads": torch.get_num_threads(),
    }
    return found, settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", choices=("edge-infer", "torch"))
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    run = ours if options.engine == "edge-infer" else torch_onednn
    found, settings = run(options.model, options.rows, options.repeat, options.threads)
    checkpoint = Checkpoint.open(options.model)
    operations = {}
    for name, modules in PRODUCTS.items():
        parts = [checkpoint.matrices[LAYER + module] for module in modules]
        operations[name] = 2 * options.rows * sum(part.n * part.k for part in parts)
    middle = {name: median(values) for name, values in found.items()}
    speeds = {name: operations[name] / middle[name] / 1e12 for name in found}
    speeds["layer"] = sum(operations.values()) / sum(middle.values()) / 1e12
    document = {
        "teraflops": speeds,
        "rows": options.rows,
        "threads": options.threads,
        "settings": settings,
        "seconds": found,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
