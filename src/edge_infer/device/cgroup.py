"""Where this process's control group is mounted, for cgroup v1 and v2, whole or in a container."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Roots:
    """The file trees that are read; tests plant their own."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def on_host(self, path: str) -> Path:
        """Maps an absolute path out of a kernel file (``/sys/fs/cgroup``) into the tree read."""
        parts = Path(path).parts
        return self.sys.joinpath(*parts[2:]) if parts[:2] == ("/", "sys") else Path(path)


HOST = Roots()


def read_text(path: Path) -> str | None:
    """The file's text, or None where it is absent or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _unescape(field: str) -> str:
    # mountinfo writes space, tab, newline and backslash in octal.
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def _mounts(roots: Roots) -> list[tuple[str, str, str, set[str]]]:
    """(root, mount point, file system type, super options) of every cgroup mount."""
    found = []
    for line in (read_text(roots.proc / "self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, after = left.split(), right.split()
        if len(fields) >= 5 and len(after) >= 3 and after[0] in ("cgroup", "cgroup2"):
            options = set(after[2].split(","))
            found.append((_unescape(fields[3]), _unescape(fields[4]), after[0], options))
    return found


def _levels(mount: Path, root: str, group: str) -> list[Path]:
    """The group's directory and every ancestor up to the mount point, innermost first."""
    relative = group
    if root != "/" and (group == root or group.startswith(root.rstrip("/") + "/")):
        # A bind-mounted container tree: the group's path is given from the host's root.
        relative = group[len(root) :]
    parts = [p for p in relative.split("/") if p and p != ".."]
    while parts and not mount.joinpath(*parts).is_dir():
        # Without a cgroup namespace a container sees only its own directory, at the mount point.
        parts = parts[1:]
    return [mount.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def group_levels(controller: str, roots: Roots = HOST) -> list[tuple[int, Path]]:
    """Directories that limit this process for ``controller`` ("memory" or "cpu").

    Returns (cgroup version, directory) pairs, innermost first; a limit at any level counts.
    """
    groups: dict[str, str] = {}
    for line in (read_text(roots.proc / "self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            groups["cgroup2"] = path
        for name in names.split(","):
            if name:
                groups[name] = path
    found: list[tuple[int, Path]] = []
    for root, point, kind, options in _mounts(roots):
        mount = roots.on_host(point)
        if kind == "cgroup2" and "cgroup2" in groups:
            found += [(2, p) for p in _levels(mount, root, groups["cgroup2"])]
        elif kind == "cgroup" and controller in options and controller in groups:
            found += [(1, p) for p in _levels(mount, root, groups[controller])]
    return found
