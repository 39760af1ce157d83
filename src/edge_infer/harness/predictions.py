"""Where predictions over a text come from: our engine, or a file that llama-perplexity wrote.

A text is cut into chunks of ``context`` tokens; every chunk starts from an empty cache, its first
token replaced by the BOS where the tokenizer adds one, and the second half of it is scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge_infer.engine.runner import ModelRunner, Piece, RunnerOptions
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import CapacityError, ConfigError
from edge_infer.harness.logits_file import LogitsFile, scored

ROWS = 128  # rows of logits at a time: what bounds the memory of a comparison
NUMERICS = ("prefill", "decode")


class Predictions(Protocol):
    """Logits, or log-probabilities where ``normalized``, of every scored position of a chunk."""

    name: str
    vocab_size: int
    normalized: bool

    def blocks(self, chunk: int, tokens: list[int]) -> Iterator[npt.NDArray[np.float32]]:
        """[at most ROWS, vocabulary] at a time, in order; valid until the next one is asked for."""


def row_blocks(context: int) -> Iterator[range]:
    """The scored positions in runs of at most ROWS, the same for every source."""
    rows = scored(context)
    for start in range(rows.start, rows.stop, ROWS):
        yield range(start, min(start + ROWS, rows.stop))


class EnginePredictions:
    """A model run by the native engine. ``numerics``: as prompt rows, or as generated ones."""

    normalized = False

    def __init__(
        self,
        folder: Path,
        context: int,
        *,
        numerics: str = "prefill",
        kv_cache_dtype: str = "f16",
        threads: int | None = None,
    ) -> None:
        if numerics not in NUMERICS:
            raise ConfigError(f"numerics is {numerics!r}.", remedy="Choose prefill or decode.")
        self.name = folder.name
        self.numerics = numerics
        self._context = context
        self.runner = ModelRunner(
            folder,
            RunnerOptions(
                max_model_len=context,
                kv_cache_dtype=kv_cache_dtype,
                threads=threads,
                chunk_size=ROWS,
                max_num_seqs=1,
                all_outputs=True,
            ),
        )
        self.vocab_size = self.runner.vocab_size

    def blocks(self, chunk: int, tokens: list[int]) -> Iterator[npt.NDArray[np.float32]]:
        blocks = self.runner.blocks.new_sequence()
        prompt = len(tokens) if self.numerics == "prefill" else 1
        first = scored(self._context).start
        unscored = (range(start, min(start + ROWS, first)) for start in range(0, first, ROWS))
        try:
            for rows in (*unscored, *row_blocks(self._context)):
                if not self.runner.blocks.reserve(blocks, rows.stop):
                    raise CapacityError(f"The KV cache does not hold {rows.stop} tokens.")
                wanted = rows.start >= first
                piece = Piece(tokens, rows.start, len(rows), prompt, blocks, False, wanted)
                self.runner.run([piece])
                self.runner.blocks.drop_unseen(blocks, rows.stop)
                if wanted:
                    yield self.runner.output("logits")
        finally:
            self.runner.blocks.free(blocks)


def greedy(
    folder: Path,
    prompts: list[list[int]],
    count: int,
    *,
    kv_cache_dtype: str = "f16",
    threads: int | None = None,
) -> list[list[int]]:
    """The ``count`` most likely tokens after each prompt, one after the other; no EOS ends them.

    The folder runs as it is: unlike `LLM`, nothing is converted."""
    runner = ModelRunner(
        folder,
        RunnerOptions(kv_cache_dtype=kv_cache_dtype, threads=threads, max_num_seqs=len(prompts)),
    )
    texts = [list(prompt) for prompt in prompts]
    blocks = [runner.blocks.new_sequence() for _ in prompts]
    done = [0] * len(prompts)
    for _ in range(count):
        # prompts one by one, since together they may be more rows than a step takes
        steps = [[i] for i in range(len(texts))] if not any(done) else [list(range(len(texts)))]
        for step in steps:
            pieces = []
            for i in step:
                rows = len(texts[i]) - done[i]
                if not runner.blocks.reserve(blocks[i], len(texts[i])):
                    raise CapacityError(f"The KV cache does not hold {len(prompts)} continuations.")
                pieces.append(Piece(texts[i], done[i], rows, len(prompts[i]), blocks[i], True))
                done[i] = len(texts[i])
            runner.run(pieces)
            best = runner.output("logits").argmax(axis=1)
            for row, (piece, _) in enumerate(runner.output_order()):
                texts[step[piece]].append(int(best[row]))
            for i in step:
                runner.blocks.drop_unseen(blocks[i], done[i])
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


class FilePredictions:
    """Log-probabilities of a file in llama-perplexity's format. They are taken as they are: the
    format lifts the tail, and over a large vocabulary that adds percents to their sum."""

    normalized = True

    def __init__(self, path: Path) -> None:
        self.file = LogitsFile(path)
        self.name = path.name
        self.vocab_size = self.file.vocab_size

    def blocks(self, chunk: int, tokens: list[int]) -> Iterator[npt.NDArray[np.float32]]:
        first = scored(self.file.context).start
        for rows in row_blocks(self.file.context):
            yield self.file.log_probabilities(chunk, rows.start - first, rows.stop - first)


def chunk_text(
    tokenizer: Tokenizer, text: str, context: int, chunks: int | None
) -> npt.NDArray[np.int32]:
    """Token ids [chunks, context] of the beginning of a text. Control tokens in it stay text.

    Raises ConfigError for a context too short, and where the text has not enough tokens.
    """
    if context < 16:
        raise ConfigError(f"context = {context}; 16 or more are needed.")
    ids = tokenizer.encode(text, parse_special=False)
    there = len(ids) // context
    count = there if chunks is None else chunks
    if count < 1 or count > there:
        raise ConfigError(
            f"{max(count, 1)} chunks of {context} tokens are needed; the text has {len(ids)} "
            f"tokens, {there} chunks.",
            remedy="Ask for fewer chunks, or give a longer text.",
        )
    return np.asarray(ids[: count * context], np.int32).reshape(count, context)


def leading_bos(tokenizer: Tokenizer) -> int | None:
    """The token that the tokenizer puts before every text, or None."""
    ids = tokenizer.encode("")
    return ids[0] if ids else None
