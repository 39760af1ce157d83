"""Which blocks of the paged KV pool belong to which sequence. Pure bookkeeping over the native
pool.

"Not now" (False: the pool is full at the moment) is kept apart from "never" (CapacityError).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_infer import _native
from edge_infer.errors import CapacityError
from edge_infer.models.values import KvGroup

BLOCK: int = _native.KV_BLOCK


@dataclass(frozen=True)
class PoolPlan:
    """Blocks of each group, and the tokens that fit when shared by ``sequences``."""

    groups: tuple[tuple[KvGroup, int], ...]  # group, layers
    blocks: tuple[int, ...]
    block_bytes: tuple[int, ...]  # of one block of each group, all its layers
    tokens: int
    bytes: int


def blocks_needed(group: KvGroup, tokens: int, chunk: int) -> int:
    """Blocks that one sequence of ``tokens`` holds at most while prefilled ``chunk`` rows at a
    time.

    A sliding group drops what no later row can see: window - 1 positions before the first row of a
    chunk stay, at any alignment.
    """
    everything = -(-tokens // BLOCK)
    if not group.window:
        return everything
    return min(everything, -(-(group.window + chunk) // BLOCK) + 1)


def plan_pool(
    groups: list[tuple[KvGroup, int]],
    *,
    max_model_len: int,
    max_num_seqs: int,
    chunk: int,
    budget: int | None,
    dtype: str = "f16",
) -> PoolPlan:
    """The pool for ``max_model_len`` tokens shared by up to ``max_num_seqs`` sequences, or as many
    whole blocks of tokens as ``budget`` bytes hold.

    Raises CapacityError when the budget does not hold one sequence of one block.
    """

    def blocks(tokens: int) -> list[int]:
        per_sequence = -(-tokens // BLOCK)
        out = []
        for group, _ in groups:
            if group.window:
                one = blocks_needed(group, tokens, chunk)
                out.append(min(per_sequence + max_num_seqs - 1, one * max_num_seqs))
            else:
                out.append(per_sequence + max_num_seqs - 1)
        return out

    sizes = [_native.KvPool.block_bytes(n, g.kv_heads, g.head_dim, dtype) for g, n in groups]

    def cost(tokens: int) -> int:
        return sum(n * size for n, size in zip(blocks(tokens), sizes, strict=True))

    tokens = -(-max_model_len // BLOCK) * BLOCK
    if budget is not None and cost(tokens) > budget:
        low, high = 0, tokens // BLOCK
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if cost(middle * BLOCK) <= budget else (low, middle)
        if low == 0:
            raise CapacityError(
                f"A KV cache of {budget} bytes does not hold {BLOCK} tokens, which take "
                f"{cost(BLOCK)} bytes with {max_num_seqs} sequences.",
                remedy="Raise kv_cache_memory_bytes, or lower max_num_seqs.",
            )
        tokens = low * BLOCK
    return PoolPlan(tuple(groups), tuple(blocks(tokens)), tuple(sizes), tokens, cost(tokens))


@dataclass
class SequenceBlocks:
    """Block tables of one sequence, one a group; -1 where a sliding group has dropped a block."""

    tables: list[list[int]]
    dropped: list[int] = field(default_factory=list)  # leading blocks given back, per group


class BlockManager:
    """Hands out blocks of a native pool. ``chunk``: most rows of one sequence in a step."""

    def __init__(self, pool: Any, plan: PoolPlan, chunk: int) -> None:
        self.pool = pool
        self.plan = plan
        self.chunk = chunk
        self._free = [list(range(n - 1, -1, -1)) for n in plan.blocks]

    def used_blocks(self) -> int:
        return sum(n - len(free) for n, free in zip(self.plan.blocks, self._free, strict=True))

    def used_bytes(self) -> int:
        return sum(
            (n - len(free)) * size
            for n, free, size in zip(
                self.plan.blocks, self._free, self.plan.block_bytes, strict=True
            )
        )

    def check_possible(self, tokens: int) -> None:
        """Raises CapacityError when a sequence of ``tokens`` can never fit, even alone."""
        for (group, _), have in zip(self.plan.groups, self.plan.blocks, strict=True):
            need = blocks_needed(group, tokens, self.chunk)
            if need > have:
                raise CapacityError(
                    f"{tokens} tokens do not fit the KV cache, which holds {self.plan.tokens}.",
                    remedy="Shorten the prompt or max_tokens, or raise kv_cache_memory_bytes.",
                )

    def new_sequence(self) -> SequenceBlocks:
        n = len(self.plan.groups)
        return SequenceBlocks([[] for _ in range(n)], [0] * n)

    def reserve(self, seq: SequenceBlocks, tokens: int) -> bool:
        """Blocks for cache positions up to ``tokens``; False, with nothing changed, if not now."""
        wanted = -(-tokens // BLOCK)
        missing = [max(0, wanted - len(t)) for t in seq.tables]
        if any(m > len(free) for m, free in zip(missing, self._free, strict=True)):
            return False
        for table, free, m in zip(seq.tables, self._free, missing, strict=True):
            table.extend(free.pop() for _ in range(m))
        return True

    def drop_unseen(self, seq: SequenceBlocks, position: int) -> None:
        """Gives back blocks of sliding groups that rows from ``position`` on cannot see."""
        for g, (group, _) in enumerate(self.plan.groups):
            if not group.window:
                continue
            keep = max(0, position + 1 - group.window) // BLOCK
            gone = [b for b in seq.tables[g][seq.dropped[g] : keep] if b >= 0]
            if keep > seq.dropped[g]:
                seq.tables[g][seq.dropped[g] : keep] = [-1] * (keep - seq.dropped[g])
                seq.dropped[g] = keep
            self._give_back(g, gone)

    def free(self, seq: SequenceBlocks) -> None:
        for g, table in enumerate(seq.tables):
            self._give_back(g, [b for b in table if b >= 0])
            seq.tables[g] = []
            seq.dropped[g] = 0

    def _give_back(self, group: int, blocks: list[int]) -> None:
        if blocks:
            self.pool.release(group, np.asarray(sorted(blocks), dtype=np.int32))
            self._free[group].extend(blocks)
