"""What tests of the serving engine read from it."""

from __future__ import annotations

import asyncio

from edge_infer.engine.serving import Delta, Generation, ServingEngine


async def read(generation: Generation) -> list[Delta]:
    return [d async for d in generation]


def tokens(deltas: list[Delta], index: int = 0) -> list[int]:
    return [t for d in deltas if d.index == index for t in d.token_ids]


def text(deltas: list[Delta], index: int = 0) -> str:
    return "".join(d.text for d in deltas if d.index == index)


async def settle(engine: ServingEngine) -> None:
    """Waits until the stepping thread has carried out everything."""
    for _ in range(500):
        stats = engine.stats()
        if not (stats.waiting or stats.running or stats.kv_blocks_used):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still busy: {engine.stats()}")
