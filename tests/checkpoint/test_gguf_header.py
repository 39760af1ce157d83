"""The GGUF header parser: right on good files, bounded and named on hostile ones."""

import struct
import time

import gguf
import numpy as np
import pytest
from model_files import write_gguf

from edge_infer.checkpoint.gguf_header import TENSOR_TYPES, is_gguf, read_header
from edge_infer.errors import CheckpointError, UnsupportedError


def text(s):
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def field(key, kind, raw):
    return text(key) + struct.pack("<I", kind) + raw


def array(kind, count, raw):
    return struct.pack("<IQ", kind, count) + raw


def tensor(name, dims, kind=0, offset=0):
    out = text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
    return out + struct.pack("<IQ", kind, offset)


def build(path, fields=(), tensors=(), data=0, *, version=3, counts=None, alignment=32):
    n_tensors, n_fields = counts or (len(tensors), len(fields))
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_fields)
    head += b"".join(fields) + b"".join(tensors)
    path.write_bytes(head + b"\0" * (-len(head) % alignment + data))
    return path


def test_agrees_with_the_gguf_library(tmp_path):
    path = tmp_path / "m.gguf"
    types = [t[0] for t in TENSOR_TYPES.values()]
    write_gguf(path, "llama", types, fields={"a.list": [1, 2, 3], "b.flag": True})
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    assert ours.version == 3 and is_gguf(path)
    keys = {k for k in theirs.fields if not k.startswith("GGUF.")}
    assert set(ours.fields) == keys
    for key in keys:
        assert ours.fields[key] == theirs.fields[key].contents(), key
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        info = ours.tensors[t.name]
        assert (info.offset, info.nbytes, info.type) == (
            t.data_offset, t.n_bytes, t.tensor_type.name)  # fmt: skip
        assert info.shape == tuple(reversed(t.shape.tolist()))


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(tmp_path, version):
    values = {
        "u8": (0, struct.pack("<B", 200), 200), "i8": (1, struct.pack("<b", -5), -5),
        "u16": (2, struct.pack("<H", 60000), 60000), "i16": (3, struct.pack("<h", -300), -300),
        "u32": (4, struct.pack("<I", 1 << 31), 1 << 31), "i32": (5, struct.pack("<i", -7), -7),
        "f32": (6, struct.pack("<f", 0.5), 0.5), "bool": (7, b"\1", True),
        "string": (8, text("grüße"), "grüße"), "u64": (10, struct.pack("<Q", 1 << 63), 1 << 63),
        "i64": (11, struct.pack("<q", -(1 << 40)), -(1 << 40)),
        "f64": (12, struct.pack("<d", 0.1), 0.1),
        "strings": (9, array(8, 2, text("a") + text("")), ["a", ""]),
        "bools": (9, array(7, 3, b"\1\0\1"), [True, False, True]),
        "floats": (9, array(6, 2, struct.pack("<ff", 1, 2)), [1.0, 2.0]),
        "none": (9, array(4, 0, b""), []),
    }  # fmt: skip
    fields = [field(k, kind, raw) for k, (kind, raw, _) in values.items()]
    header = read_header(build(tmp_path / "x", fields, version=version))
    assert header.fields == {k: v for k, (_, _, v) in values.items()}
    assert [type(v) for v in header.fields.values()] == [type(v[2]) for v in values.values()]


def test_alignment(tmp_path):
    fields = [field("general.alignment", 4, struct.pack("<I", 128))]
    path = build(tmp_path / "x", fields, [tensor("a", [4])], 16, alignment=128)
    assert read_header(path).tensors["a"].offset % 128 == 0


