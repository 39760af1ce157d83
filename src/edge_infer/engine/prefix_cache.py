"""Which filled blocks of the KV pool can serve another sequence, and how long they stay.

A block's key is a hash over everything that its keys and values depend on: the tokens of the block,
how many of them are prompt (the others have decode numerics), and the key of the block before it.
So equal keys mean equal bits, and a result is the same with and without the cache.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from edge_infer import _native

BLOCK: int = _native.KV_BLOCK


class BlockChain:
    """Keys of a sequence's full blocks, computed when they are first asked for.

    ``prompt_length``: tokens with prefill numerics; later ones have decode numerics.
    """

    def __init__(self, prompt_length: int) -> None:
        self._prompt_length = prompt_length
        self._keys: list[bytes] = []

    def key(self, index: int, tokens: Sequence[int]) -> bytes:
        """Key of block ``index`` of ``tokens``, which only ever grow."""
        for i in range(len(self._keys), index + 1):
            start = i * BLOCK
            prompt = min(max(self._prompt_length - start, 0), BLOCK)
            h = blake2b(self._keys[-1] if i else b"", digest_size=16)
            h.update(bytes([prompt]))
            h.update(array("i", tokens[start : start + BLOCK]).tobytes())
            self._keys.append(h.digest())
        return self._keys[index]


class PrefixCache:
    """Filled blocks of each group by key, and those among them that no sequence uses (idle), least
    recently used first.

    ``block_bytes``: size of a block in each group. ``capacity``: bytes of idle blocks kept.
    """

    def __init__(self, block_bytes: Sequence[int], capacity: int) -> None:
        self.block_bytes = list(block_bytes)
        self.capacity = capacity
        self._blocks: list[dict[bytes, int]] = [{} for _ in block_bytes]
        self._keys: list[dict[int, bytes]] = [{} for _ in block_bytes]
        self._idle: list[OrderedDict[int, int]] = [OrderedDict() for _ in block_bytes]
        self._tick = 0

    def find(self, group: int, key: bytes) -> int | None:
        return self._blocks[group].get(key)

    def add(self, group: int, block: int, key: bytes) -> None:
        """Remembers a filled block; where the key is known already, the first one stays."""
        if key not in self._blocks[group]:
            self._blocks[group][key] = block
            self._keys[group][block] = key

    def holds(self, group: int, block: int) -> bool:
        return block in self._keys[group]

    def set_idle(self, group: int, block: int) -> None:
        """No sequence uses this block any more."""
        self._tick += 1
        self._idle[group][block] = self._tick

    def set_used(self, group: int, block: int) -> None:
        self._idle[group].pop(block, None)

    def idle(self, group: int) -> int:
        """Idle blocks of a group."""
        return len(self._idle[group])

    def idle_bytes(self) -> int:
        return sum(len(d) * n for d, n in zip(self._idle, self.block_bytes, strict=True))

    def evict(self, group: int) -> int:
        """Forgets the group's least recently used idle block and returns it."""
        block, _ = self._idle[group].popitem(last=False)
        del self._blocks[group][self._keys[group].pop(block)]
        return block

    def evict_excess(self) -> list[tuple[int, int]]:
        """Forgets idle blocks, (group, block), until the rest is within the capacity."""
        out = []
        excess = self.idle_bytes() - self.capacity
        while excess > 0:
            group = min(
                (g for g, idle in enumerate(self._idle) if idle),
                key=lambda g: next(iter(self._idle[g].values())),
            )
            out.append((group, self.evict(group)))
            excess -= self.block_bytes[group]
        return out
