"""What a process says about its own tensors, and asking it.

A process that wants to be asked listens on a Unix socket in the abstract namespace, named by its
process id. Whoever connects gets one JSON document and the end of the stream. The kernel vouches
for both sides: the asker must belong to the same user (or be root), the answer must come from the
process that was asked for.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from dataclasses import asdict, dataclass

from edge_infer.errors import StorageError

WEIGHTS, BUFFERS, KV_CACHE, OTHERS = (
    "tensors: weights",
    "tensors: buffers of modules",
    "KV cache",
    "tensors: others",
)
PATIENCE = 60.0
"""Seconds to wait: a process in the middle of a long computation answers after it."""
_LONGEST = 64 << 20


@dataclass(frozen=True)
class View:
    """One tensor's bytes within a storage."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Storage:
    """One block of memory that tensors share, however many they are."""

    address: int
    bytes: int
    line: str
    """The line of the ledger that it belongs to."""
    views: tuple[View, ...]
    """The tensors in it that begin at different places, in order of their offsets."""


@dataclass(frozen=True)
class Answer:
    """What a process says about its memory; sizes in bytes."""

    storages: tuple[Storage, ...]
    small_objects: int
    """Arenas of Python's small objects."""
    heap_in_use: int
    heap_mapped: int
    """The C library's blocks in its heaps, and those mapped alone."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Answer:
        """Raises ValueError, TypeError or KeyError on anything else than `to_json` gives."""
        found = json.loads(text)
        storages = tuple(
            Storage(
                address=int(one["address"]),
                bytes=int(one["bytes"]),
                line=str(one["line"]),
                views=tuple(
                    View(str(v["name"]), int(v["offset"]), int(v["bytes"])) for v in one["views"]
                ),
            )
            for one in found["storages"]
        )
        sizes = (int(found[name]) for name in ("small_objects", "heap_in_use", "heap_mapped"))
        return cls(storages, *sizes)


def address_of(pid: int) -> str:
    """The socket's name; the leading zero makes it one without a file."""
    return f"\0edge-infer/tensors/{pid}"


def peer(connection: socket.socket) -> tuple[int, int]:
    """(process id, user id) of the other side, as the kernel has it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def ask(pid: int, patience: float = PATIENCE) -> Answer | None:
    """What the process says; None where nobody listens under its id.

    Raises StorageError where someone listens and does not answer properly.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience)
        try:
            connection.connect(address_of(pid))
        except OSError:
            return None
        if peer(connection)[0] != pid:
            return None  # someone else took the name
        try:
            text = bytearray()
            while part := connection.recv(1 << 16):
                text += part
                if len(text) > _LONGEST:
                    raise ValueError("more than 64 MiB")
            return Answer.from_json(bytes(text))
        except (OSError, ValueError, TypeError, KeyError) as e:
            raise StorageError(
                f"Process {pid} was asked for its tensors and gave no usable answer: {e}.",
                remedy="Try again when it is idle, or as the user that it runs as.",
            ) from None


class Listener:
    """The socket of this process; what is forked from it does not answer in its name."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    @classmethod
    def open(cls) -> Listener | None:
        """None where the name is taken already."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(address_of(os.getpid()))
        except OSError:
            listening.close()
            return None
        listening.listen(4)
        os.register_at_fork(after_in_child=listening.close)
        return cls(listening)

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def accept(self) -> socket.socket | None:
        """Waits for someone who may ask; None for one who may not. Raises OSError once closed."""
        connection, _ = self._socket.accept()
        if peer(connection)[1] in (0, os.geteuid()):
            connection.settimeout(PATIENCE)
            return connection
        connection.close()
        return None
