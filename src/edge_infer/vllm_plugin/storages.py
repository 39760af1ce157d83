"""The torch storages of a vLLM process: each once, by name, for the ledger.

Every vLLM process answers when it is asked (`edge-infer ledger PID`). A thread waits for that on a
socket; it takes nothing until somebody asks. Answering looks at every Python object, which stops
the process for a moment; EDGE_INFER_VLLM_LEDGER=0 leaves the socket out.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from edge_infer.device.tensor_owners import (
    BUFFERS,
    KV_CACHE,
    OTHERS,
    WEIGHTS,
    Answer,
    Listener,
    Storage,
    View,
)
from edge_infer.device.usage import heap_use, small_object_bytes
from edge_infer.vllm_plugin import flags

FLAG = "EDGE_INFER_VLLM_LEDGER"
_DEPTH = 4  # of containers and plain objects that a module's attribute is looked for tensors in
_ORDER = (WEIGHTS, KV_CACHE, BUFFERS, OTHERS)  # a storage belongs to the first that names it
_LINES = {
    "kv": KV_CACHE,
    "edge": WEIGHTS,
}  # by how an attribute's name begins: kv_cache, edge_infer
_logger = logging.getLogger("vllm.edge_infer")
_listener: Listener | None = None


def listen() -> None:
    """Answers from now on for this process, unless the flag says no; again does nothing."""
    global _listener
    if not flags.enabled(FLAG) or (_listener is not None and not _listener.closed):
        return
    _listener = Listener.open()
    if _listener is not None:
        name = "edge-infer-ledger"
        threading.Thread(target=_serve, args=(_listener,), name=name, daemon=True).start()


def _serve(listener: Listener) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError:
            return  # closed
        if connection is None:
            continue
        with connection, contextlib.suppress(OSError):  # an asker that has gone
            try:
                text = answer().to_json()
            except Exception as e:  # the process goes on; the asker sees that it got nothing
                _logger.warning("edge-infer: the ledger could not look at this process: %r", e)
                continue
            connection.sendall(text)


def answer() -> Answer:
    """What this process holds now."""
    small, heap = small_object_bytes(), heap_use()  # before the list of objects adds to them
    return Answer(tuple(storages()), small, heap.in_use, heap.mapped)


def storages() -> list[Storage]:
    """Every CPU storage that a Python tensor refers to, once, largest first.

    Tensors of modules are named by their path in the model, others by type and shape. Tied
    weights are one storage with two names.
    """
    import torch

    objects = _all_objects()
    modules = [o for o in objects if issubclass(type(o), torch.nn.Module)]
    tensors = [o for o in objects if issubclass(type(o), torch.Tensor)]
    del objects
    found: dict[int, _Found] = {}
    for line, name, tensor in _of_modules(modules):
        _add(found, line, name, tensor)
    named = {id(v) for one in found.values() for v in one.tensors}
    for tensor in tensors:
        if id(tensor) not in named:
            _add(found, OTHERS, "", tensor)
    return sorted((one.storage() for one in found.values()), key=lambda s: -s.bytes)


class _Found:
    """A storage while its tensors are collected."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.line = OTHERS
        self.names: dict[int, tuple[int, list[str]]] = {}  # offset -> bytes, names
        self.tensors: list[Any] = []  # kept, so that no id is used again meanwhile

    def storage(self) -> Storage:
        views = tuple(
            View(" = ".join(names), offset, size)
            for offset, (size, names) in sorted(self.names.items())
        )
        return Storage(self.address, self.size, self.line, views)


def _add(found: dict[int, _Found], line: str, name: str, tensor: Any) -> None:
    try:
        if tensor.device.type != "cpu" or tensor.layout.__str__() != "torch.strided":
            return
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        offset = tensor.storage_offset() * tensor.element_size()
        extent = _extent(tensor)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError, TypeError):
        return  # a tensor without memory: fake, functional, or of a kind that has no storage
    if not address or not size:
        return
    one = found.setdefault(address, _Found(address, size))
    one.size = max(one.size, size)
    one.tensors.append(tensor)
    if _ORDER.index(line) < _ORDER.index(one.line):
        one.line = line
    if not name:
        if one.names:
            return  # a view of something that has a name
        name = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    before, names = one.names.get(offset, (0, []))
    if name not in names:
        names.append(name)
    one.names[offset] = max(before, extent), names


def _extent(tensor: Any) -> int:
    """Bytes from the first element to the last."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int((sum((n - 1) * step for n, step in steps) + 1) * tensor.element_size())


def _all_objects() -> list[Any]:
    """Every object that the garbage collector knows, those that vLLM froze too."""
    frozen = gc.get_freeze_count() > 0
    if not frozen:
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.collect()  # what is garbage now would never be found again
        gc.freeze()


def _of_modules(modules: list[Any]) -> Iterator[tuple[str, str, Any]]:
    """(line, path, tensor) of every tensor that modules hold, the largest model's first."""
    children = {id(c) for m in modules for c in m._modules.values()}
    roots = [m for m in modules if id(m) not in children]
    roots.sort(key=lambda m: -sum(1 for _ in m.modules()))
    for at, root in enumerate(roots):
        outer = "" if at == 0 else f"{type(root).__name__}: "
        for path, module in root.named_modules(remove_duplicate=True):
            prefix = outer + path + ("." if path else "")
            for name, value in module._parameters.items():
                yield from ((WEIGHTS, prefix + n, t) for n, t in _tensors(value, name, 0))
            for name, value in module._buffers.items():
                yield from ((BUFFERS, prefix + n, t) for n, t in _tensors(value, name, 0))
            for name, value in vars(module).items():
                if name in ("_parameters", "_buffers", "_modules"):
                    continue
                line = _LINES.get(name.partition("_")[0], BUFFERS)
                yield from ((line, prefix + n, t) for n, t in _tensors(value, name, _DEPTH))


def _tensors(value: Any, name: str, depth: int) -> Iterable[tuple[str, Any]]:
    """(name, tensor) of a tensor, or of those in a container or a plain object of ours."""
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield name, value
    elif depth == 0:
        return
    elif kind in (list, tuple):
        for i, item in enumerate(value):
            yield from _tensors(item, f"{name}.{i}", depth - 1)
    elif kind is dict:
        for key, item in list(value.items()):
            yield from _tensors(item, f"{name}.{key}", depth - 1)
    elif kind.__module__.startswith("edge_infer."):
        slots = [s for c in kind.__mro__ for s in getattr(c, "__slots__", ())]
        inside = {s: getattr(value, s, None) for s in slots} | getattr(value, "__dict__", {})
        for key, item in inside.items():
            yield from _tensors(item, f"{name}.{key}", depth - 1)
