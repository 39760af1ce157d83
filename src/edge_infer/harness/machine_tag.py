"""A short name of the machine for names of artifacts: its microarchitecture and best ISA level.

``python -m edge_infer.harness.machine_tag`` prints it, for example ``zen4-avx512bf16``. Virtual
machines often hide the product's name, so family and model decide where they are known.
"""

from __future__ import annotations

import re
from pathlib import Path

from edge_infer import _native

# (vendor, family): ranges of models, first to last
_KNOWN: dict[tuple[str, int], list[tuple[int, int, str]]] = {
    ("AuthenticAMD", 0x17): [(0x00, 0x2F, "zen"), (0x30, 0xAF, "zen2")],
    ("AuthenticAMD", 0x19): [
        (0x00, 0x0F, "zen3"),
        (0x10, 0x1F, "zen4"),
        (0x20, 0x5F, "zen3"),
        (0x60, 0xAF, "zen4"),
    ],
    ("AuthenticAMD", 0x1A): [(0x00, 0xFF, "zen5")],
    ("GenuineIntel", 0x06): [
        (0x3C, 0x3F, "haswell"),
        (0x4F, 0x4F, "broadwell"),
        (0x55, 0x55, "skylake-x"),
        (0x6A, 0x6C, "icelake-x"),
        (0x8F, 0x8F, "sapphirerapids"),
        (0x97, 0x9A, "alderlake"),
        (0xAD, 0xAE, "graniterapids"),
        (0xAF, 0xAF, "sierraforest"),
        (0xB7, 0xBF, "raptorlake"),
        (0xCF, 0xCF, "emeraldrapids"),
    ],
}


def microarchitecture(cpuinfo: str, brand: str) -> str:
    """From the text of /proc/cpuinfo, or else the brand string in letters, digits and dashes."""
    found = {}
    for name in ("vendor_id", "cpu family", "model"):
        match = re.search(rf"^{name}\s*:\s*(\S+)\s*$", cpuinfo, re.MULTILINE)
        found[name] = match.group(1) if match else ""
    if found["cpu family"].isdigit() and found["model"].isdigit():
        key, model = (found["vendor_id"], int(found["cpu family"])), int(found["model"])
        for first, last, name in _KNOWN.get(key, []):
            if first <= model <= last:
                return name
    plain = re.sub(r"\((r|tm)\)|\bcpu\b|@.*|processor", " ", brand, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:40] or "unknown"


def machine_tag() -> str:
    """Of this machine and the level that the engine uses on it."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpuinfo = ""
    return f"{microarchitecture(cpuinfo, _native.cpu_brand())}-{_native.active_level()}"


if __name__ == "__main__":
    print(machine_tag())
