"""llama-perplexity's file of log-probabilities."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from edge_infer.errors import CheckpointError
from edge_infer.harness.divergence import log_softmax
from edge_infer.harness.logits_file import LogitsFile, LogitsWriter, is_logits_file, scored


def test_read_what_the_format_says(tmp_path) -> None:
    """Bytes put together by hand: 1 chunk of 4 tokens over 3 words, so 1 scored position."""
    rows = struct.pack("<ff", 0.5, -9.0) + struct.pack("<4H", 0, 10, 18, 0)
    data = b"_logits_" + struct.pack("<3i4i", 4, 3, 1, 2, 0, 1, 2) + rows
    (tmp_path / "f").write_bytes(data)
    file = LogitsFile(tmp_path / "f")
    assert (file.context, file.vocab_size, file.chunks) == (4, 3, 1)
    assert file.tokens.tolist() == [[2, 0, 1, 2]]
    assert list(scored(4)) == [2]
    assert file.log_probabilities(0, 0, 1).tolist() == [[-9.0, -4.0, 0.0]]
    assert is_logits_file(tmp_path / "f")
    assert not is_logits_file(tmp_path)


@pytest.mark.parametrize("vocab", [64, 65])
def test_written_and_read_back(vocab, tmp_path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab, (2, 8)).astype(np.int32)
    logits = (rng.standard_normal((2, 3, vocab)) * 4).astype(np.float32)
    logits[0, 0, 0] = -40.0  # deeper than the format reaches
    writer = LogitsWriter(tmp_path / "f", tokens, vocab)
    for chunk in logits:
        writer.add(chunk[:2])
        writer.add(chunk[2:])
    writer.close()
    file = LogitsFile(tmp_path / "f")
    assert np.array_equal(file.tokens, tokens)
    for chunk in range(2):
        exact = np.stack([log_softmax(row) for row in logits[chunk]])
        want = np.maximum(exact, exact.max(axis=1, keepdims=True) - 16)
        got = file.log_probabilities(chunk, 0, 3)
        assert np.abs(got - want).max() < 16 / 65535
        assert np.array_equal(file.log_probabilities(chunk, 1, 3), got[1:])


def test_damaged_files_are_refused(tmp_path) -> None:
    path = tmp_path / "f"
    writer = LogitsWriter(path, np.zeros((1, 8), np.int32), 10)
    writer.add(np.zeros((3, 10), np.float32))
    writer.close()
    whole = path.read_bytes()
    for data, what in (
        (whole[:-1], "bytes; "),
        (whole + b"x", "bytes; "),
        (b"_logitz_" + whole[8:], "no log-probabilities"),
        (whole[:10], "no log-probabilities"),
        (whole[:8] + struct.pack("<3i", 8, 10, -1) + whole[20:], "claims"),
        (whole[:20] + struct.pack("<i", 10) + whole[24:], "outside its vocabulary"),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=what):
            LogitsFile(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        LogitsFile(tmp_path / "missing")
