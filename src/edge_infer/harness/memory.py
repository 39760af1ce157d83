"""Memory of a process and its descendants, read from /proc.

Snapshots read smaps_rollup (exact, walks the page tables); the peak sampler reads the counters of
/proc/<pid>/status (cheap, so that watching does not slow down what is watched).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from edge_infer.device.usage import kilobyte_fields
from edge_infer.harness.schema import MemoryReport, ProcessMemory, TreeMemory

PROC = Path("/proc")
_NOTICEABLE = 1 << 20


def process_tree(pid: int, proc: Path = PROC) -> list[int]:
    """``pid`` and every descendant alive now, the root first.

    A session leader's session belongs to it, so a worker whose parent has ended is not lost.
    """
    children: dict[int, list[int]] = {}
    session: list[int] = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue
        # The name in parentheses may hold spaces and parentheses itself.
        fields = stat.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        if int(fields[3]) == pid:
            session.append(int(entry.name))
    found: dict[int, None] = {}  # ordered
    queue = [pid]
    while queue or session:
        current = queue.pop(0) if queue else session.pop(0)
        if current not in found:
            found[current] = None
            queue += sorted(children.get(current, []))
    return list(found)


def process_memory(pid: int, proc: Path = PROC) -> ProcessMemory | None:
    """Exact memory of one process, or None where it has ended or may not be read."""
    try:
        rollup = kilobyte_fields((proc / str(pid) / "smaps_rollup").read_text())
        status = kilobyte_fields((proc / str(pid) / "status").read_text(errors="replace"))
        name = (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except (OSError, ValueError):
        return None
    if "Rss" not in rollup:  # a zombie has no memory map
        return None
    rss, anonymous = rollup["Rss"], rollup.get("Anonymous", 0)
    shmem = min(status.get("RssShmem", 0), rss - anonymous)
    return ProcessMemory(
        pid=pid,
        name=name,
        rss=rss,
        pss=rollup.get("Pss", 0),
        anonymous=anonymous,
        file_backed=max(0, rss - anonymous - shmem),
        shared_memory=shmem,
        shared=rollup.get("Shared_Clean", 0) + rollup.get("Shared_Dirty", 0),
        swap=rollup.get("Swap", 0),
    )


def tree_memory(
    pid: int, moment: str, proc: Path = PROC, left_out: Collection[int] = ()
) -> TreeMemory:
    """Exact memory of a process and its descendants, without those ``left_out``."""
    pids = [p for p in process_tree(pid, proc) if p not in left_out]
    processes = [m for p in pids if (m := process_memory(p, proc)) is not None]

    def total(field: str) -> int:
        return sum(getattr(m, field) for m in processes)

    return TreeMemory(
        moment=moment,
        rss=total("rss"),
        pss=total("pss"),
        anonymous=total("anonymous"),
        file_backed=total("file_backed"),
        shared_memory=total("shared_memory"),
        shared=total("shared"),
        swap=total("swap"),
        processes=processes,
    )


def _counters(pids: Iterable[int], proc: Path) -> tuple[int, int, int]:
    """(anonymous, rss, file-backed) bytes summed over processes, from the kernel's counters."""
    anonymous = rss = file_backed = 0
    for pid in pids:
        try:
            fields = kilobyte_fields((proc / str(pid) / "status").read_text(errors="replace"))
        except OSError:
            continue
        anonymous += fields.get("RssAnon", 0)
        rss += fields.get("VmRSS", 0)
        file_backed += fields.get("RssFile", 0)
    return anonymous, rss, file_backed


class PeakSampler:
    """Watches a process tree from a thread and keeps the peaks.

    Use as a context manager around the run, or call start() and stop().
    """

    def __init__(
        self,
        pid: int,
        interval: float = 0.02,
        proc: Path = PROC,
        *,
        keep_tree: bool = False,
        wrapper: bool = False,
    ) -> None:
        """``keep_tree``: exact snapshots too, whenever memory has grown, of which the one with the
        most anonymous memory is kept; ``wrapper``: ``pid`` itself only runs the measured one.
        """
        self.pid, self.interval, self.proc = pid, interval, proc
        self.keep_tree, self.wrapper = keep_tree, wrapper
        self.peak_anonymous = self.peak_rss = self.peak_file_backed = self.samples = 0
        self.peak_pss: int | None = None
        self.peak_tree: TreeMemory | None = None
        self.snapshots: list[TreeMemory] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-sampler", daemon=True)

    def start(self) -> PeakSampler:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> PeakSampler:
        return self.start()

    def __exit__(self, *unused: object) -> None:
        self.stop()

    def snapshot(self, moment: str) -> TreeMemory:
        """Takes an exact snapshot now, keeps it, and lets it count for the peaks."""
        now = tree_memory(self.pid, moment, self.proc)
        self.snapshots.append(now)
        self._note(now.anonymous, now.rss, now.file_backed)
        return now

    def _look_at_tree(self) -> None:
        """An exact snapshot, kept where it is the largest so far."""
        now = tree_memory(self.pid, "peak", self.proc, self._left_out())
        self._note(now.anonymous, now.rss, now.file_backed)
        self.peak_pss = max(self.peak_pss or 0, now.pss)
        if self.peak_tree is None or now.anonymous > self.peak_tree.anonymous:
            self.peak_tree = now

    def _left_out(self) -> tuple[int, ...]:
        return (self.pid,) if self.wrapper else ()

    def report(self) -> MemoryReport:
        """The peaks and snapshots so far."""
        return MemoryReport(
            snapshots=[*self.snapshots, *([self.peak_tree] if self.peak_tree else [])],
            peak_anonymous=self.peak_anonymous,
            peak_rss=self.peak_rss,
            peak_file_backed=self.peak_file_backed,
            interval_seconds=self.interval,
            samples=self.samples,
            peak_pss=self.peak_pss,
        )

    def _note(self, anonymous: int, rss: int, file_backed: int) -> None:
        self.peak_anonymous = max(self.peak_anonymous, anonymous)
        self.peak_rss = max(self.peak_rss, rss)
        self.peak_file_backed = max(self.peak_file_backed, file_backed)

    def _each_sample(self, pids: list[int]) -> None:
        """For subclasses that read more of the processes."""

    def _watch(self) -> None:
        pids: list[int] = []
        refreshed = next_tree = 0.0
        seen = (0, 0, 0)
        while not self._stop.is_set():
            now = time.monotonic()
            if not pids or now - refreshed > 0.2:  # listing costs more than reading a few
                left_out = self._left_out()
                pids = [p for p in process_tree(self.pid, self.proc) if p not in left_out]
                refreshed = now
            counters = _counters(pids, self.proc)
            self._note(*counters)
            self._each_sample(pids)
            grown = any(
                new > 1.02 * old + _NOTICEABLE for new, old in zip(counters, seen, strict=True)
            )
            if self.keep_tree and grown and now >= next_tree:
                seen = counters
                spent = time.thread_time()
                self._look_at_tree()
                # Page tables of large processes take time to walk: 5% of one CPU at most.
                next_tree = time.monotonic() + 20 * (time.thread_time() - spent)
            self.samples += 1
            self._stop.wait(self.interval)
