"""``edge-infer fidelity``: how far a model's predictions are from those of a reference.

Every model sees the same tokens, one chunk after the other, and its predictions are compared row
by row, so that memory holds a few rows of logits and never a text's worth. Peers come in through
the file that llama-perplexity writes, with the same definitions.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import ConfigError
from edge_infer.harness import divergence
from edge_infer.harness.bench import Progress, now
from edge_infer.harness.divergence import Scores, log_softmax
from edge_infer.harness.identity import checkpoint_identity
from edge_infer.harness.logits_file import LogitsWriter, is_logits_file
from edge_infer.harness.predictions import (
    EnginePredictions,
    FilePredictions,
    Predictions,
    chunk_text,
    greedy,
    leading_bos,
    row_blocks,
)
from edge_infer.harness.provenance import edge_infer_build, portable, provenance
from edge_infer.harness.schema import Arm, Artifact, EngineBuild, Metric
from edge_infer.harness.schema_fidelity import Fidelity, GreedyCase

GREEDY_TOKENS = 64
PROMPTS = (
    "The lighthouse stood at the end of the harbour, and every evening",
    "Water boils at one hundred degrees at sea level, but on a high mountain",
    "def greatest_common_divisor(a, b):\n    while b:\n",
    "Q: What is the largest planet of the solar system?\nA:",
    "The most important inventions of the nineteenth century were",
    "Ingredients: two eggs, a cup of flour, a pinch of salt. First,",
    "Dear neighbours,\n\nnext Saturday we are going to",
    "La bibliothèque ouvre à neuf heures, mais le dimanche",
    '{"name": "kettle", "state": "on", "temperature":',
    "The train from Vienna arrived two hours late because",
    "1, 1, 2, 3, 5, 8, 13,",
    "In 1969, three astronauts left the Earth in order to",
)


@dataclass(frozen=True)
class FidelityOptions:
    """What to compare. ``chunks`` None: as many as the text has. ``prompts``: of PROMPTS, for the
    greedy continuations; they need models, so a reference that is a file allows none."""

    model: str
    reference: str
    text: Path
    context: int = 512
    chunks: int | None = None
    numerics: str = "prefill"
    kv_cache_dtype: str = "f16"
    prompts: int = len(PROMPTS)
    peer_models: tuple[Path, ...] = ()
    peer_logits: tuple[Path, ...] = ()
    save_logits: Path | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.prompts <= len(PROMPTS):
            raise ConfigError(f"prompts = {self.prompts}; 0 to {len(PROMPTS)} are there.")
        if self.chunks is not None and self.chunks < 1:
            raise ConfigError(f"chunks = {self.chunks}; 1 or more are needed.")

    def command(self) -> list[str]:
        """The command line that repeats this measurement."""
        words = ["edge-infer", "fidelity", self.model, "--reference", self.reference]
        words += ["--text", str(self.text), "--context", str(self.context)]
        if self.chunks is not None:
            words += ["--chunks", str(self.chunks)]
        words += ["--numerics", self.numerics, "--kv-cache-dtype", self.kv_cache_dtype]
        words += ["--prompts", str(self.prompts)]
        for peer in self.peer_models:
            words += ["--peer-model", str(peer)]
        for file in self.peer_logits:
            words += ["--peer-logits", str(file)]
        if self.threads is not None:
            words += ["--threads", str(self.threads)]
        return words


def score(
    reference: Predictions,
    models: Sequence[Predictions],
    tokens: npt.NDArray[np.int32],
    bos: int | None,
    *,
    writer: LogitsWriter | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Scores]:
    """Scores of each model against the reference over ``tokens`` [chunks, context].

    ``writer`` takes the reference's rows. Raises ConfigError for vocabularies of unequal size.
    """
    for model in models:
        if model.vocab_size != reference.vocab_size:
            raise ConfigError(
                f"{model.name} has a vocabulary of {model.vocab_size}, the reference "
                f"{reference.name} one of {reference.vocab_size}: they are no twins."
            )
    chunks, context = tokens.shape
    scores = [Scores() for _ in models]
    for index in range(chunks):
        ids = tokens[index].tolist()
        if bos is not None:
            ids[0] = bos
        sources = [source.blocks(index, ids) for source in (reference, *models)]
        for rows, *blocks in zip(row_blocks(context), *sources, strict=True):
            if writer is not None:
                writer.add(blocks[0])
            for i, row in enumerate(rows):  # one row at a time stays in the CPU's caches
                expected, *found = (
                    values[i] if source.normalized else log_softmax(values[i])
                    for source, values in zip((reference, *models), blocks, strict=True)
                )
                for mine, log_p in zip(scores, found, strict=True):
                    mine.add(expected, log_p, int(tokens[index, row + 1]))
        progress(index + 1, chunks)
    return scores


def fidelity(options: FidelityOptions, progress: Progress = lambda text: None) -> Artifact:
    """Compares a model, and peers if there are any, with a reference.

    Raises the engine's own errors, ConfigError where texts, tokens or vocabularies do not go
    together, and ExecutionError where a peer fails.
    """
    from edge_infer.checkpoint.resolve import resolve
    from edge_infer.harness.corpus import read_text
    from edge_infer.harness.peers.llamacpp_perplexity import PeerRun, log_probabilities

    started, clock = now(), time.monotonic()
    command = options.command()
    source = provenance()
    folder = resolve(options.model)
    text = read_text(options.text)
    tokenizer = Tokenizer.from_folder(folder)
    tokens = chunk_text(tokenizer, text, options.context, options.chunks)
    model = EnginePredictions(
        folder,
        options.context,
        numerics=options.numerics,
        kv_cache_dtype=options.kv_cache_dtype,
        threads=options.threads,
    )
    reference, reference_folder = _reference(options)
    if reference_folder is None and options.prompts:
        raise ConfigError(
            "Greedy continuations need a reference model; the reference is a file.",
            remedy="Leave them out with --prompts 0.",
        )
    given = [FilePredictions(path) for path in options.peer_logits]
    for file in (reference, *given):
        if isinstance(file, FilePredictions):
            _check_tokens(file, tokens)
    writer = None
    if options.save_logits is not None:
        writer = LogitsWriter(options.save_logits, tokens, reference.vocab_size)
    with PeerRun() as peers:
        ran = [
            log_probabilities(peers, gguf, options.text, tokens.shape, options.threads, progress)
            for gguf in options.peer_models
        ]
        for run in ran:
            _check_tokens(run.predictions, tokens)
        compared: list[Predictions] = [model, *(run.predictions for run in ran), *given]
        progress(f"comparing {len(tokens)} chunks")
        scores = score(
            reference,
            compared,
            tokens,
            leading_bos(tokenizer),
            writer=writer,
            progress=lambda done, total: progress(f"chunk {done} of {total}"),
        )
    if writer is not None:
        writer.close()
    info = (model.runner.program.isa, model.runner.team.threads)
    del compared, model
    cases: list[GreedyCase] = []
    if reference_folder is not None and options.prompts:
        progress("greedy continuations")
        cases = greedy_cases(folder, reference_folder, tokenizer, options)

    def record(own: Scores, numerics: str, cases: Sequence[GreedyCase] = ()) -> Fidelity:
        return summarize(own, reference.name, numerics, cases)

    arms = [
        Arm(
            name="edge-infer",
            engine=edge_infer_build(),
            command=portable(command),
            threads=info[1],
            isa=info[0],
            settings={"kv_cache_dtype": options.kv_cache_dtype},
            checkpoint=checkpoint_identity(folder),
            fidelity=record(scores[0], options.numerics, cases),
        )
    ]
    for run, own in zip(ran, scores[1:], strict=False):
        arms.append(
            Arm(
                name=f"llama.cpp {run.model.name}",
                engine=run.build,
                command=portable(run.command),
                threads=run.threads,
                checkpoint=checkpoint_identity(run.model),
                fidelity=record(own, "file"),
            )
        )
    for file, own in zip(given, scores[1 + len(ran) :], strict=True):
        arms.append(
            Arm(
                name=file.name,
                engine=EngineBuild(name="file", version="unknown"),
                command=[],
                threads=0,
                fidelity=record(own, "file"),
            )
        )
    return Artifact(
        kind="fidelity",
        command=portable(command),
        started_at=started,
        duration_seconds=time.monotonic() - clock,
        parameters={
            "context": options.context,
            "chunks": len(tokens),
            "numerics": options.numerics,
            "kv_cache_dtype": options.kv_cache_dtype,
            "text": options.text.name,
            "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "tokens_sha256": hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest(),
            "reference": reference.name,
        },
        provenance=source,
        arms=[arm.model_copy(update={"metrics": metrics(arm)}) for arm in arms],
    )


def _reference(options: FidelityOptions) -> tuple[Predictions, Path | None]:
    """The reference's predictions, and its folder where it is a model."""
    from edge_infer.checkpoint.resolve import resolve

    path = Path(options.reference)
    if is_logits_file(path):
        return FilePredictions(path), None
    # a plain folder is the reference as it is; only a GGUF file must be converted to run at all
    folder = resolve(options.reference, convert=path.is_file())
    return EnginePredictions(folder, options.context, threads=options.threads), folder


