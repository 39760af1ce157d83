"""What is right and wrong with an installation: findings with a remedy each.

Only package metadata and /proc are read; nothing that an extra brings is imported.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from edge_infer.device.budget import memory_budget
from edge_infer.device.probe import cpu_budget
from edge_infer.errors import EdgeInferError

OK, WARNING, REFUSED = "ok", "warning", "refused"
EXTRAS = ("serve", "bench", "demo", "vllm")
_LITTLE_MEMORY = 1 << 30
_LITTLE_DISK = 2 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    status: str
    """``ok``, ``warning`` (works, but not as it should) or ``refused`` (will not work)."""
    text: str
    remedy: str = ""
    """What to do about it; empty for ``ok``."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def machine_findings(cache: Path) -> list[Finding]:
    """Python, the native module, the CPU, memory, and the disk of converted models."""
    return [_python(), *_cpu(), _memory(), _disk(cache)]


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _python() -> Finding:
    text = f"{platform.python_implementation()} {platform.python_version()}, {sys.prefix}"
    if sys.platform != "linux":
        return Finding(
            "Python", REFUSED, text, "Use Linux: memory is mapped and read as it has it."
        )
    return Finding("Python", OK, text)


def _cpu() -> list[Finding]:
    try:
        from edge_infer import _native

        active, available = _native.active_level(), list(_native.available_levels())
    except ImportError as e:
        remedy = "Install edge-infer again with this Python."
        return [Finding("native module", REFUSED, f"It cannot be loaded: {e}.", remedy)]
    except EdgeInferError as e:
        return [Finding("CPU", REFUSED, e.message, e.remedy)]
    cpus = cpu_budget()
    text = f"{_native.cpu_brand()}: {active} of {', '.join(available)}; {cpus.threads} threads"
    if active == "scalar":
        remedy = "Unset EDGE_INFER_ISA." if len(available) > 1 else "Use a CPU with AVX2."
        return [Finding("CPU", WARNING, text + "; no vector instructions are used", remedy)]
    return [Finding("CPU", OK, text)]


def _memory() -> Finding:
    budget = memory_budget()
    text = f"{_gigabytes(budget.available)} free of {_gigabytes(budget.total)}"
    if budget.available < _LITTLE_MEMORY:
        return Finding("memory", WARNING, text, "End other programs, or raise the cgroup limit.")
    return Finding("memory", OK, text)


def _disk(cache: Path) -> Finding:
    place = cache
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{_gigabytes(free)} free for converted models in {cache}"
    remedy = "Set EDGE_INFER_CACHE to another folder."
    if not os.access(place, os.W_OK):
        return Finding("disk", WARNING, f"{place} cannot be written.", remedy)
    if free < _LITTLE_DISK:
        return Finding("disk", WARNING, text, f"Free some space there. {remedy}")
    return Finding("disk", OK, text)


def extra_findings(
    extras: Iterable[str] = EXTRAS, distribution: str = "edge-infer"
) -> list[Finding]:
    """For each extra: whether its packages are installed, in the versions that it asks for."""
    try:
        wanted = [Requirement(text) for text in requires(distribution) or ()]
    except PackageNotFoundError:
        text = "edge-infer is imported from a folder that pip knows nothing of."
        return [Finding("extras", WARNING, text, "pip install edge-infer")]
    return [_base(wanted, distribution)] + [_extra(name, wanted, distribution) for name in extras]


def _base(wanted: list[Requirement], distribution: str) -> Finding:
    own = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    wrong = [reason for r in own if (reason := unmet(r))]
    if wrong:
        return Finding("packages", REFUSED, "; ".join(wrong), f"pip install '{distribution}'")
    return Finding(
        "packages", OK, f"{distribution} {version(distribution)}, all {len(own)} present"
    )


def _extra(name: str, wanted: list[Requirement], distribution: str) -> Finding:
    subject, remedy = f"extra [{name}]", f"pip install '{distribution}[{name}]'"
    own = [
        r
        for r in wanted
        if r.marker and r.marker.evaluate({"extra": name}) and not r.marker.evaluate({"extra": ""})
    ]
    if not own:
        text = f"this installation of {distribution} has no such extra"
        return Finding(subject, WARNING, text, f"Install {distribution} again.")
    wrong = [reason for r in own if (reason := unmet(r))]
    absent = [text for text in wrong if text.endswith("is missing")]
    if not wrong:
        return Finding(subject, OK, "installed")
    if len(absent) == len(own):
        return Finding(subject, OK, f"not installed ({remedy})")
    return Finding(subject, WARNING, "; ".join(wrong), remedy)


def unmet(requirement: Requirement) -> str | None:
    """Why a requirement is not met, from metadata; None where it is."""
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    if not requirement.specifier.contains(found, prereleases=True):
        return f"{requirement.name} is {found}, not {requirement.specifier}"
    return None
