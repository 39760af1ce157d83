"""What a running vLLM worker really has: KV bytes, RoPE rows, threads, patches.

``LLM(..., worker_extension_cls="edge_infer.vllm_plugin.probes.WorkerProbes")`` gives every worker
the method, and ``llm.collective_rpc("edge_infer_probe")`` asks them: vLLM's own way to add to a
worker. The answer is plain data, one dictionary a worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from edge_infer.device.usage import own_memory

_TABLES = ("cos_sin_cache", "long_short_cos_sin_cache", "cos_sin_q_cache")


class WorkerProbes:
    """Mixed into vLLM's worker class; reads what is there and changes nothing."""

    model_runner: Any

    def edge_infer_probe(self) -> dict[str, Any]:
        """``kv_bytes``, ``kv_blocks``; ``rope_tables``: [rows, columns, bytes] of each;
        ``rope_bytes``; ``threads``; ``pid``; ``parent``; ``memory``: anonymous and file-backed
        bytes; ``compiled_from_cache``; ``patches``: name to state; ``released``.
        """
        import torch
        from vllm.compilation.counter import compilation_counter

        from edge_infer.vllm_plugin import patches
        from edge_infer.vllm_plugin.patches.release import released

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
            "compiled_from_cache": compilation_counter.num_aot_artifacts_loaded > 0,
            "compiled": compilation_counter.num_aot_compiles > 0,
            "patches": {status.name: status.state for status in patches.status()},
            "released": released(),
            "spin": os.environ.get("GOMP_SPINCOUNT", ""),
        }


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
