"""A compiled model is loaded from vLLM's cache on the CPU, instead of compiled at every start.

On the CPU vLLM hands whole models to Inductor, and torch saves the result in a container of its own
kind (`BundledAOTAutogradSerializableCallable`). On loading, vLLM calls ``finalize_loading`` on it,
which only vLLM's own container has; the call fails, the failure is logged, and everything is
compiled again. Nothing is left to do at that point for torch's container, so it gets an empty
``finalize_loading``.

Because loading now works, the cache's key must cover what else changes the compiled code: this
plugin's version and those of its flags that change traced code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from edge_infer.vllm_plugin import flags
from edge_infer.vllm_plugin.patches import mentions, require, wrap

FLAG = "EDGE_INFER_VLLM_COMPILE_CACHE"
TARGETS = ("vllm.compilation.decorators",)


def install(target: str) -> None:
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable as Bundled
    from vllm.compilation import caching

    load = vars(sys.modules[target]).get("_try_load_aot_compiled_fn")
    require(
        mentions(load, "finalize_loading"),
        "vllm.compilation.decorators does not call finalize_loading on what it loads",
    )
    require(
        "finalize_loading" not in vars(Bundled) or Bundled.finalize_loading is _nothing_left,
        "torch's container has a finalize_loading of its own",
    )
    require(
        callable(getattr(caching, "aot_compile_hash_factors", None)),
        "vllm.compilation.caching has no aot_compile_hash_factors",
    )
    Bundled.finalize_loading = _nothing_left
    wrap(caching, "aot_compile_hash_factors", _with_flags)


def _nothing_left(self: Any, vllm_config: Any) -> None:
    """Torch's container is complete when it has been deserialized."""


def _with_flags(original: Callable[..., Any], vllm_config: Any) -> list[str]:
    own = [f"edge-infer {version('edge-infer')}"]
    own += [f"{flag.name}={flags.text(flag.name)}" for flag in flags.TABLE if flag.traced]
    return [*original(vllm_config), *own]
