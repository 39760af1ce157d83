"""The loops that measure the machine's ceilings do all of the work that they claim."""

from __future__ import annotations

import pytest

from edge_infer import _native
from edge_infer.errors import ConfigError, DeviceError

LEVELS = _native.available_levels()
# multiply-accumulates of one step of one thread
STEP = {
    ("avx2", "int8"): 12 * 32,
    ("avx2vnni", "int8"): 12 * 32,
    ("avx512", "int8"): 12 * 64,
    ("avx512bf16", "int8"): 12 * 64,
    ("avx512bf16", "bf16"): 12 * 32,
    ("amx", "int8"): 4 * 16 * 16 * 64,
    ("amx", "bf16"): 4 * 16 * 16 * 32,
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("level", LEVELS)
def test_every_word_is_read_once(level: str, threads: int) -> None:
    buffer = _native.roofline.ReadBuffer(_native.Team(threads), 1_000_000)
    assert buffer.bytes == 1_000_000 // threads // 4096 * 4096 * threads
    words = buffer.bytes // 8
    for _ in range(2):
        seconds, total = buffer.read(level)
        assert seconds > 0
        assert total == words * (words + 1) // 2


@pytest.mark.parametrize("steps", [1, 1000, (1 << 16) + 3])
@pytest.mark.parametrize(("level", "kind"), STEP)
def test_peak_counts_what_it_multiplied(level: str, kind: str, steps: int) -> None:
    if level not in LEVELS:
        pytest.skip(f"this machine has no {level}")
    operations, seconds = _native.roofline.peak(_native.Team(2), level, kind, steps)
    assert operations == 2 * steps * STEP[level, kind]
    assert seconds > 0


def test_a_level_without_instructions_of_its_own_has_no_peak() -> None:
    have = {(level, kind) for level in LEVELS for kind in ("int8", "bf16")}
    have = {(level, kind) for level, kind in have if _native.roofline.has_peak(level, kind)}
    assert have == {pair for pair in STEP if pair[0] in LEVELS}


def test_senseless_arguments() -> None:
    team = _native.Team(1)
    with pytest.raises(ConfigError, match="fp4"):
        _native.roofline.has_peak("scalar", "fp4")
    with pytest.raises(ConfigError, match="scalar has no int8"):
        _native.roofline.peak(team, "scalar", "int8", 1)
    with pytest.raises(ConfigError):
        _native.roofline.ReadBuffer(team, 100)
    with pytest.raises(DeviceError):
        _native.roofline.ReadBuffer(team, 4096).read("mmx")
