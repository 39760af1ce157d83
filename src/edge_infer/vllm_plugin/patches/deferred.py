"""Runs something right after a module was imported, without importing it earlier.

A worker's modules cost seconds and tens of MB, which the front-end process of a server never pays;
so a patch of the worker waits until somebody imports what it changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

Action = Callable[[], None]
_waiting: dict[str, list[Action]] = {}
_searching: set[str] = set()


class _Finder(MetaPathFinder):
    """Finds nothing itself; adds the waiting actions to what the other finders found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting or name in _searching:
            return None
        _searching.add(name)
        try:
            spec = find_spec(name)
        finally:
            _searching.discard(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in _waiting.pop(name, ()):
                action()

        # Set on the loader of this one module, so that everything else about it stays.
        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_FINDER = _Finder()


def when_imported(name: str, action: Action) -> None:
    """Calls `action` now if the module is there already, else after its import."""
    if name in sys.modules:
        action()
        return
    _waiting.setdefault(name, []).append(action)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
