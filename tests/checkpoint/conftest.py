"""Fixtures shared by the tests of this room."""

import pytest

from edge_infer.checkpoint import Checkpoint, layout
from edge_infer.checkpoint.safetensors_io import read_array


@pytest.fixture
def values():
    """Reads any module or tensor of a folder back as numbers: packed ones dequantized."""

    def read(folder, name):
        c = folder if isinstance(folder, Checkpoint) else Checkpoint.open(folder)
        module = name.removesuffix(".weight")
        if module not in c.matrices:
            return read_array(c.tensors[name])
        m = c.matrices[module]
        minimums = read_array(m.minimums) if m.minimums else None
        return layout.dequantize(
            read_array(m.codes), read_array(m.scales), minimums, n=m.n, k=m.k, bits=m.bits
        )

    return read


@pytest.fixture
def no_tokenizer(monkeypatch):
    """Conversion of GGUFs whose made-up vocabulary no tokenizer could be built from."""
    import sys
    from types import SimpleNamespace

    name = "edge_infer.checkpoint.tokenizer_gguf"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(export=lambda fields, folder: []))
