"""Weight files in memory: the three modes, and a file that is truncated under a running engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_infer import _native
from edge_infer.errors import CheckpointError, ConfigError, DeviceError, StorageError
from edge_infer.harness.memory import process_memory

N, K = 4096, 1024


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "w.bin"
    np.random.default_rng(0).standard_normal((N, K)).astype(np.float32).tofile(path)
    return path


@pytest.mark.parametrize("mode", ["mapped", "resident", "locked"])
def test_modes_read_the_same(weights, mode) -> None:
    try:
        m = _native.WeightMap(str(weights), mode)
    except DeviceError as e:
        assert mode == "locked" and "RLIMIT_MEMLOCK" in str(e)
        pytest.skip(e.message)
    v = m.vector(4 * K, K, "F32").numpy()
    np.testing.assert_array_equal(v, np.fromfile(weights, np.float32, K, offset=4 * K))
    assert not m.lost


def test_out_of_range_and_missing(weights, tmp_path) -> None:
    m = _native.WeightMap(str(weights))
    for offset, n in ((0, N * K + 1), (4 * N * K, 1), (-4, 1), (1 << 62, 1)):
        with pytest.raises(CheckpointError):
            m.vector(offset, n, "F32")
    with pytest.raises(CheckpointError):
        m.matrix(0, N + 1, K, "F32")
    with pytest.raises(ConfigError):
        _native.WeightMap(str(weights), "pinned")
    for bad in (tmp_path / "nothing", tmp_path):
        with pytest.raises(StorageError):
            _native.WeightMap(str(bad))
    (tmp_path / "empty").touch()
    with pytest.raises(StorageError):
        _native.WeightMap(str(tmp_path / "empty"))


def test_a_file_that_is_not_cached_is_read_in_large_pages(tmp_path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(16 << 20))

    def mapped(drop: bool) -> tuple[set[str], int]:
        """The flags of the map, and how many bytes of it lie in pages of 2 MiB once it was read."""
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        if drop:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        m = _native.WeightMap(str(path))
        assert not m.vector(0, 4 << 20, "F32").numpy().any()
        entry = Path("/proc/self/smaps").read_text().split(str(path))[1]
        pages, flags = (
            entry.split(name + ":")[1].split("\n")[0] for name in ("FilePmdMapped", "VmFlags")
        )
        return set(flags.split()), 1024 * int(pages.split()[0])

    flags, large = mapped(drop=True)
    if not large:
        pytest.skip("This file system has no pages of 2 MiB.")
    assert {"hg", "rr"} <= flags  # read-ahead would end inside of large pages
    assert large <= 16 << 20
    flags, _ = mapped(drop=False)
    assert "hg" in flags and "rr" not in flags  # nothing to find out from


def test_resident_is_anonymous_and_mapped_is_not(weights) -> None:
    size = N * K * 4
    for mode, anonymous in (("mapped", False), ("resident", True)):
        before = process_memory(os.getpid()).anonymous
        m = _native.WeightMap(str(weights), mode)
        m.vector(0, N * K, "F32").numpy()[0]
        grown = process_memory(os.getpid()).anonymous - before
        assert (grown > size / 2) == anonymous
        del m


def test_truncated_file_is_an_error_not_a_signal(weights) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {os.getcwd()!r})
import numpy as np
from edge_infer import _native
from edge_infer.errors import WeightsLostError
from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.values import Linear
from tests.native.test_team import step
m = _native.WeightMap({str(weights)!r})
p = ProgramBuilder(max_rows=1, max_outputs=1)
table = Linear(m.matrix(0, {N}, {K}, "F32"))
x = p.embed(table, width={K})
p.output("y", p.linear(p.gather(x), table))
native = p.create(_native.Team(2), None, [m])
step(native, p.outputs["y"], [1])
os.truncate({str(weights)!r}, 4096)
for _ in range(2):  # the state stays bad until the model is opened again
    try:
        step(native, p.outputs["y"], [1])
    except WeightsLostError as e:
        print(e.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["weights_lost", "weights_lost"]
