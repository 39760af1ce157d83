"""Changes to vLLM that are made in its running processes, never in its files.

One module a patch, with a docstring (what is wrong and what is done), ``FLAG``, ``TARGETS`` and
``install(target)``. A target is the module that the patch changes; `install` is called once it has
been imported, which in a process that never needs it is never. It looks whether what it replaces
has the expected shape and raises `NotApplicable` with the reason where it has not; vLLM then
behaves as it does without the patch, and one warning names it. A patch whose flag is off changes
nothing.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from edge_infer.vllm_plugin import flags
from edge_infer.vllm_plugin.patches.deferred import when_imported

MODULES: tuple[str, ...] = (
    "kv_bytes",
    "ranks",
    "rope_cap",
    "compile_cache",
    "release",
    "passive_omp",
    "single_process",
    "spark_loader",
    "token_ids",
    "embeddings",
    "complete",
)
"""In the order in which they are applied."""

APPLIED, OFF, NOT_APPLICABLE = "applied", "off", "not applicable"
WAITING = "waiting"
_MARK = "__edge_infer_patch__"
_logger = logging.getLogger("vllm.edge_infer")  # below vLLM's own, so its handlers print it
_begun = False
_off: set[str] = set()
_applied: dict[str, list[str]] = {}
_reasons: dict[str, str] = {}


class NotApplicable(Exception):
    """What the patch would replace does not look as expected; the text says what."""


@dataclass(frozen=True)
class Status:
    """What became of one patch in this process."""

    name: str
    flag: str
    state: str
    """``applied``, ``off`` (by its flag), ``not applicable``, or ``waiting`` for the import of what
    it changes, which this process may never need."""
    reason: str
    """Why it is not applicable, or which modules it waits for; empty otherwise."""
    summary: str
    """What it does, in one line."""


def apply_all() -> None:
    """Applies every patch that its flag does not switch off; again does nothing.

    Raises ConfigError for a flag that is neither on nor off.
    """
    global _begun
    if _begun:
        return
    for name in MODULES:
        if not flags.enabled(_module(name).FLAG):
            _off.add(name)
    _begun = True
    for name in MODULES:
        if name not in _off:
            for target in _module(name).TARGETS:
                when_imported(target, functools.partial(_install, name, target))


def status() -> list[Status]:
    """The state of every patch in this process, in the order of the table."""
    return [_status(name) for name in MODULES]


def import_targets() -> None:
    """Imports everything that patches wait for, so that `status` tells what a worker would see."""
    for name in MODULES:
        for target in _module(name).TARGETS:
            try:
                import_module(target)
            except ImportError as e:
                if find_spec(target.partition(".")[0]) is None:
                    continue  # a package that this environment does not have
                _reasons.setdefault(name, f"{target} cannot be imported: {e}")


def _install(name: str, target: str) -> None:
    module = _module(name)
    try:
        module.install(target)
        _applied.setdefault(name, []).append(target)
    except (NotApplicable, ImportError, AttributeError, KeyError) as e:
        first = name not in _reasons
        _reasons.setdefault(name, str(e) or type(e).__name__)
        if first:
            _logger.warning("edge-infer: patch %s is not applied: %s", name, _reasons[name])


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


def _status(name: str) -> Status:
    module = _module(name)
    if name in _off:
        state, reason = OFF, ""
    elif name in _reasons:
        state, reason = NOT_APPLICABLE, _reasons[name]
    elif name not in _applied:
        state, reason = WAITING, ", ".join(module.TARGETS)
    else:
        state, reason = APPLIED, ""
    summary = (module.__doc__ or "").strip().partition("\n")[0]
    return Status(name, module.FLAG, state, reason, summary)


def require(condition: Any, what: str) -> None:
    """Raises NotApplicable with `what` unless the condition holds."""
    if not condition:
        raise NotApplicable(what)


def mentions(function: Any, *names: str) -> bool:
    """Whether the code of a function uses every one of these names or constants.

    Of a function that a patch has replaced, the original is looked at.
    """
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code is not None and set(names) <= {*code.co_names, *map(str, code.co_consts)}


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replaces a function or classmethod of `owner` by ``wrapper(original, *args, **kwargs)``.

    Done once: an attribute that the same wrapper has replaced already stays as it is.
    """
    raw = vars(owner)[name]
    original = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
    mark = f"{wrapper.__module__}.{wrapper.__qualname__}"
    if getattr(original, _MARK, None) == mark:
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(replacement, _MARK, mark)
    setattr(owner, name, type(raw)(replacement) if raw is not original else replacement)
