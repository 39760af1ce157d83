"""CPU and memory budgets read from planted /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_infer.device import threads_default
from edge_infer.device.budget import memory_budget
from edge_infer.device.cgroup import Roots
from edge_infer.device.probe import cpu_quota, parse_cpu_list, probe_cpus
from edge_infer.errors import DeviceError

GIB = 1 << 30


class Tree:
    """A fake /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.roots = Roots(proc=root / "proc", sys=root / "sys")
        self.meminfo(16 * GIB, 12 * GIB)

    def write(self, path: str, text: str) -> None:
        file = (self.roots.proc.parent / path).resolve()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def meminfo(self, total: int, available: int) -> None:
        self.write(
            "proc/meminfo",
            f"MemTotal: {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n",
        )

    def cores(self, groups: list[str]) -> None:
        for group in groups:
            for cpu in parse_cpu_list(group):
                self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", group + "\n")

    def v2(self, group: str, root: str = "/") -> None:
        self.write("proc/self/cgroup", f"0::{group}\n")
        self.write(
            "proc/self/mountinfo",
            f"30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
        )

    def v1(self, group: str, root: str = "/") -> None:
        self.write("proc/self/cgroup", f"4:memory:{group}\n3:cpu,cpuacct:{group}\n0::/\n")
        self.write(
            "proc/self/mountinfo",
            f"31 23 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            f"32 23 0:30 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_one_thread_per_physical_core(tree: Tree) -> None:
    tree.cores(["0,4", "1,5", "2,6", "3,7"])
    budget = probe_cpus(tree.roots, affinity=range(8))
    assert budget.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert budget.threads == 4
    assert budget.pin_list() == (0, 1, 2, 3)
    assert budget.pin_list(6) == (0, 1, 2, 3, 4, 5)


def test_affinity_cuts_cores(tree: Tree) -> None:
    tree.cores(["0,4", "1,5", "2,6", "3,7"])
    budget = probe_cpus(tree.roots, affinity=[1, 4, 5])
    assert budget.cores == ((1, 5), (4,))
    assert budget.threads == 2
    assert budget.pin_list() == (1, 4)


def test_no_topology_means_one_core_per_cpu(tree: Tree) -> None:
    assert probe_cpus(tree.roots, affinity=[2, 3]).cores == ((2,), (3,))


def test_quota_v2_is_rounded_down(tree: Tree) -> None:
    tree.v2("/app")
    tree.write("sys/fs/cgroup/app/cpu.max", "250000 100000\n")
    budget = probe_cpus(tree.roots, affinity=range(8))
    assert budget.quota == 2.5
    assert budget.threads == 2


def test_quota_below_one_cpu_still_gives_a_thread(tree: Tree) -> None:
    tree.v2("/app")
    tree.write("sys/fs/cgroup/app/cpu.max", "50000 100000\n")
    assert probe_cpus(tree.roots, affinity=range(8)).threads == 1


def test_quota_max_is_no_limit(tree: Tree) -> None:
    tree.v2("/app")
    tree.write("sys/fs/cgroup/app/cpu.max", "max 100000\n")
    assert cpu_quota(tree.roots) is None


def test_quota_of_an_ancestor_counts(tree: Tree) -> None:
    tree.v2("/outer/inner")
    tree.write("sys/fs/cgroup/outer/inner/cpu.max", "400000 100000\n")
    tree.write("sys/fs/cgroup/outer/cpu.max", "300000 100000\n")
    assert cpu_quota(tree.roots) == 3.0


def test_quota_v1(tree: Tree) -> None:
    tree.v1("/docker/abc")
    tree.write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "150000\n")
    tree.write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tree.roots) == 1.5
    tree.write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n")
    assert cpu_quota(tree.roots) is None


@pytest.mark.parametrize("root", ["/", "/docker/abc"])
def test_container_sees_its_group_at_the_mount_point(tree: Tree, root: str) -> None:
    # With and without the host's path in mountinfo: the directory of the group is not visible.
    tree.v1("/docker/abc", root=root)
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(2 * GIB))
    tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", str(GIB))
    budget = memory_budget(tree.roots)
    assert (budget.limit, budget.available) == (2 * GIB, GIB)


def test_memory_without_a_limit_is_the_machines(tree: Tree) -> None:
    budget = memory_budget(tree.roots)
    assert (budget.total, budget.available, budget.limit) == (16 * GIB, 12 * GIB, None)
    assert budget.limited_by == "machine"


def test_memory_v1_unlimited_value_is_no_limit(tree: Tree) -> None:
    tree.v1("/")
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n")
    assert memory_budget(tree.roots).limit is None


def test_memory_v2_counts_inactive_page_cache_as_free(tree: Tree) -> None:
    tree.v2("/app")
    tree.write("sys/fs/cgroup/app/memory.max", str(4 * GIB))
    tree.write("sys/fs/cgroup/app/memory.high", "max\n")
    tree.write("sys/fs/cgroup/app/memory.current", str(3 * GIB))
    tree.write(
        "sys/fs/cgroup/app/memory.stat", f"anon 5\nactive_file {GIB}\ninactive_file {GIB // 2}\n"
    )
    budget = memory_budget(tree.roots)
    assert (budget.total, budget.limit) == (4 * GIB, 4 * GIB)
    assert budget.available == GIB + GIB // 2
    assert budget.limited_by == "cgroup"


def test_memory_v2_high_and_ancestors_bind(tree: Tree) -> None:
    tree.v2("/outer/inner")
    tree.write("sys/fs/cgroup/outer/inner/memory.max", str(8 * GIB))
    tree.write("sys/fs/cgroup/outer/inner/memory.current", "0")
    tree.write("sys/fs/cgroup/outer/memory.max", "max\n")
    tree.write("sys/fs/cgroup/outer/memory.high", str(3 * GIB))
    tree.write("sys/fs/cgroup/outer/memory.current", str(GIB))
    budget = memory_budget(tree.roots)
    assert (budget.limit, budget.available) == (3 * GIB, 2 * GIB)


def test_machine_binds_when_it_has_less_than_the_group(tree: Tree) -> None:
    tree.meminfo(16 * GIB, GIB)
    tree.v2("/app")
    tree.write("sys/fs/cgroup/app/memory.max", str(4 * GIB))
    tree.write("sys/fs/cgroup/app/memory.current", "0")
    budget = memory_budget(tree.roots)
    assert (budget.available, budget.limited_by) == (GIB, "machine")


def test_group_over_its_limit_has_nothing_free(tree: Tree) -> None:
    tree.v2("/app")
    tree.write("sys/fs/cgroup/app/memory.max", str(GIB))
    tree.write("sys/fs/cgroup/app/memory.current", str(2 * GIB))
    assert memory_budget(tree.roots).available == 0


def test_no_meminfo_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="meminfo"):
        memory_budget(Roots(proc=tmp_path, sys=tmp_path))


def test_garbage_in_kernel_files_is_no_limit(tree: Tree) -> None:
    tree.v2("/app")
    tree.write("sys/fs/cgroup/app/cpu.max", "many few\n")
    tree.write("sys/fs/cgroup/app/memory.max", "-7\n")
    tree.write("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "zero\n")
    assert probe_cpus(tree.roots, affinity=[0]).cores == ((0,),)
    assert cpu_quota(tree.roots) is None
    assert memory_budget(tree.roots).limit is None


def test_on_this_machine() -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= threads_default() <= len(allowed)
    budget = memory_budget()
    assert 0 < budget.available <= budget.total
