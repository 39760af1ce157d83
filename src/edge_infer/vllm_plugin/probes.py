"""What a running vLLM worker really has: KV bytes, RoPE rows, threads, patches.

``LLM(..., worker_extension_cls="edge_infer.vllm_plugin.probes.WorkerProbes")`` gives every worker
the method, and ``llm.collective_rpc("edge_infer_probe")`` asks them: vLLM's own way to add to a
worker. The answer is plain data, one dictionary a worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from edge_infer.device.mappings import residency
from edge_infer.device.usage import own_memory

_TABLES = ("cos_sin_cache", "long_short_cos_sin_cache", "cos_sin_q_cache")


class WorkerProbes:
    """Mixed into vLLM's worker class; reads what is there and changes nothing."""

    model_runner: Any
    _edge_infer_timers: Timers

    def edge_infer_probe(self) -> dict[str, Any]:
        """What there is, as plain data:

        ``kv_bytes``, ``kv_blocks``; ``rope_tables``: [rows, columns, bytes]; ``rope_bytes``;
        ``threads``, ``pid``, ``parent``; ``memory``: anonymous and file-backed bytes of this
        process; ``weights``: layers by what multiplies them; ``weight_bytes``: where the pages of
        packed matrices on the path native lie, ``anonymous`` and ``file_backed``;
        ``duplicate_bytes``: second layouts of weights; ``repack``: see paths/repack.py;
        ``compiled``, ``compiled_from_cache``;
        ``patches``: name to state; ``released``: see patches/release.py; ``spin``: GOMP_SPINCOUNT.
        """
        import torch
        from vllm.compilation.counter import compilation_counter

        from edge_infer.vllm_plugin import patches
        from edge_infer.vllm_plugin.patches.release import released
        from edge_infer.vllm_plugin.paths.repack import repack_peak

        runner = self.model_runner
        tables = rope_tables(runner.model)
        return {
            "kv_bytes": storage_bytes(_tensors(runner.kv_caches)),
            "kv_blocks": int(runner.kv_cache_config.num_blocks),
            "rope_tables": [[*map(int, table.shape), table.nbytes] for table in tables],
            "rope_bytes": storage_bytes(tables),
            "threads": torch.get_num_threads(),
            "pid": os.getpid(),
            "parent": os.getppid(),
            "memory": asdict(own_memory()),
            "weights": weight_paths(runner.model),
            "weight_bytes": weight_bytes(runner.model),
            "repack": asdict(repack_peak()),
            "duplicate_bytes": storage_bytes(duplicates(runner.model)),
            "compiled_from_cache": compilation_counter.num_aot_artifacts_loaded > 0,
            "compiled": compilation_counter.num_aot_compiles > 0,
            "patches": {status.name: status.state for status in patches.status()},
            "released": released(),
            "spin": os.environ.get("GOMP_SPINCOUNT", ""),
        }

    def edge_infer_time_steps(self, on: bool) -> dict[str, float]:
        """Starts (``on``) or ends the timing of this worker's steps.

        At the end: ``steps``, and seconds summed over them of ``runner`` (everything the worker
        does for a step), of its parts ``forward``, ``logits``, ``inputs``, ``sampling`` and
        ``bookkeeping``, and ``between``: from the end of one of the worker's calls to the begin of
        the next, while it waits for vLLM's engine. The timers cost a microsecond or so a call.
        """
        if on:
            self._edge_infer_timers = Timers()
            self._edge_infer_timers.watch(self.model_runner, self.model_runner.model)
            return {}
        return self._edge_infer_timers.stop()


class Timers:
    """Wraps methods of one runner and its model, and takes the wrappers off again."""

    RUNNER = (
        ("execute_model", "runner"),
        ("sample_tokens", "runner"),
        ("_model_forward", "forward"),
        ("_update_states", "inputs"),
        ("_prepare_inputs", "inputs"),
        ("_determine_batch_execution_and_padding", "inputs"),
        ("_get_slot_mappings", "inputs"),
        ("_build_attention_metadata", "inputs"),
        ("_preprocess", "inputs"),
        ("_sample", "sampling"),
        ("_bookkeeping_sync", "bookkeeping"),
    )
    MODEL = (("compute_logits", "logits"),)

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._wrapped: list[tuple[Any, str]] = []
        self._left: float | None = None  # when the runner was last done with a call

    def watch(self, runner: Any, model: Any) -> None:
        for owner, methods in ((runner, self.RUNNER), (model, self.MODEL)):
            for name, part in methods:
                self.add(owner, name, part)

    def add(self, owner: Any, name: str, part: str) -> None:
        """Times ``owner.name`` as `part`; ``steps`` counts the calls of execute_model.

        Between two calls of the part ``runner`` passes the time of the part ``between``.
        """
        method = getattr(owner, name)
        totals = self._totals
        totals.setdefault(part, 0.0)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            if part == "runner" and self._left is not None:
                totals["between"] = totals.get("between", 0.0) + begun - self._left
            try:
                return method(*args, **kwargs)
            finally:
                ended = time.perf_counter()
                totals[part] += ended - begun
                if part == "runner":
                    self._left = ended
                if name == "execute_model":
                    totals["steps"] = totals.get("steps", 0.0) + 1

        setattr(owner, name, timed)
        self._wrapped.append((owner, name))

    def stop(self) -> dict[str, float]:
        """Takes the timers off. Seconds by part, and ``steps``."""
        for owner, name in self._wrapped:
            delattr(owner, name)
        self._wrapped.clear()
        return self._totals


def rope_tables(model: Any) -> list[Any]:
    """The tables of a model's rotary embeddings, each once."""
    found = {
        buffer.data_ptr(): buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2] in _TABLES
    }
    return list(found.values())


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the storages behind these tensors, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def _tensors(nested: Any) -> list[Any]:
    if isinstance(nested, list | tuple):
        return [tensor for part in nested for tensor in _tensors(part)]
    return [nested]


def weight_paths(model: Any) -> dict[str, int]:
    """Layers by what multiplies them: a weight path of ours, else vLLM's method by class name."""
    found: dict[str, int] = {}
    for module in model.modules():
        path = getattr(module, "edge_infer_path", None)
        method = getattr(module, "quant_method", None)
        if path is None and method is None:
            continue
        name = type(method).__name__ if path is None else path.name
        found[name] = found.get(name, 0) + 1
    return found


def weight_bytes(model: Any) -> dict[str, int]:
    """Resident bytes of the packed matrices that layers read where the loader left them.

    The kernel's page map says which of them a file backs.
    """
    found = {"anonymous": 0, "file_backed": 0}
    for module in model.modules():
        for segment in getattr(module, "edge_infer_segments", ()):
            for tensor in (segment.codes, segment.scales, segment.minimums):
                if tensor is None or tensor.nbytes == 0:
                    continue
                begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
                pages = residency(begin, end)
                found["anonymous"] += pages.anonymous.bytes_in(begin, end)
                found["file_backed"] += pages.file_backed.bytes_in(begin, end)
    return found


def duplicates(model: Any) -> list[Any]:
    """Tensors that hold weights a second time, row by row, for prompts."""
    names = (n for n, p in model.named_parameters() if "edge_infer_rows_" in n and p.numel())
    return [model.get_parameter(name) for name in names]
