"""Memory that loading and warming up needed goes back to the system when they are done.

Allocators keep what was freed. After the model is loaded, and again after warm-up, each process
collects Python's garbage and asks its allocator to return free pages: `malloc_trim` of glibc, or
tcmalloc's own call where that is preloaded (glibc's then finds nothing). glibc is also limited to
two arenas a process, set here for threads that start from now on and by ``MALLOC_ARENA_MAX`` for
processes that this one starts, unless the variable is set already.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from edge_infer.device.usage import give_back_heap, own_memory
from edge_infer.vllm_plugin.patches import require, wrap

FLAG = "EDGE_INFER_VLLM_RELEASE"
_WORKER, _ENGINE = "vllm.v1.worker.cpu_worker", "vllm.v1.engine.core"
_FRONT, _SERVER = "vllm.v1.engine.llm_engine", "vllm.v1.engine.async_llm"
_HTTP = "vllm.entrypoints.launchers.api_server.entry"
TARGETS = (_WORKER, _ENGINE, _FRONT, _SERVER, _HTTP)
ARENAS = 2
_M_ARENA_MAX = -8
# Where in the start of which class: after it, memory is given back.
_POINTS = {
    _WORKER: ("CPUWorker", ("load_model", "compile_or_warm_up_model")),
    _ENGINE: ("EngineCore", ("__init__",)),
    _FRONT: ("LLMEngine", ("__init__",)),
    _SERVER: ("AsyncLLM", ("__init__",)),
    _HTTP: ("", ("init_app_state",)),  # of the module; a coroutine
}
_released: dict[str, dict[str, int]] = {}


def install(target: str) -> None:
    owner_name, names = _POINTS[target]
    module = sys.modules[target]
    owner: Any = getattr(module, owner_name) if owner_name else module
    for name in names:
        require(callable(getattr(owner, name, None)), f"{owner_name or target} has no {name}")
    _limit_arenas()
    for name in names:
        if name not in vars(owner):  # inherited: what other classes see stays as it is
            setattr(owner, name, _inherited(owner, name))
        wrap(owner, name, _then_release)


def released() -> dict[str, dict[str, int]]:
    """By point in the start: anonymous bytes of this process before and after the release."""
    return dict(_released)


def release(point: str) -> None:
    """Gives back what is free, and remembers how much that was."""
    before = own_memory().anonymous
    gc.collect()
    give_back_heap()
    _release_tcmalloc()
    _released[point] = {"before": before, "after": own_memory().anonymous}


def allocator() -> str:
    """``tcmalloc`` where it is loaded into this process, else ``malloc``."""
    return (
        "tcmalloc" if hasattr(ctypes.CDLL(None), "MallocExtension_ReleaseFreeMemory") else "malloc"
    )


def _then_release(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    if inspect.isawaitable(result):
        return _awaited(result, original.__qualname__)
    release(original.__qualname__)
    return result


async def _awaited(result: Awaitable[Any], point: str) -> Any:
    value = await result
    release(point)
    return value


def _inherited(owner: Any, name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    call.__name__, call.__qualname__ = name, f"{owner.__name__}.{name}"
    return call


def _release_tcmalloc() -> None:
    call = getattr(ctypes.CDLL(None), "MallocExtension_ReleaseFreeMemory", None)
    if call is not None:
        call()


def _limit_arenas() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if "MALLOC_ARENA_MAX" in os.environ:
        return  # the user's choice, in force since this process started
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
    os.environ["MALLOC_ARENA_MAX"] = str(ARENAS)
