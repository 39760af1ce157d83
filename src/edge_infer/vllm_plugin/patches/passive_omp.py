"""OpenMP threads of a worker sleep soon when they wait, where no CPU is left for other processes.

GNU's OpenMP lets threads spin after each parallel region. When a worker is bound to every CPU that
vLLM may use, the engine and the front end wait for a CPU that is only spinning. Threads that sleep
at once are woken for each of the hundreds of regions of a step, which costs more than they leave:
so they spin as long as the gap between two regions takes, and then sleep. libgomp reads
``GOMP_SPINCOUNT`` when it is loaded, that is when a process imports torch; so the variable is put
into the environment while the worker process is being started, beside the thread binding that vLLM
puts there. A worker inside the engine's process has its libgomp loaded already and is not changed;
neither is one with CPUs to spare, or whose user has set GOMP_SPINCOUNT or OMP_WAIT_POLICY.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from edge_infer.vllm_plugin.patches import require, wrap

FLAG = "EDGE_INFER_VLLM_PASSIVE_OMP"
TARGETS = ("vllm.utils.ompmultiprocessing",)
_SPIN = "GOMP_SPINCOUNT"
_TURNS = "10000"  # 0.1 to 0.5 ms, by how long a CPU pauses in each


def install(target: str) -> None:
    manager = sys.modules[target].OMPProcessManager
    require(
        callable(getattr(manager, "configure_omp_envs", None)),
        "OMPProcessManager has no configure_omp_envs",
    )
    require(
        "skip_setup" in manager._parse_omp_threads_bind_env.__code__.co_names
        and "cpu_lists" in manager._parse_omp_threads_bind_env.__code__.co_names,
        "OMPProcessManager does not say which CPUs it binds",
    )
    wrap(manager, "configure_omp_envs", _passive)


@contextmanager
def _passive(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    add = shares_every_cpu(self) and not {_SPIN, "OMP_WAIT_POLICY"} & os.environ.keys()
    if add:
        os.environ[_SPIN] = _TURNS
    try:
        with original(self, *args, **kwargs):
            yield
    finally:
        if add:
            os.environ.pop(_SPIN, None)


def shares_every_cpu(manager: Any) -> bool:
    """Whether the workers leave no CPU to other processes, and run more than one thread each."""
    if manager.skip_setup:
        return len(os.sched_getaffinity(0)) > 1
    bound = {cpu for cpus in manager.cpu_lists for cpu in cpus}
    many = any(len(cpus) > 1 for cpus in manager.cpu_lists)
    return many and not os.sched_getaffinity(0) - bound
