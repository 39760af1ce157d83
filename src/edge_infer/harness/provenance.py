"""Where a measurement comes from: code, compiler, machine, its load, and the checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edge_infer import _native
from edge_infer.device import cpu_budget, memory_budget
from edge_infer.device.probe import cpu_governor
from edge_infer.harness.schema import (
    CheckpointFile,
    CheckpointIdentity,
    EngineBuild,
    Machine,
    MachineLoad,
    Provenance,
    Scalar,
)

ENVIRONMENT_PREFIXES = ("EDGE_INFER_", "OMP_", "GOMP_", "KMP_", "MALLOC_", "OPENBLAS_", "GGML_")
HASH_LIMIT = 8 << 30


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _git(*args: str) -> str | None:
    """Output of git in edge-infer's source tree, or None where there is none."""
    source = Path(__file__).resolve().parent
    try:
        result = subprocess.run(
            ["git", "-C", str(source), *args], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def edge_infer_build() -> EngineBuild:
    """The edge-infer that is running."""
    try:
        release = version("edge-infer")
    except PackageNotFoundError:
        release = "unknown"
    # An installed copy inside some other project's repository must not borrow its commit.
    tracked = _git("ls-files", "--error-unmatch", "provenance.py") is not None
    commit = _git("rev-parse", "HEAD") if tracked else None
    status = _git("status", "--porcelain", "--untracked-files=no") if tracked else None
    build = _native.build_info()
    return EngineBuild(
        name="edge-infer",
        version=release,
        commit=commit,
        dirty=None if status is None else bool(status),
        compiler=build["compiler"],
        flags=build["flags"],
    )


def _cpu_times() -> dict[str, int]:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    with open("/proc/stat", encoding="ascii") as file:
        fields = file.readline().split()[1:]
    return {name: int(value) for name, value in zip(names, fields, strict=False)}


def machine_load(seconds: float = 1.0) -> MachineLoad:
    """Watches /proc/stat for ``seconds``: what others use, as long as the caller sleeps in here."""
    before = _cpu_times()
    time.sleep(seconds)
    after = _cpu_times()
    spent = {name: after[name] - before.get(name, 0) for name in after}
    total = max(1, sum(spent.values()))
    idle = spent.get("idle", 0) + spent.get("iowait", 0)
    steal = spent.get("steal", 0)
    return MachineLoad(
        seconds=seconds,
        load_average=os.getloadavg(),
        busy=max(0.0, (total - idle - steal) / total),
        steal=steal / total,
        iowait=spent.get("iowait", 0) / total,
    )


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def provenance(load_seconds: float = 1.0) -> Provenance:
    """Everything about the run that is not the run; sleeps ``load_seconds`` to see the load."""
    cpus, memory = cpu_budget(), memory_budget()
    return Provenance(
        edge_infer=edge_infer_build(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        machine=Machine(
            cpu=_native.cpu_brand(),
            isa_levels=list(_native.available_levels()),
            physical_cores=len(cpus.cores),
            affinity=list(cpus.affinity),
            quota_cpus=cpus.quota,
            memory_total=memory.total,
            memory_available=memory.available,
            kernel=f"{platform.system()} {platform.release()}",
            governor=cpu_governor(),
            transparent_huge_pages=_first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
            load=machine_load(load_seconds),
        ),
        environment={
            name: portable([value])[0]
            for name, value in sorted(os.environ.items())
            if name.startswith(ENVIRONMENT_PREFIXES)
        },
    )


def portable(command: Sequence[str]) -> list[str]:
    """A command line with absolute paths cut to their last part: artifacts are published."""

    def cut(word: str) -> str:
        name, equals, value = word.rpartition("=")
        if value.startswith("/"):
            return name + equals + (Path(value).name or "/")
        return word

    return [cut(word) for word in command]


_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/'\":]+/)+")


def portable_text(text: str) -> str:
    """Text, such as a traceback, with absolute paths cut to their last part."""
    return _FOLDERS.sub("", text)


def sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def _files(path: Path) -> Iterable[Path]:
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.is_file())
    return [path]


def _source(path: Path) -> dict[str, Scalar]:
    """The scalars of provenance.json, one level flattened with dots."""
    try:
        document = json.loads((path / "provenance.json").read_text())
    except (OSError, ValueError):
        return {}
    flat: dict[str, Scalar] = {}
    for key, value in document.items() if isinstance(document, dict) else ():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for name, leaf in inner:
            if isinstance(leaf, str | int | float | bool) or leaf is None:
                flat[f"{key}.{name}" if name else key] = leaf
    return flat


def file_identity(path: Path, hash_limit: int = HASH_LIMIT) -> CheckpointIdentity:
    """Identity of a model by its files alone: a GGUF file, or a folder of any kind."""
    files = [
        CheckpointFile(
            name=file.name,
            bytes=file.stat().st_size,
            sha256=sha256(file) if file.stat().st_size <= hash_limit else None,
        )
        for file in _files(path)
    ]
    return CheckpointIdentity(
        name=path.resolve().name,
        bytes=sum(f.bytes for f in files),
        files=files,
        source=_source(path) if path.is_dir() else {},
    )
