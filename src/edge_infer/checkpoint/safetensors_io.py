"""Safetensors files: a bounded header reader, and a writer that streams into place.

The reader never touches tensor data and trusts nothing: a header that does not fit the file, that
overlaps, repeats a name or disagrees with its own shapes is a CheckpointError. The writer lays
tensors out on 64-byte boundaries, so that a mapped file can be used in place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_infer.errors import CheckpointError, StorageError, UnsupportedError

HEADER_LIMIT = 100_000_000  # the safetensors library's own cap
MAX_DIMS = 16
ALIGNMENT = 64

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
NUMPY_DTYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "U16": np.uint16,
    "F16": np.float16,
    "BF16": np.uint16,  # numpy has no bfloat16: the bits, value = bits << 16 as f32
    "I32": np.int32,
    "U32": np.uint32,
    "F32": np.float32,
    "F64": np.float64,
    "I64": np.int64,
    "U64": np.uint64,
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a safetensors file, from its header only.

    ``offset`` counts bytes from the start of the file; ``dtype`` is the safetensors name.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


class _DuplicateKeyError(ValueError):
    pass


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return out


def parse_json(text: bytes, what: str) -> Any:
    """JSON from an untrusted file: repeated keys and deep nesting are CheckpointErrors."""
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_unique_pairs)
    except _DuplicateKeyError as e:
        raise CheckpointError(f"{what} repeats the key {str(e)[:120]!r}.") from None
    except RecursionError:
        raise CheckpointError(f"{what} is nested too deeply to be genuine.") from None
    except (ValueError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{what} is not valid JSON: {str(e)[:200]}.") from None


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Tensors and ``__metadata__`` of a safetensors file, without reading its data.

    Raises CheckpointError when the file is missing, truncated or inconsistent.
    """
    try:
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            prefix = f.read(8)
            if len(prefix) < 8:
                raise CheckpointError(f"{path} is {size} bytes long: too short for safetensors.")
            (length,) = struct.unpack("<Q", prefix)
            if length > HEADER_LIMIT:
                raise CheckpointError(
                    f"{path} claims a header of {length} bytes; the limit is {HEADER_LIMIT}."
                )
            if 8 + length > size:
                raise CheckpointError(
                    f"{path} claims a header of {length} bytes but is {size} bytes long.",
                    remedy="The file is truncated or not safetensors; fetch it again.",
                )
            raw = f.read(length)
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}.") from None
    if len(raw) != length:
        raise CheckpointError(f"{path} ended inside its header.")
    header = parse_json(raw, f"the header of {path}")
    if not isinstance(header, dict):
        raise CheckpointError(f"the header of {path} is not a JSON object.")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"__metadata__ of {path} is not a JSON object.")
    tensors = {n: _tensor(path, n, e, 8 + length, size) for n, e in header.items()}
    _check_coverage(path, tensors.values(), 8 + length, size)
    return tensors, {str(k): str(v) for k, v in metadata.items()}


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _tensor(path: Path, name: str, entry: Any, start: int, size: int) -> TensorInfo:
    where = f"tensor {name[:120]!r} of {path}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where} has a malformed header entry.")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise CheckpointError(f"{where} lacks dtype, shape or data_offsets.")
    if dtype not in DTYPE_BYTES:
        raise UnsupportedError(
            f"{where} has dtype {dtype[:40]!r}.", remedy=f"Known: {', '.join(DTYPE_BYTES)}."
        )
    if len(shape) > MAX_DIMS or not all(map(_natural, shape)):
        raise CheckpointError(f"{where} has an impossible shape {str(shape)[:120]}.")
    if len(offsets) != 2 or not all(map(_natural, offsets)) or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has impossible data_offsets {str(offsets)[:120]}.")
    begin, end = offsets
    if start + end > size:
        raise CheckpointError(
            f"{where} ends at byte {start + end} but the file is {size} bytes long.",
            remedy="The file is truncated; fetch or convert it again.",
        )
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if nbytes != end - begin:
        raise CheckpointError(
            f"{where}: shape {tuple(shape)} of {dtype} needs {nbytes} bytes, "
            f"data_offsets hold {end - begin}."
        )
    return TensorInfo(name, dtype, tuple(shape), path, start + begin, nbytes)


def _check_coverage(path: Path, tensors: Iterable[TensorInfo], start: int, size: int) -> None:
    position, previous = start, "the header"
    for t in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if t.offset != position:
            how = "overlaps" if t.offset < position else "leaves a gap after"
            raise CheckpointError(f"tensor {t.name[:120]!r} of {path} {how} {previous}.")
        position, previous = t.offset + t.nbytes, f"tensor {t.name[:120]!r}"
    if position != size:
        raise CheckpointError(
            f"{path} holds {size - position} bytes that no tensor names (after {previous})."
        )


