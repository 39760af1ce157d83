"""Our safetensors reader and writer, with the safetensors library as the other side."""

import json
import struct

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from edge_infer.checkpoint.safetensors_io import (
    SafetensorsWriter,
    TensorSpec,
    read_array,
    read_header,
)
from edge_infer.errors import CheckpointError, StorageError, UnsupportedError


def write_raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_we_write_the_library_reads(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {
        "odd": rng.integers(0, 255, 3, np.uint8),
        "scales": rng.standard_normal((1, 3, 16)).astype(np.float16),
        "wide": rng.standard_normal((64, 33)).astype(np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "codes": rng.integers(-127, 128, (2, 8, 64), np.int8),
        "scalar": np.array(2.5, np.float32),
    }
    names = {"uint8": "U8", "float16": "F16", "float32": "F32", "int8": "I8"}
    specs = [TensorSpec(n, names[str(a.dtype)], a.shape) for n, a in arrays.items()]
    path = tmp_path / "model.safetensors"
    with SafetensorsWriter(path, specs, {"format": "pt"}) as w:
        w.write("wide", 33 * 4 * 32, arrays["wide"][32:])  # pieces arrive in any order
        for name, a in arrays.items():
            w.write(name, 0, a[:32] if name == "wide" else a)
    tensors, metadata = read_header(path)
    assert metadata == {"format": "pt"}
    for t in tensors.values():
        if t.nbytes % 64 == 0:
            assert t.offset % 64 == 0
        assert t.offset % min(t.nbytes & -t.nbytes or 64, 64) == 0
        assert np.array_equal(read_array(t), arrays[t.name])
    with safe_open(path, "numpy") as f:
        assert set(f.keys()) == set(arrays)
        for name, a in arrays.items():
            got = f.get_tensor(name)
            assert got.dtype == a.dtype and np.array_equal(got, a)


def test_what_the_library_writes_we_read(tmp_path):
    arrays = {"a": np.arange(7, dtype=np.float16), "b": np.ones((3, 5), np.float32)}
    save_file(arrays, tmp_path / "x.safetensors")
    tensors, _ = read_header(tmp_path / "x.safetensors")
    assert all(np.array_equal(read_array(tensors[n]), a) for n, a in arrays.items())


def test_an_incomplete_tensor_is_an_error(tmp_path):
    w = SafetensorsWriter(tmp_path / "x", [TensorSpec("a", "F32", (4,))])
    w.write("a", 0, np.zeros(3, np.float32))
    with pytest.raises(CheckpointError, match="not written completely"):
        w.close()


def test_writing_past_a_tensor_is_an_error(tmp_path):
    with (
        pytest.raises(CheckpointError, match="do not fit"),
        SafetensorsWriter(tmp_path / "x", [TensorSpec("a", "F32", (4,))]) as w,
    ):
        w.write("a", 8, np.zeros(3, np.float32))


def test_an_unwritable_place_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        SafetensorsWriter(tmp_path / "file" / "x", [])


BAD = {
    "too short": (b"abc", "too short"),
    "claims 2^60": (struct.pack("<Q", 1 << 60) + b"{}", "1152921504606846976"),
    "claims more than the file": (struct.pack("<Q", 5000) + b"{}", "claims a header"),
    "not JSON": (struct.pack("<Q", 4) + b"{{{{", "not valid JSON"),
    "not UTF-8": (struct.pack("<Q", 4) + b"\xff\xfe{}", "not valid JSON"),
    "a list": (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_prefix(tmp_path, name):
    raw, message = BAD[name]
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(CheckpointError, match=message):
        read_header(tmp_path / "x")


BAD_HEADERS = {
    "beyond the file": ({"a": entry(0, 64, [16])}, b"\0" * 32, "ends at byte"),
    "size disagrees": ({"a": entry(0, 32, [16])}, b"\0" * 32, "needs 64 bytes"),
    "2^60 elements": ({"a": entry(0, 4, [1 << 60])}, b"\0" * 4, "data_offsets hold 4"),
    "overlap": ({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, b"\0" * 12, "overlaps"),
    "gap": ({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, b"\0" * 12, "gap"),
    "unnamed bytes": ({"a": entry(0, 4, [1])}, b"\0" * 12, "no tensor names"),
    "negative shape": ({"a": entry(0, 4, [-1])}, b"\0" * 4, "impossible shape"),
    "fractional shape": ({"a": entry(0, 4, [1.0])}, b"\0" * 4, "impossible shape"),
    "boolean shape": ({"a": entry(0, 4, [True])}, b"\0" * 4, "impossible shape"),
    "many dimensions": ({"a": entry(0, 4, [1] * 1000)}, b"\0" * 4, "impossible shape"),
    "reversed offsets": ({"a": entry(4, 0, [1])}, b"\0" * 4, "impossible data_offsets"),
    "three offsets": (
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}},
        b"\0" * 4,
        "impossible data_offsets",
    ),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4, "lacks dtype"),
    "entry is a number": ({"a": 5}, b"", "malformed"),
    "metadata is a list": ({"__metadata__": []}, b"", "__metadata__"),
    "nested for ever": (b"[" * 200_000 + b"]" * 200_000, b"", "nested|not valid"),
    "repeated name": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"\0" * 2,
        "repeats the key",
    ),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_bad_header(tmp_path, name):
    header, data, message = BAD_HEADERS[name]
    with pytest.raises(CheckpointError, match=message):
        read_header(write_raw(tmp_path / "x", header, data))


def test_unknown_dtype_is_unsupported(tmp_path):
    with pytest.raises(UnsupportedError, match="F13"):
        read_header(write_raw(tmp_path / "x", {"a": entry(0, 4, [1], "F13")}, b"\0" * 4))