BIG = 1 << 60
HOSTILE = {
    "no magic": (lambda p: p.write_bytes(b"GGML" + b"\0" * 60), "no"),
    "empty": (lambda p: p.write_bytes(b""), "not a GGUF file"),
    "cut in the counts": (lambda p: p.write_bytes(b"GGUF\3\0\0\0\1"), "not a GGUF file"),
    "2^60 tensors": (lambda p: build(p, counts=(BIG, 0)), "limit"),
    "2^60 fields": (lambda p: build(p, counts=(0, BIG)), "limit"),
    "more tensors than bytes": (lambda p: build(p, counts=(5000, 0)), "cannot fit"),
    "more fields than bytes": (lambda p: build(p, counts=(0, 5000)), "cannot fit"),
    "key of 2^60": (lambda p: build(p, [struct.pack("<Q", BIG) + b"x" * 40]), "limit"),
    "key of 2^64-1": (lambda p: build(p, [b"\xff" * 8 + b"x" * 40]), "limit"),
    "string beyond the file": (
        lambda p: build(p, [text("k") + struct.pack("<IQ", 8, 100000)]), "cannot fit"),
    "array of 2^60": (lambda p: build(p, [field("k", 9, array(4, BIG, b""))]), "limit"),
    "array beyond the file": (
        lambda p: build(p, [field("k", 9, array(4, 100000, b""))]), "cannot fit"),
    "strings beyond the file": (
        lambda p: build(p, [field("k", 9, array(8, 1000, text("x")))]), "cannot fit"),
    "array of arrays": (
        lambda p: build(p, [field("k", 9, array(9, 1, array(4, 0, b"")))]), "array of arrays"),
    "unknown value type": (lambda p: build(p, [field("k", 77, b"\0" * 8)]), "value type 77"),
    "unknown array type": (
        lambda p: build(p, [field("k", 9, array(77, 1, b"\0" * 8))]), "value type 77"),
    "boolean of 2": (lambda p: build(p, [field("k", 7, b"\2")]), "neither 0 nor 1"),
    "repeated key": (lambda p: build(p, [field("k", 0, b"\0")] * 2), "appears twice"),
    "key that is no UTF-8": (lambda p: build(p, [field(b"\xff\xfe", 0, b"\0")]), "not UTF-8"),
    "string that is no UTF-8": (lambda p: build(p, [field("k", 8, text(b"\xc3"))]), "not UTF-8"),
    "alignment 0": (
        lambda p: build(p, [field("general.alignment", 4, b"\0" * 4)]), "alignment is 0"),
    "alignment 24": (
        lambda p: build(p, [field("general.alignment", 4, b"\x18\0\0\0")]), "alignment is 24"),
    "alignment of text": (
        lambda p: build(p, [field("general.alignment", 8, text("x"))]), "alignment is x"),
    "no dimensions": (lambda p: build(p, (), [tensor("a", [])]), "0 dimensions"),
    "2^31 dimensions": (
        lambda p: build(p, (), [text("a") + struct.pack("<I", 1 << 31) + b"\0" * 64]),
        "2147483648 dimensions"),
    "dimension 0": (lambda p: build(p, (), [tensor("a", [0, 5])], 64), "cannot fit"),
    "2^60 weights": (lambda p: build(p, (), [tensor("a", [BIG])], 64), "cannot fit"),
    "a product that overflows 64 bits": (
        lambda p: build(p, (), [tensor("a", [1 << 33, 1 << 33])], 64), "cannot fit"),
    "part of a block": (lambda p: build(p, (), [tensor("a", [33], 2)], 64), "block 32"),
    "tensor beyond the file": (
        lambda p: build(p, (), [tensor("a", [16], 0, 32)], 64), "truncated"),
    "offset of 2^64-32": (
        lambda p: build(p, (), [tensor("a", [16], 0, (1 << 64) - 32)], 64), "truncated"),
    "misaligned": (lambda p: build(p, (), [tensor("a", [4], 0, 4)], 64), "multiple of 32"),
    "overlap": (
        lambda p: build(p, (), [tensor("a", [16]), tensor("b", [16], 0, 32)], 128), "overlaps"),
    "one name twice": (
        lambda p: build(p, (), [tensor("a", [4]), tensor("a", [4], 0, 32)], 64), "appears twice"),
    "name too long": (lambda p: build(p, (), [tensor("a" * 300, [4])], 64), "limit is 256"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_at_once(tmp_path, name):
    make, message = HOSTILE[name]
    make(tmp_path / "x")
    start = time.perf_counter()
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        read_header(tmp_path / "x")
    assert time.perf_counter() - start < 30  # a hang, not a slow machine


@pytest.mark.parametrize(
    "version,message", [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")]
)
def test_other_versions_are_unsupported(tmp_path, version, message):
    with pytest.raises(UnsupportedError, match=message):
        read_header(build(tmp_path / "x", version=version))


@pytest.mark.parametrize(
    "kind,label", [(10, "Q2_K"), (23, "IQ4_XS"), (4, "number 4"), (999, "999")]
)
def test_unknown_tensor_types_are_listed(tmp_path, kind, label):
    path = build(tmp_path / "x", (), [tensor("a", [256], kind)], 512)
    with pytest.raises(UnsupportedError, match=rf"'a' has type .*{label}.*reads F32, F16, Q4_0"):
        read_header(path)


def test_arrays_are_limited_together(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_infer.checkpoint.gguf_header.ENTRIES_LIMIT", 100)
    fields = [field(f"k{i}", 9, array(0, 60, b"\0" * 60)) for i in range(2)]
    with pytest.raises(CheckpointError, match="more than 100 entries"):
        read_header(build(tmp_path / "x", fields))


def test_a_large_vocabulary(tmp_path):
    n = 262144
    tokens = b"".join(text(f"token{i}") for i in range(n))
    scores = np.arange(n, dtype=np.float32).tobytes()
    fields = [field("t", 9, array(8, n, tokens)), field("s", 9, array(6, n, scores))]
    path = build(tmp_path / "x", fields)
    header = read_header(path)
    assert header.fields["t"][-1] == f"token{n - 1}" and header.fields["s"][-1] == float(n - 1)


def test_unreadable(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(tmp_path)
    assert not is_gguf(tmp_path) and not is_gguf(tmp_path / "missing")