def read_array(info: TensorInfo) -> npt.NDArray[np.generic]:
    """A whole tensor as numpy (BF16 as its uint16 bits). For tests and small tensors."""
    if info.dtype not in NUMPY_DTYPES:
        raise UnsupportedError(f"tensor {info.name!r} has dtype {info.dtype}, which numpy lacks.")
    try:
        with open(info.file, "rb") as f:
            f.seek(info.offset)
            raw = f.read(info.nbytes)
    except OSError as e:
        raise CheckpointError(f"{info.file} cannot be read: {e.strerror or e}.") from None
    if len(raw) != info.nbytes:
        raise CheckpointError(f"{info.file} ended inside tensor {info.name!r}.")
    return np.frombuffer(raw, NUMPY_DTYPES[info.dtype]).reshape(info.shape)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that is going to be written: its bytes arrive later, in any order."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def plan_file(
    specs: Iterable[TensorSpec], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, int], int]:
    """Header bytes, absolute offset of every tensor, and the size of the whole file.

    Tensors whose size is a multiple of 64 come first; the others follow by falling alignment, so
    each lies at a multiple of the largest power of two that divides its own size.
    """
    ordered = sorted(specs, key=lambda s: -min(s.nbytes & -s.nbytes or ALIGNMENT, ALIGNMENT))
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    relative: dict[str, int] = {}
    position = 0
    for s in ordered:
        if s.name in relative:
            raise CheckpointError(f"two tensors would be written under the name {s.name!r}.")
        relative[s.name] = position
        end = position + s.nbytes
        entries[s.name] = {
            "dtype": s.dtype,
            "shape": list(s.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT - 8
    if length > HEADER_LIMIT:
        raise UnsupportedError(f"{len(relative)} tensors need a header of {length} bytes.")
    header = struct.pack("<Q", length) + text.ljust(length, b" ")
    start = len(header)
    return header, {n: start + o for n, o in relative.items()}, start + position


NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def storage_error(e: OSError, path: Path, needed: int | None = None) -> StorageError:
    """The StorageError for a failed write, with the bytes needed and free where space ran out."""
    if e.errno not in NO_SPACE:
        return StorageError(
            f"{path} cannot be written: {e.strerror or e}.",
            remedy="Check the path and its permissions, or choose another destination.",
        )
    numbers = "" if needed is None else f" {needed} bytes are needed"
    with contextlib.suppress(OSError):
        numbers += f"{' and' if numbers else ''} {free_bytes(path.parent)} are free"
    limit = " (a file size limit or quota applies)" if e.errno != errno.ENOSPC else ""
    return StorageError(
        f"no space to write {path}{limit}:{numbers}.",
        remedy="Free some space or choose another destination.",
    )


def free_bytes(path: Path) -> int:
    """Bytes that this user can still write on the file system of `path`."""
    s = os.statvfs(path)
    return s.f_bavail * s.f_frsize


class SafetensorsWriter:
    """Writes a planned safetensors file piece by piece, in any order.

    Space is reserved when the file is opened, so a full disk shows before the work is done.
    Raises StorageError; ``close`` checks that every byte arrived and syncs the file.
    """

    def __init__(
        self, path: Path, specs: Iterable[TensorSpec], metadata: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        specs = list(specs)
        header, self._offsets, self.size = plan_file(specs, metadata)
        self._left = {s.name: s.nbytes for s in specs}
        self._sizes = dict(self._left)
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise storage_error(e, path, self.size) from None
        try:
            try:
                os.posix_fallocate(self._fd, 0, self.size)
            except OSError as e:
                if e.errno in NO_SPACE:
                    raise
                os.ftruncate(self._fd, self.size)  # a file system without reservation
            self._pwrite(memoryview(header), 0)
        except OSError as e:
            os.close(self._fd)
            raise storage_error(e, path, self.size) from None

    def _pwrite(self, data: memoryview, offset: int) -> None:
        while len(data):
            written = os.pwrite(self._fd, data, offset)
            data, offset = data[written:], offset + written

    def write(self, name: str, offset: int, array: npt.NDArray[np.generic]) -> None:
        """Puts `array` at byte `offset` of the tensor `name`; every byte arrives once."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if offset + len(data) > self._sizes[name]:
            raise CheckpointError(
                f"tensor {name!r} holds {self._sizes[name]} bytes; "
                f"{len(data)} at {offset} do not fit."
            )
        self._left[name] -= len(data)
        try:
            self._pwrite(data, self._offsets[name] + offset)
        except OSError as e:
            raise storage_error(e, self.path, self.size) from None

    def close(self) -> None:
        """Syncs and closes; CheckpointError when a tensor is incomplete."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            unfinished = [n for n, left in self._left.items() if left]
            if unfinished:
                raise CheckpointError(f"tensor {unfinished[0]!r} was not written completely.")
            os.fsync(fd)
            # What panels left in the page cache lies in small pages; a reader gets large ones.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as e:
            raise storage_error(e, self.path, self.size) from None
        finally:
            os.close(fd)

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
