"""How much each input channel of each linear matters: its mean square over a text.

The program of the unquantized model is built with the inputs of its linears as outputs, run over
the text, and the squares are summed. Memory holds one step's activations and one number a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_infer.engine.runner import ModelRunner, Piece, RunnerOptions
from edge_infer.errors import CapacityError, ConfigError
from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.values import OUTPUTS, Linear, Value
from edge_infer.models.weights import Weights

ROWS = 64  # of a step: bounds what the kept activations take
CONTEXT = 512


class _NamedWeights(Weights):
    """Remembers which module a matrix came from."""

    def linear(self, module: str, n: int, k: int, *, bias: bool | None = None) -> Linear:
        found = super().linear(module, n, k, bias=bias)
        self.__dict__.setdefault("modules", []).append((found.weight, module))
        return found

    def module_of(self, linear: Linear) -> str:
        return next(m for w, m in self.__dict__["modules"] if w is linear.weight)


class _InputsKept(ProgramBuilder):
    """Names the input of every linear as an output."""

    def __init__(self, weights: _NamedWeights, **options: Any) -> None:
        super().__init__(**options)
        self._named = weights
        self.inputs: dict[int, list[str]] = {}
        """Modules by the buffer that they read."""

    def linear(
        self, x: Value, weights: Linear | Sequence[Linear], *, add_to: Value | None = None
    ) -> Any:
        # a buffer of its own, since others may be written over before the step ends
        x = self.store(self.scale(x, 1.0))
        parts = [weights] if isinstance(weights, Linear) else list(weights)
        assert x.ref is not None
        names = self.inputs.setdefault(x.ref[0], [])
        names += [self._named.module_of(w) for w in parts]
        self.output(f"input of {names[0]}", x)
        if x.space == OUTPUTS:  # the head: its product is the dearest of all, and nobody reads it
            total = sum(w.n for w in parts)
            return Value(total, x.space, self._buffer(total, x.space))
        return super().linear(x, weights, add_to=add_to)


class _CalibrationRunner(ModelRunner):
    weights_type = _NamedWeights

    def make_builder(self, **options: Any) -> ProgramBuilder:
        assert isinstance(self.weights, _NamedWeights)
        self.kept = _InputsKept(self.weights, **options)
        return self.kept


def input_importance(
    folder: Path,
    tokens: Sequence[int],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, npt.NDArray[np.float32]]:
    """The mean square of every input channel by module: f32 [K] each.

    ``tokens`` run in pieces of at most 512, each from an empty cache. ``progress(done, total)``
    counts tokens. Raises ConfigError for no tokens, and what opening the folder raises.
    """
    if not tokens:
        raise ConfigError("There are no tokens to calibrate on.")
    runner = _CalibrationRunner(
        folder,
        RunnerOptions(
            max_model_len=min(CONTEXT, len(tokens)),
            threads=threads,
            chunk_size=ROWS,
            max_num_seqs=1,
            all_outputs=True,  # the head's input too is wanted for every row
        ),
    )
    sums: dict[int, npt.NDArray[np.float64]] = {}
    for start in range(0, len(tokens), CONTEXT):
        piece = list(tokens[start : start + CONTEXT])
        blocks = runner.blocks.new_sequence()
        for first in range(0, len(piece), ROWS):
            rows = min(ROWS, len(piece) - first)
            if not runner.blocks.reserve(blocks, first + rows):
                raise CapacityError(f"The KV cache does not hold {first + rows} tokens.")
            runner.run([Piece(piece, first, rows, len(piece), blocks, False, True)])
            for buffer in runner.kept.inputs:
                values = runner.program.output(buffer)
                squares = np.einsum("rk,rk->k", values, values, dtype=np.float64)
                sums[buffer] = sums.get(buffer, 0) + squares
            runner.blocks.drop_unseen(blocks, first + rows)
            progress(start + first + rows, len(tokens))
        runner.blocks.free(blocks)
    out: dict[str, npt.NDArray[np.float32]] = {}
    for buffer, modules in runner.kept.inputs.items():
        mean = (sums[buffer] / len(tokens)).astype(np.float32)
        out |= dict.fromkeys(modules, mean)
    return out
