"""One process for ``LLM(...)`` instead of three, and two for a server (opt-in).

Stock vLLM starts an engine process and a worker process beside the caller's on the CPU, because
OpenMP's settings (which CPUs, how many threads) must be in the environment before a process
starts; each of them holds Python, torch and vLLM again. Here the engine and the worker run in the
caller's process (a server's: in the engine process), and the worker sets the number of threads
through torch: one a physical core of its NUMA node, or what VLLM_CPU_OMP_THREADS_BIND lists. With
a list, threads stay on those CPUs, but none is pinned to a single one: the calling thread is the
user's.

Several workers (tensor parallel) keep a process each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from edge_infer.vllm_plugin.patches import mentions, require, wrap

FLAG = "EDGE_INFER_VLLM_SINGLE_PROCESS"
_PLATFORM, _WORKER = "vllm.platforms.cpu", "vllm.v1.worker.cpu_worker"
TARGETS = (_PLATFORM, _WORKER)
_VARIABLE = "VLLM_ENABLE_V1_MULTIPROCESSING"


def install(target: str) -> None:
    module: Any = sys.modules[target]
    if target == _PLATFORM:
        require(
            mentions(
                module.CpuPlatform.check_and_update_config.__func__,
                _VARIABLE,
                "distributed_executor_backend",
            ),
            f"CpuPlatform.check_and_update_config does not choose the executor by {_VARIABLE}",
        )
        os.environ[_VARIABLE] = "0"
    else:
        require(
            mentions(module.CPUWorker.init_device, "set_num_threads"),
            "CPUWorker.init_device does not fix the number of threads",
        )
        wrap(module.CPUWorker, "init_device", _with_threads)


def _with_threads(original: Callable[..., Any], self: Any) -> Any:
    """`init_device` forbids later changes of the thread count; here nothing is bound."""
    import torch

    in_engine = self.parallel_config.distributed_executor_backend == "uni"
    change = torch.set_num_threads
    if in_engine:
        cpus = _cpus()
        if cpus is not None:
            change(len(cpus))
    result = original(self)
    if in_engine:
        torch.set_num_threads = change
    return result


def _cpus() -> list[int] | None:
    """CPUs to compute on; None where the user has settled the number of threads otherwise."""
    from vllm import envs
    from vllm.utils.cpu_resource_utils import get_allowed_cpu_list, parse_id_list

    binding = envs.VLLM_CPU_OMP_THREADS_BIND
    if binding == "nobind":
        return None
    if binding != "auto":
        cpus = parse_id_list(binding.split("|")[0])
        # Threads of the pool inherit it, because they start later.
        os.sched_setaffinity(0, cpus)
        return cpus
    if "OMP_NUM_THREADS" in os.environ:
        return None
    allowed = get_allowed_cpu_list()
    node = allowed[0].numa_node
    cores = {cpu.physical_core: cpu.id for cpu in allowed if cpu.numa_node == node}
    return sorted(cores.values())
