"""Which blocks of the paged KV pool belong to which sequence. Pure bookkeeping over the native
pool.

"Not now" (False: the pool is full at the moment) is kept apart from "never" (CapacityError).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_infer import _native
from edge_infer.engine.prefix_cache import BLOCK, BlockChain, PrefixCache
from edge_infer.errors import CapacityError
from edge_infer.models.values import KvGroup


@dataclass(frozen=True)
class PoolPlan:
    """Blocks of each group, and the tokens that they hold. ``chunk``: most rows of one sequence in
    a step."""

    groups: tuple[tuple[KvGroup, int], ...]  # group, layers
    blocks: tuple[int, ...]
    block_bytes: tuple[int, ...]  # of one block of each group, all its layers
    tokens: int
    bytes: int
    chunk: int

    def check_possible(self, tokens: int) -> None:
        """Raises CapacityError when a sequence of ``tokens`` can never fit, even alone."""
        for (group, _), have in zip(self.groups, self.blocks, strict=True):
            if blocks_needed(group, tokens, self.chunk) > have:
                raise CapacityError(
                    f"{tokens} tokens do not fit the KV cache, which holds {self.tokens}.",
                    remedy="Shorten the prompt or max_tokens, or raise kv_cache_memory_bytes.",
                    code="context_length_exceeded",
                )


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
    tokens: int,
    max_num_seqs: int,
    chunk: int,
    budget: int | None,
    dtype: str = "f16",
) -> PoolPlan:
    """The pool for ``tokens`` tokens shared by up to ``max_num_seqs`` sequences, or as many whole
    blocks of tokens as ``budget`` bytes hold.

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

    tokens = -(-tokens // BLOCK) * BLOCK
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
    return PoolPlan(tuple(groups), tuple(blocks(tokens)), tuple(sizes), tokens, cost(tokens), chunk)


@dataclass
class SequenceBlocks:
    """Block tables of one sequence, one a group; -1 where a sliding group has dropped a block."""

    tables: list[list[int]]
    dropped: list[int]  # leading blocks given back, per group
    filled: int = 0  # leading blocks that the prefix cache knows


class BlockManager:
    """Hands out blocks of a native pool, several sequences to one block where their beginnings are
    the same.

    ``cache_bytes``: blocks that stay filled while no sequence uses them; a sequence that needs room
    takes theirs first.
    """

    def __init__(self, pool: Any, plan: PoolPlan, cache_bytes: int = 0) -> None:
        self.pool = pool
        self.plan = plan
        self.cache = PrefixCache(plan.block_bytes, cache_bytes)
        self._sliding = [(g, group) for g, (group, _) in enumerate(plan.groups) if group.window]
        self._free = [list(range(n - 1, -1, -1)) for n in plan.blocks]
        self._users = [[0] * n for n in plan.blocks]  # sequences that hold each block

    def used_blocks(self) -> int:
        """Blocks that sequences hold."""
        return sum(self._used(g) for g in range(len(self._free)))

    def used_bytes(self) -> int:
        return sum(self._used(g) * n for g, n in enumerate(self.plan.block_bytes))

    def cached_blocks(self) -> int:
        """Blocks that stay filled although no sequence holds them."""
        return sum(self.cache.idle(g) for g in range(len(self._free)))

    def new_sequence(self) -> SequenceBlocks:
        n = len(self.plan.groups)
        return SequenceBlocks([[] for _ in range(n)], [0] * n)

    def known(self, chain: BlockChain, tokens: Sequence[int]) -> int:
        """Leading tokens with which a sequence could begin now: every block is there of the groups
        that see all, and of sliding groups those that the next row sees."""
        count = (len(tokens) - 1) // BLOCK
        groups = list(enumerate(g for g, _ in self.plan.groups))
        for g, group in groups:
            if not group.window:
                gaps = (i for i in range(count) if self._find(g, chain, i, tokens) < 0)
                count = next(gaps, count)
        while count:
            seen = (
                (g, i)
                for g, group in groups
                if group.window
                for i in range(_first_seen(group, count * BLOCK), count)
            )
            gaps = (i for g, i in seen if self._find(g, chain, i, tokens) < 0)
            # Every longer beginning would need that block too, so the next try ends before it.
            gap = next(gaps, None)
            if gap is None:
                break
            count = gap
        return count * BLOCK

    def adopt(self, seq: SequenceBlocks, chain: BlockChain, tokens: Sequence[int]) -> int:
        """Gives a new sequence the filled blocks of the longest known beginning of ``tokens``, and
        returns how many tokens those are. The last token is never among them, since its row has to
        be computed for its output."""
        count = self.known(chain, tokens) // BLOCK
        for g, (group, _) in enumerate(self.plan.groups):
            first = _first_seen(group, count * BLOCK)
            blocks = [self._find(g, chain, i, tokens) for i in range(first, count)]
            for b in blocks:
                self._users[g][b] += 1
                self.cache.set_used(g, b)
            seq.tables[g] = [-1] * first + blocks
            seq.dropped[g] = first
        seq.filled = count
        return count * BLOCK

    def commit(
        self, seq: SequenceBlocks, chain: BlockChain, tokens: Sequence[int], computed: int
    ) -> None:
        """Lets others adopt the blocks that ``computed`` tokens fill. Call before their rows are
        dropped."""
        for i in range(seq.filled, computed // BLOCK):
            key = chain.key(i, tokens)
            for g, table in enumerate(seq.tables):
                if table[i] >= 0:
                    self.cache.add(g, table[i], key)
            seq.filled = i + 1

    def has_room(self, seq: SequenceBlocks, tokens: int) -> bool:
        """Whether a sequence of ``tokens`` could have all its blocks now."""
        for g, (group, _) in enumerate(self.plan.groups):
            held = len(seq.tables[g]) - seq.dropped[g]
            if blocks_needed(group, tokens, self.plan.chunk) - held > self._available(g):
                return False
        return True

    def reserve(self, seq: SequenceBlocks, tokens: int) -> bool:
        """Blocks for cache positions up to ``tokens``; False, with nothing changed, if not now."""
        wanted = -(-tokens // BLOCK)
        if seq.tables and wanted <= len(seq.tables[0]):  # the tables are equally long
            return True
        missing = [max(0, wanted - len(t)) for t in seq.tables]
        if any(m > self._available(g) for g, m in enumerate(missing)):
            return False
        for g, m in enumerate(missing):
            seq.tables[g].extend(self._take(g) for _ in range(m))
        return True

    def drop_unseen(self, seq: SequenceBlocks, position: int) -> None:
        """Gives back blocks of sliding groups that rows from ``position`` on cannot see."""
        for g, group in self._sliding:
            keep = _first_seen(group, position)
            if keep > seq.dropped[g]:
                gone = [b for b in seq.tables[g][seq.dropped[g] : keep] if b >= 0]
                seq.tables[g][seq.dropped[g] : keep] = [-1] * (keep - seq.dropped[g])
                seq.dropped[g] = keep
                self._give_back(g, gone)

    def free(self, seq: SequenceBlocks) -> None:
        # The end of a sequence goes first, so that it is forgotten before its beginning.
        for g, table in enumerate(seq.tables):
            self._give_back(g, [b for b in reversed(table) if b >= 0])
            seq.tables[g] = []
            seq.dropped[g] = 0
        seq.filled = 0

    def _find(self, group: int, chain: BlockChain, index: int, tokens: Sequence[int]) -> int:
        block = self.cache.find(group, chain.key(index, tokens))
        return -1 if block is None else block

    def _used(self, group: int) -> int:
        return self.plan.blocks[group] - self._available(group)

    def _available(self, group: int) -> int:
        return len(self._free[group]) + self.cache.idle(group)

    def _take(self, group: int) -> int:
        block = self._free[group].pop() if self._free[group] else self.cache.evict(group)
        self._users[group][block] = 1
        return block

    def _give_back(self, group: int, blocks: list[int]) -> None:
        empty = []
        for b in blocks:
            self._users[group][b] -= 1
            if self._users[group][b]:
                continue
            if self.cache.holds(group, b):
                self.cache.set_idle(group, b)
            else:
                empty.append((group, b))
        self._release(empty + self.cache.evict_excess())

    def _release(self, blocks: list[tuple[int, int]]) -> None:
        """Returns the memory of blocks that hold nothing to the system."""
        for g in {g for g, _ in blocks}:
            mine = sorted(b for group, b in blocks if group == g)
            self.pool.release(g, np.asarray(mine, dtype=np.int32))
            self._free[g].extend(mine)


def _first_seen(group: KvGroup, position: int) -> int:
    """The first block that a row at ``position`` sees."""
    return max(0, position + 1 - group.window) // BLOCK if group.window else 0
