"""The part of an artifact that a profile adds: where the time of a step goes."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from edge_infer.harness.record import Bytes, Record

TOLERANCE = 0.05


class ProfilePart(Record):
    """One kind of work. Everything is of one step, averaged over the profiled ones."""

    name: str
    """An operation, with the shape [n, k] of a linear; or what lies between operations."""
    seconds: float
    calls: float
    weight_bytes: Bytes = 0
    kv_bytes: Bytes = 0
    activation_bytes: Bytes = 0
    operations: int = 0
    """Multiplications and additions."""

    @property
    def bytes_per_second(self) -> float:
        total = self.weight_bytes + self.kv_bytes + self.activation_bytes
        return total / self.seconds if self.seconds else 0.0

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0


class StepProfile(Record):
    """Where a step's wall time went, by thread 0's clock."""

    phase: Literal["decode", "prefill"]
    context: int
    """Tokens of a sequence in the cache before the first profiled step, on average."""
    rows: float
    """Tokens of one step, on average."""
    steps: list[float]
    """Wall seconds of each profiled step."""
    parts: list[ProfilePart]

    @property
    def seconds(self) -> float:
        """Wall time of a step, on average."""
        return sum(self.steps) / len(self.steps)

    @model_validator(mode="after")
    def _parts_add_up(self) -> StepProfile:
        total = sum(part.seconds for part in self.parts)
        if abs(total - self.seconds) > TOLERANCE * self.seconds:
            raise ValueError(f"the parts of a step take {total} s, the step {self.seconds} s")
        return self
