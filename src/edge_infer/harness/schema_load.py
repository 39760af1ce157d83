"""The part of an artifact that a load run adds: what clients of a server saw."""

from __future__ import annotations

from edge_infer.harness.record import Bytes, Record


class Distribution(Record):
    """Many samples of one quantity, summed up; the samples themselves are not kept."""

    unit: str
    count: int
    min: float
    p50: float
    p95: float
    p99: float
    max: float


class MemoryPoint(Record):
    """Memory of the server's process tree at one moment."""

    seconds: float
    """Since the clients started."""
    anonymous: Bytes
    file_backed: Bytes


class LoadRun(Record):
    """A number of clients that asked without pause for a length of time."""

    clients: int
    seconds: float
    """Length of the window in which tokens were counted."""
    requests: int
    """Sent in the window."""
    finished: int
    """Answered to the end in the window; the others were cut off or failed."""
    failed: int
    errors: dict[str, int]
    """How often each error came."""
    prompt_tokens: tuple[int, int] | None
    """Fewest and most tokens of a prompt, as the server counted them; None: it did not say."""
    generated_tokens: int
    """Tokens that arrived in the window."""
    tokens_per_event: float
    """More than 1: the server sends several tokens in one event, and `inter_token` is the time
    between events."""
    time_to_first_token: Distribution | None
    inter_token: Distribution | None
    client_cpu: float
    """CPU seconds of the load generator per second of the window; near 1 it is the bottleneck."""
    memory: list[MemoryPoint] = []
