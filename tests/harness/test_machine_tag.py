"""Names of machines in names of artifacts."""

from __future__ import annotations

import re

import pytest

from edge_infer import _native
from edge_infer.harness.machine_tag import machine_tag, microarchitecture


def cpuinfo(vendor: str, family: int, model: int) -> str:
    return (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
        "model name\t: whatever the host says\nstepping\t: 1\n"
    )


@pytest.mark.parametrize(
    ("vendor", "family", "model", "expected"),
    [
        ("AuthenticAMD", 25, 17, "zen4"),
        ("AuthenticAMD", 25, 1, "zen3"),
        ("AuthenticAMD", 25, 0x61, "zen4"),
        ("GenuineIntel", 6, 207, "emeraldrapids"),
        ("GenuineIntel", 6, 143, "sapphirerapids"),
    ],
)
def test_known_models(vendor: str, family: int, model: int, expected: str) -> None:
    assert microarchitecture(cpuinfo(vendor, family, model), "AMD EPYC") == expected


@pytest.mark.parametrize(
    ("text", "brand", "expected"),
    [
        (cpuinfo("GenuineIntel", 6, 1), "Intel(R) Core(TM) CPU X @ 3.00GHz", "intel-core-x"),
        ("", "AMD EPYC", "amd-epyc"),
        ("nonsense", "", "unknown"),
    ],
)
def test_others_are_called_by_their_brand(text: str, brand: str, expected: str) -> None:
    assert microarchitecture(text, brand) == expected


def test_this_machine_has_a_tag_that_is_a_file_name() -> None:
    tag = machine_tag()
    assert re.fullmatch(r"[a-z0-9-]+", tag)
    assert tag.endswith("-" + _native.active_level())