def _check_tokens(file: FilePredictions, tokens: npt.NDArray[np.int32]) -> None:
    """ConfigError unless a file's chunks begin with exactly these tokens."""
    chunks, context = tokens.shape
    there = file.file
    if there.context != context or there.chunks < chunks:
        raise ConfigError(
            f"{file.name} has {there.chunks} chunks of {there.context} tokens; {chunks} of "
            f"{context} are compared.",
            remedy="Use the same --context, and --chunks that the file has.",
        )
    differ = np.flatnonzero(there.tokens[:chunks].reshape(-1) != tokens.reshape(-1))
    if len(differ):
        at = int(differ[0])
        raise ConfigError(
            f"{file.name} was made of other tokens: token {at} is "
            f"{there.tokens.reshape(-1)[at]}, not {tokens.reshape(-1)[at]}.",
            remedy="Use the same text for both; the tokenizers must be the same too.",
        )


def summarize(
    scores: Scores, reference: str, numerics: str, greedy: Sequence[GreedyCase] = ()
) -> Fidelity:
    """The record of an arm's scores."""
    kl = divergence.Estimate.mean(scores.kl)
    top = divergence.agreement(scores.same_top)
    own = divergence.perplexity(scores.nll)
    base = divergence.perplexity(scores.reference_nll)
    pairs = zip(scores.nll, scores.reference_nll, strict=True)
    ratio = divergence.Estimate.mean([a - b for a, b in pairs])
    return Fidelity(
        reference=reference,
        numerics=numerics,
        positions=len(scores.kl),
        kl_mean=kl.value,
        kl_mean_error=kl.error,
        kl_median=divergence.quantile(scores.kl, 0.5),
        kl_p99=divergence.quantile(scores.kl, 0.99),
        kl_max=max(scores.kl),
        top1_agreement=top.value,
        top1_agreement_error=top.error,
        perplexity=own.value,
        perplexity_error=own.error,
        reference_perplexity=base.value,
        reference_perplexity_error=base.error,
        log_perplexity_ratio=ratio.value,
        log_perplexity_ratio_error=ratio.error,
        greedy=list(greedy),
    )


