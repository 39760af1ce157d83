"""What this machine allows: CPUs, memory, instruction sets. Pure Python over /proc and /sys."""

from edge_infer.device.budget import MemoryBudget, free_memory, memory_budget
from edge_infer.device.probe import CpuBudget, cpu_budget, threads_default

__all__ = [
    "CpuBudget",
    "MemoryBudget",
    "cpu_budget",
    "free_memory",
    "memory_budget",
    "threads_default",
]
