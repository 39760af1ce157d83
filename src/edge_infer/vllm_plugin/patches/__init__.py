"""Changes to vLLM that are made in its running processes, never in its files.

One module a patch, with a docstring (what is wrong and what is done), ``NAME``, ``FLAG`` and
``install()``. `install` looks whether what it replaces has the expected shape and raises
`NotApplicable` with the reason where it has not; vLLM then behaves as it does without the patch,
and one warning names it. A patch whose flag is off changes nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from edge_infer.vllm_plugin import flags

MODULES: tuple[str, ...] = ()
"""In the order in which they are applied."""

APPLIED, OFF, NOT_APPLICABLE, PENDING = "applied", "off", "not applicable", "not applied yet"
_MARK = "__edge_infer_patch__"
_logger = logging.getLogger("vllm.edge_infer")  # below vLLM's own, so its handlers print it
_states: dict[str, Status] = {}


class NotApplicable(Exception):
    """What the patch would replace does not look as expected; the text says what."""


@dataclass(frozen=True)
class Status:
    """What became of one patch in this process."""

    name: str
    flag: str
    state: str
    """``applied``, ``off`` (by its flag), ``not applicable``, or ``not applied yet``."""
    reason: str
    """Why it is not applicable; empty otherwise."""
    summary: str
    """What it does, in one line."""


def apply_all() -> list[Status]:
    """Applies every patch that its flag does not switch off; again does nothing."""
    return [_apply(name) for name in MODULES]


def status() -> list[Status]:
    """The state of every patch in this process, in the order of the table."""
    return [_states.get(name) or _status(name, PENDING) for name in MODULES]


def _apply(name: str) -> Status:
    if name not in _states:
        module = _module(name)
        if not flags.enabled(module.FLAG):
            _states[name] = _status(name, OFF)
        else:
            try:
                module.install()
                _states[name] = _status(name, APPLIED)
            except (NotApplicable, ImportError, AttributeError) as e:
                _states[name] = _status(name, NOT_APPLICABLE, str(e))
                _logger.warning("edge-infer: patch %s is not applied: %s", name, e)
    return _states[name]


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


def _status(name: str, state: str, reason: str = "") -> Status:
    module = _module(name)
    summary = (module.__doc__ or "").partition("\n")[0]
    return Status(name, module.FLAG, state, reason, summary)


def require(condition: Any, what: str) -> None:
    """Raises NotApplicable with `what` unless the condition holds."""
    if not condition:
        raise NotApplicable(what)


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replaces a function or classmethod of `owner` by ``wrapper(original, *args, **kwargs)``.

    Done once: an attribute that a patch has wrapped already stays as it is.
    """
    raw = vars(owner)[name]
    original = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
    if getattr(original, _MARK, None) == wrapper.__module__:
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(replacement, _MARK, wrapper.__module__)
    setattr(owner, name, type(raw)(replacement) if raw is not original else replacement)
