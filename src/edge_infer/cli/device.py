"""``edge-infer device``: what this machine allows."""

from __future__ import annotations

from edge_infer.cli.common import JsonOption, command, megabytes, print_json


@command
def device(as_json: JsonOption = False) -> None:
    """Show the CPUs, memory and instruction sets that this process may use."""
    from edge_infer import _native
    from edge_infer.device import cpu_budget, memory_budget

    cpus, memory = cpu_budget(), memory_budget()
    levels = list(_native.available_levels())
    active = _native.active_level()
    if as_json:
        print_json(
            {
                "cpu": _native.cpu_brand(),
                "isa": {"active": active, "available": levels},
                "affinity": list(cpus.affinity),
                "cores": [list(core) for core in cpus.cores],
                "quota_cpus": cpus.quota,
                "threads": cpus.threads,
                "memory": {
                    "total_bytes": memory.total,
                    "available_bytes": memory.available,
                    "cgroup_limit_bytes": memory.limit,
                },
            }
        )
        return
    quota = "none" if cpus.quota is None else f"{cpus.quota:g} CPUs"
    limit = "none" if memory.limit is None else megabytes(memory.limit)
    print(f"CPU       {_native.cpu_brand()}")
    print(f"ISA       {active} (available: {', '.join(levels)})")
    print(f"Threads   {cpus.threads} ({len(cpus.cores)} cores, {len(cpus.affinity)} CPUs, ", end="")
    print(f"cgroup quota: {quota})")
    print(f"Memory    {megabytes(memory.available)} free of {megabytes(memory.total)}", end="")
    print(f" (cgroup limit: {limit})")
