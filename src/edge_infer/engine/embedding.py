"""Embeddings of prompts: pooled hidden states of the loaded decoder, a chunk of rows at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from edge_infer.engine.kv_blocks import BlockManager, SequenceBlocks
from edge_infer.engine.runner import ModelRunner, Piece
from edge_infer.errors import ConfigError, ExecutionError

POOLINGS = ("mean", "last")


@dataclass
class _Running:
    tokens: list[int]
    blocks: SequenceBlocks
    done: int = 0
    pooled: np.ndarray | None = None  # f64 [hidden]


class EmbeddingJob:
    """Embeds ``prompts`` (token ids) one after the other, several in a step where they are short.

    ``pooling``: mean, or last for the last token's hidden state. Raises ConfigError for another.
    ``vectors``: what is finished, f32 [hidden] of length 1, in the order of the prompts.
    """

    def __init__(self, prompts: list[list[int]], pooling: str) -> None:
        if pooling not in POOLINGS:
            raise ConfigError(f"pooling = {pooling!r}; one of {', '.join(POOLINGS)} is needed.")
        self.prompt_tokens = [len(p) for p in prompts]
        self.vectors: list[np.ndarray] = []
        self._mean = pooling == "mean"
        self._waiting = deque(prompts)
        self._running: list[_Running] = []
        self._blocks: BlockManager | None = None  # where those of the running prompts came from

    @property
    def finished(self) -> bool:
        return len(self.vectors) == len(self.prompt_tokens)

    def step(self, runner: ModelRunner, rows: int | None = None) -> int:
        """Computes up to ``rows`` rows, None for a whole chunk; none when the pool has no room at
        the moment. Returns how many."""
        pieces = self._compose(runner, runner.builder.max_rows if rows is None else rows)
        if not pieces:
            return 0
        parts = self._running[: len(pieces)]
        for piece, row in runner.hidden_states(pieces):
            # One row after the other, so that sums do not depend on how rows fall into chunks.
            before = parts[piece].pooled
            parts[piece].pooled = row.astype(np.float64) if before is None else before + row
        for r, p in zip(parts, pieces, strict=True):
            r.done += p.rows
            runner.blocks.drop_unseen(r.blocks, r.done)
            if r.done == len(r.tokens):
                runner.blocks.free(r.blocks)
                self._running.remove(r)
                self.vectors.append(_normalised(r.pooled))
        return sum(p.rows for p in pieces)

    def close(self) -> None:
        """Gives the blocks of unfinished prompts back."""
        if self._blocks is not None:
            for r in self._running:
                self._blocks.free(r.blocks)
        self._running = []

    def _compose(self, runner: ModelRunner, room: int) -> list[Piece]:
        """Pieces of the first running prompts, in order, with their blocks reserved."""
        self._blocks = runner.blocks
        pieces: list[Piece] = []
        while room > 0:
            new = len(pieces) == len(self._running)
            if new and not self._waiting:
                break
            if new:
                r = _Running(self._waiting[0], runner.blocks.new_sequence())
            else:
                r = self._running[len(pieces)]
            total = len(r.tokens)
            count = min(total - r.done, room)
            if not runner.blocks.reserve(r.blocks, r.done + count):
                break
            if new:
                self._running.append(r)
                self._waiting.popleft()
            last = r.done + count == total
            pieces.append(Piece(r.tokens, r.done, count, total, r.blocks, last, self._mean))
            room -= count
        return pieces


def _normalised(pooled: np.ndarray | None) -> np.ndarray:
    length = 0.0 if pooled is None else float(np.linalg.norm(pooled))
    if pooled is None or not np.isfinite(length) or length == 0.0:
        raise ExecutionError(
            f"Hidden states of length {length} have no direction: the weights are damaged."
        )
    return (pooled / length).astype(np.float32)
