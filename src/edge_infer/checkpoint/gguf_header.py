"""The header of a GGUF file, parsed within bounds.

Every count and length is checked against the bytes that are left in the file before anything is
allocated or looped over, so a hostile header is refused in time proportional to its real size.
Arrays become plain lists, strings are decoded strictly. (The gguf package's own reader is not used:
it builds an object for every vocabulary entry, 31 s and 700 MB for a vocabulary of 262144, and
trusts what it reads.)
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edge_infer.errors import CheckpointError, UnsupportedError

KEY_LIMIT = 65535  # the format's own
NAME_LIMIT = 256
STRING_LIMIT = 1 << 24
ARRAY_LIMIT = 1 << 22  # entries of one array: 16 times the largest vocabulary in use
ENTRIES_LIMIT = 1 << 23  # entries of all arrays together
HEADER_LIMIT = 1 << 29
TENSORS_LIMIT = 1 << 20
DEFAULT_ALIGNMENT = 32

# type id -> name, weights per block, bytes per block
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
# names of what is refused, for the message
OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4",
}  # fmt: skip

_SCALARS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: its type by name, shape with rows first, and where its bytes lie in the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    """``fields`` is the metadata as plain Python values; ``tensors`` is by name, in file order."""

    path: Path
    version: int
    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Reader:
    """Takes bytes off the front of the file, never more than there are."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0
        self.entries = 0

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what} (at byte {self.position} of {self.size}).")

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.position:
            raise self.fail(f"{what} needs {count} bytes, {self.size - self.position} are left")
        if self.position + count > HEADER_LIMIT:
            raise self.fail(f"the header is larger than {HEADER_LIMIT} bytes")
        raw = self.file.read(count)
        if len(raw) != count:
            raise self.fail(f"the file ended inside {what}")
        self.position += count
        return raw

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def count(self, what: str, least: int, limit: int) -> int:
        """A count of things that take at least `least` bytes each."""
        n = self.u64(what)
        if n > limit:
            raise self.fail(f"{what} is {n}; the limit is {limit}")
        if n * least > self.size - self.position:
            raise self.fail(
                f"{what} is {n}, which cannot fit the {self.size - self.position} bytes left"
            )
        return n

    def string(self, what: str, limit: int = STRING_LIMIT) -> str:
        raw = self.take(self.count(f"the length of {what}", 1, limit), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key)
        return self.scalars(kind, 1, key)[0]

    def scalars(self, kind: int, count: int, key: str) -> list[Any]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise self.fail(f"{key} has the unknown value type {kind}")
        raw = self.take(count * int(dtype[2]), key)
        values: list[Any] = np.frombuffer(raw, dtype).tolist()
        if kind == _BOOL:
            if any(v > 1 for v in values):
                raise self.fail(f"{key} holds a boolean that is neither 0 nor 1")
            return [bool(v) for v in values]
        return values

    def array(self, key: str) -> list[Any]:
        kind = self.u32(key)
        if kind == _ARRAY:
            raise UnsupportedError(f"{self.path}: {key} is an array of arrays.")
        least = 8 if kind == _STRING else int(_SCALARS.get(kind, "<u1")[2])
        n = self.count(f"the length of {key}", least, ARRAY_LIMIT)
        self.entries += n
        if self.entries > ENTRIES_LIMIT:
            raise self.fail(f"the arrays hold more than {ENTRIES_LIMIT} entries")
        if kind != _STRING:
            return self.scalars(kind, n, key)
        return [self.string(key) for _ in range(n)]


def is_gguf(path: Path) -> bool:
    """Whether a file starts like a GGUF."""
    try:
        with open(path, "rb") as f:
            return f.read(4) == b"GGUF"
    except OSError:
        return False


def read_header(path: str | Path) -> GgufHeader:
    """Metadata and tensor list of a GGUF v2 or v3 file.

    Raises CheckpointError for anything that does not fit the file or contradicts itself, and
    UnsupportedError for versions, byte orders and tensor types that this build does not read.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            return _read(_Reader(file, path))
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}.") from None


def _read(r: _Reader) -> GgufHeader:
    if r.size < 24 or r.take(4, "the magic") != b"GGUF":
        raise CheckpointError(f"{r.path} is not a GGUF file ({r.size} bytes).")
    version = r.u32("the version")
    if version not in (2, 3):
        swapped = struct.unpack(">I", struct.pack("<I", version))[0]
        what = "is big-endian" if swapped in (2, 3) else f"has version {version}"
        raise UnsupportedError(f"{r.path} {what}; this build reads little-endian GGUF 2 and 3.")
    n_tensors = r.count("the tensor count", 33, TENSORS_LIMIT)
    n_fields = r.count("the metadata count", 14, TENSORS_LIMIT)
    fields: dict[str, Any] = {}
    for _ in range(n_fields):
        key = r.string("a metadata key", KEY_LIMIT)
        if key in fields:
            raise r.fail(f"the metadata key {key[:120]!r} appears twice")
        kind = r.u32(f"the type of {key[:120]}")
        fields[key] = r.value(kind, key[:120])
    alignment = fields.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & alignment - 1:
        raise r.fail(f"general.alignment is {str(alignment)[:40]}, not a power of two")
    described = [_describe(r) for _ in range(n_tensors)]
    start = -(-r.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, type_name, shape, offset, nbytes in described:
        where = f"tensor {name!r}"
        if name in tensors:
            raise r.fail(f"{where} appears twice")
        if offset % alignment:
            raise r.fail(f"{where} starts at {offset}, not a multiple of {alignment}")
        if start + offset + nbytes > r.size:
            raise CheckpointError(
                f"{r.path}: {where} ends at byte {start + offset + nbytes} but the file is "
                f"{r.size} bytes long.",
                remedy="The file is truncated; fetch it again.",
            )
        tensors[name] = GgufTensor(name, type_name, shape, start + offset, nbytes)
    end, before = start, ""
    for t in sorted(tensors.values(), key=lambda t: t.offset):
        if t.offset < end:
            raise r.fail(f"tensor {t.name!r} overlaps {before!r}")
        end, before = t.offset + t.nbytes, t.name
    return GgufHeader(r.path, version, fields, tensors)


def _describe(r: _Reader) -> tuple[str, str, tuple[int, ...], int, int]:
    name = r.string("a tensor name", NAME_LIMIT)
    where = f"tensor {name!r}"
    n_dims = r.u32(where)
    if not 1 <= n_dims <= 4:
        raise r.fail(f"{where} has {n_dims} dimensions")
    dims = [r.u64(where) for _ in range(n_dims)]
    type_id = r.u32(where)
    offset = r.u64(where)
    if type_id not in TENSOR_TYPES:
        label = OTHER_TYPES.get(type_id, f"number {type_id}")
        known = ", ".join(t[0] for t in TENSOR_TYPES.values())
        raise UnsupportedError(
            f"{r.path}: {where} has type {label}.", remedy=f"This build reads {known}."
        )
    label, block, block_bytes = TENSOR_TYPES[type_id]
    elements = math.prod(dims)
    if elements == 0 or elements // block * block_bytes > r.size:
        raise r.fail(f"{where} of {label} with dimensions {dims} cannot fit the file")
    if dims[0] % block:
        raise r.fail(f"{where} has rows of {dims[0]}, not a multiple of the {label} block {block}")
    return name, label, tuple(reversed(dims)), offset, elements // block * block_bytes