def metrics(arm: Arm) -> list[Metric]:
    """The figures of an arm that tables and gates read."""
    found = arm.fidelity
    if found is None:
        return []
    values = [
        Metric.of("kl.mean", "nats", "lower", [found.kl_mean]),
        Metric.of("kl.median", "nats", "lower", [found.kl_median]),
        Metric.of("kl.p99", "nats", "lower", [found.kl_p99]),
        Metric.of("top1.agreement", "ratio", "higher", [found.top1_agreement]),
        Metric.of("perplexity", "ratio", "lower", [found.perplexity]),
    ]
    if arm.checkpoint is not None and arm.checkpoint.groups:
        bits = 8 * sum(g.bytes for g in arm.checkpoint.groups)
        weights = sum(g.parameters for g in arm.checkpoint.groups)
        values.append(Metric.of("bits_per_weight", "bits", "lower", [bits / weights]))
    return values


def greedy_cases(
    folder: Path, reference: Path, tokenizer: Tokenizer, options: FidelityOptions
) -> list[GreedyCase]:
    """Where the greedy continuations of the fixed prompts first differ."""
    texts = PROMPTS[: options.prompts]
    prompts = [tokenizer.encode(text) for text in texts]
    mine, theirs = (
        greedy(path, prompts, GREEDY_TOKENS, kv_cache_dtype=dtype, threads=options.threads)
        for path, dtype in ((folder, options.kv_cache_dtype), (reference, "f16"))
    )
    cases = []
    for text, a, b in zip(texts, mine, theirs, strict=True):
        differ = (i for i in range(GREEDY_TOKENS) if a[i] != b[i])
        cases.append(
            GreedyCase(prompt=text, tokens=GREEDY_TOKENS, first_difference=next(differ, None))
        )
    return cases
