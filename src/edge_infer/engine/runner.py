"""The model in memory, and the arrays of one step: between the scheduler and native code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_infer import _native, models
from edge_infer.checkpoint.reader import Checkpoint
from edge_infer.device.budget import free_memory
from edge_infer.device.probe import cpu_budget
from edge_infer.engine.kv_blocks import (
    BlockManager,
    PoolPlan,
    SequenceBlocks,
    plan_pool,
)
from edge_infer.errors import CapacityError, ConfigError
from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.config import DecoderConfig
from edge_infer.models.weights import Weights

DRAFT_ROWS = 8  # of one step with speculation, over all its sequences
SCORED_BYTES = 64 << 20  # of logits of a step that scores prompts


@dataclass(frozen=True)
class RunnerOptions:
    """``chunk_size``: rows (tokens) of one step, the width of prefill; ``max_num_seqs``:
    sequences that run at once; ``kv_cache_memory_bytes``: of the KV pool, at most what the full
    contexts of all these need; None: what one context needs, bounded by free memory, which the
    sequences share."""

    max_model_len: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "f16"
    threads: int | None = None
    weights: str = "mapped"
    chunk_size: int = 256
    max_num_seqs: int = 8
    enable_prefix_caching: bool = True
    prefix_cache_memory_bytes: int | None = None  # None: half of the pool
    speculative: str | None = None  # ngram: guesses by prompt lookup, verified in the next step
    all_outputs: bool = False  # logits for every row of a chunk: for perplexity and tests

    def __post_init__(self) -> None:
        for name, low, high in (("chunk_size", 1, 8192), ("max_num_seqs", 1, 1024)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(f"{name} = {value!r}; an integer of {low} to {high} is needed.")
        if self.speculative not in (None, "ngram"):
            raise ConfigError(
                f"speculative = {self.speculative!r}; None or 'ngram' is needed.",
            )
        budget = self.kv_cache_memory_bytes
        if budget is not None and (not isinstance(budget, int) or budget < 1):
            raise ConfigError(f"kv_cache_memory_bytes = {budget!r}; a positive integer is needed.")
        cached = self.prefix_cache_memory_bytes
        if cached is not None and (type(cached) is not int or cached < 0):
            raise ConfigError(
                f"prefix_cache_memory_bytes = {cached!r}; an integer of 0 or more is needed."
            )
        if cached is not None and not self.enable_prefix_caching:
            raise ConfigError(
                f"prefix_cache_memory_bytes = {cached} has no effect without prefix caching.",
                remedy="Leave it out, or enable prefix caching.",
            )


class Piece(NamedTuple):
    """Rows of one sequence in a step: tokens [start, start + rows) of ``tokens``; those before
    ``prompt`` have prefill numerics, the others decode numerics. Outputs: of the last row if
    ``wants_output``, of each if ``every_output``."""

    tokens: Sequence[int]
    start: int
    rows: int
    prompt: int
    blocks: SequenceBlocks
    wants_output: bool
    every_output: bool = False


class ModelRunner:
    """One model: weights, program, KV pool and thread team."""

    weights_type = Weights

    def make_builder(self, **options: Any) -> ProgramBuilder:
        """The builder of the program; calibration has one that keeps what linears read."""
        return ProgramBuilder(**options)

    def __init__(self, path: str | Path, options: RunnerOptions) -> None:
        started = time.perf_counter()
        self.options = options
        self.checkpoint = Checkpoint.open(path)
        self._build = models.architecture(self.checkpoint.config)
        self.config = DecoderConfig.read(self.checkpoint.config)
        self.max_model_len = _context_length(
            options.max_model_len, self.config.max_position_embeddings
        )
        self.weight_bytes = sum(f.stat().st_size for f in self.checkpoint.files)
        self._free = self._free_beside_weights()
        self.weights = self.weights_type(self.checkpoint, options.weights)
        outputs = options.max_num_seqs + (DRAFT_ROWS if options.speculative else 0)
        self.builder = self.make_builder(
            max_rows=max(options.chunk_size, options.max_num_seqs),
            max_outputs=max(outputs, options.chunk_size) if options.all_outputs else outputs,
        )
        self._build(self.builder, self.weights, self.config)
        self.plan = self._plan_pool()
        self.team = _team(options.threads)
        self.pool = _native.KvPool(
            [
                (layers, g.kv_heads, g.head_dim, n)
                for (g, layers), n in zip(self.plan.groups, self.plan.blocks, strict=True)
            ],
            options.kv_cache_dtype,
        )
        self.program = self.builder.create(self.team, self.pool, self.weights.maps)
        self.blocks = BlockManager(self.pool, self.plan, self._cache_bytes())
        self._rows: dict[str, list[np.ndarray]] = {}
        self._hidden: tuple[ProgramBuilder, Any] | None = None
        self._scoring: tuple[ProgramBuilder, Any] | None = None
        self.load_seconds = time.perf_counter() - started

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def programs(self) -> list[tuple[ProgramBuilder, Any]]:
        """The programs made so far, with what built them."""
        others = [p for p in (self._hidden, self._scoring) if p is not None]
        return [(self.builder, self.program), *others]

    def run(self, pieces: Sequence[Piece]) -> None:
        """One step over ``pieces``; outputs are then rows of :meth:`output`, in the order of
        :meth:`output_order`. Blocks must have been reserved."""
        self._order = self._step(self.program, pieces)

    def hidden_states(self, pieces: Sequence[Piece]) -> list[tuple[int, np.ndarray]]:
        """One step that ends with hidden states (after the last norm): (piece, row f32 [hidden])
        of each wanted output, in the order of pieces and positions. Copies.

        It runs in a program without the output head, made at the first call, whose outputs may be
        all rows of a step.
        """
        if self._hidden is None:
            self._hidden = self._another_program(self.builder.max_rows, head=False)
        builder, program = self._hidden
        order = self._step(program, pieces)
        values = np.array(program.output(builder.outputs["hidden_states"]))
        return [(piece, values[row]) for row, (piece, _) in enumerate(order)]

    @property
    def scored_rows(self) -> int:
        """Most rows of one :meth:`score`: logits of a whole chunk could be gigabytes."""
        return min(self.builder.max_rows, max(1, SCORED_BYTES // (4 * self.vocab_size)))

    def score(self, pieces: Sequence[Piece]) -> tuple[list[tuple[int, int]], np.ndarray]:
        """One step over at most :attr:`scored_rows` rows that gives the logits of each:
        (piece, token position) of the rows, and a view f32 [rows, vocab] that is valid until the
        next call. It runs in a program of its own, made at the first call, with the same bits."""
        if self._scoring is None:
            self._scoring = self._another_program(self.scored_rows, head=True)
        builder, program = self._scoring
        order = self._step(program, pieces)
        return order, program.output(builder.outputs["logits"])

    def _another_program(self, rows: int, *, head: bool) -> tuple[ProgramBuilder, Any]:
        """One whose outputs may be all of its ``rows``."""
        builder = ProgramBuilder(max_rows=rows, max_outputs=rows, head=head)
        self._build(builder, self.weights, self.config)
        return builder, builder.create(self.team, self.pool, self.weights.maps)

    def _step(self, program: Any, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """Runs ``program`` and returns (piece, token position) of each output row. Rows of decode
        numerics come first, else in the order of pieces."""
        order: list[tuple[int, int]] = program.step_sequences(pieces)
        return order

    def output_order(self) -> list[tuple[int, int]]:
        """(piece, token position) of each output row of the last step."""
        return self._order

    def output(self, name: str) -> np.ndarray:
        """A view [outputs, width] of a named output of the last step; valid until the next one."""
        view: np.ndarray = self.program.output(self.builder.outputs[name])
        return view

    def output_rows(self, name: str) -> list[np.ndarray]:
        """Views [width] of every row that a named output can have, made once; those of the last
        step are valid until the next one."""
        if name not in self._rows:
            self._rows[name] = list(self.program.output(self.builder.outputs[name], all=True))
        return self._rows[name]

    def _free_beside_weights(self) -> int:
        """Memory left for the KV cache. Weights count in every mode: mapped pages are free memory
        only until they are read, and decode reads them all."""
        free = free_memory()
        if free <= self.weight_bytes:
            raise CapacityError(
                f"The weights take {self.weight_bytes} bytes; {free} are free.",
                remedy="Convert with fewer bits, or free memory.",
            )
        return free - self.weight_bytes

    def _cache_bytes(self) -> int:
        if not self.options.enable_prefix_caching:
            return 0
        asked = self.options.prefix_cache_memory_bytes
        return self.plan.bytes // 2 if asked is None else asked

    def _plan_pool(self) -> PoolPlan:
        budget = self.options.kv_cache_memory_bytes
        sequences = self.options.max_num_seqs
        plan = plan_pool(
            self.builder.kv.groups(),
            # what was asked for serves as many full contexts as may run at once, no more
            tokens=self.max_model_len * (1 if budget is None else sequences),
            max_num_seqs=sequences,
            chunk=self.builder.max_rows,
            budget=self._free if budget is None else budget,
            dtype=self.options.kv_cache_dtype,
        )
        if plan.bytes > self._free:
            raise CapacityError(
                f"A KV cache of {plan.bytes} bytes was asked for; {self._free} are free beside the "
                "weights.",
                remedy="Lower kv_cache_memory_bytes or max_model_len.",
            )
        return plan


def _team(threads: int | None) -> Any:
    """The thread team. Not pinned under a CPU quota, where other processes share the same CPUs, nor
    when more threads are asked for than there are CPUs."""
    cpus = cpu_budget()
    count = cpus.threads if threads is None else threads
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1024:
        raise ConfigError(f"threads = {threads!r}; an integer of 1 to 1024 is needed.")
    pin = cpus.quota is None and count <= len(cpus.affinity)
    return _native.Team(count, list(cpus.pin_list(count)) if pin else [])


def _context_length(max_model_len: int | None, limit: int) -> int:
    """The context length to serve: ``max_model_len``, or the model's own ``limit``."""
    if max_model_len is None:
        return limit
    if isinstance(max_model_len, bool) or not isinstance(max_model_len, int) or max_model_len < 1:
        raise ConfigError(f"max_model_len = {max_model_len!r}; a positive integer is needed.")
    if max_model_len > limit:
        raise ConfigError(
            f"max_model_len = {max_model_len}; the model was made for at most {limit} positions.",
            remedy=f"Use {limit} or less.",
        )
    return max_model_len
