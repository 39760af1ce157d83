"""The Python API: open a model, generate, chat, stream."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_infer.device.usage import give_back_heap
from edge_infer.engine.chat_template import load as load_chat_template
from edge_infer.engine.detokenizer import Detokenizer
from edge_infer.engine.embedding import EmbeddingJob
from edge_infer.engine.outputs import RequestOutput
from edge_infer.engine.params import SamplingParams
from edge_infer.engine.request import Call, Request, TokenConstraint
from edge_infer.engine.request import output as request_output
from edge_infer.engine.runner import ModelRunner, RunnerOptions
from edge_infer.engine.scheduler import Counters, Scheduler
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import CapacityError, ConfigError

Prompt = str | Mapping[str, Any] | Sequence[int]


@dataclass(frozen=True)
class KvUse:
    """``running`` sequences, the blocks and bytes that they hold, and those that stay filled for
    the prefix cache."""

    running: int
    blocks: int
    bytes: int
    cached_blocks: int
    cached_bytes: int


class LLM:
    """A model ready to generate.

    ``model``: a converted folder, a Hugging Face folder, a GGUF file or a hub id (all but the
    first are converted once into the cache). ``max_model_len``: context length, default the
    model's own. ``kv_cache_memory_bytes``: size of the KV pool, default what the context needs,
    bounded by free memory. ``kv_cache_dtype``: f16, bf16, or int8 with a scale per token and
    head, at half the memory. ``weights``: mapped, resident or locked. ``enable_prefix_caching``:
    prompts that begin alike are computed once; ``prefix_cache_memory_bytes``: how much of the KV
    pool may stay filled for that while nothing uses it, default half of the pool.
    ``speculative``: None, or ngram to guess tokens from earlier ones and verify several in a step;
    tokens stay the same, and text that repeats its prompt comes faster. ``progress``: called with
    bytes done and bytes in all while the model is converted. ``load_seconds``: what opening took
    after that; the tokenizer loads at first need.

    Raises an EdgeInferError when the model cannot run.

    Calls from several threads share the steps of one batch.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        max_model_len: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        kv_cache_dtype: str = "f16",
        threads: int | None = None,
        weights: str = "mapped",
        chunk_size: int = 256,
        max_num_seqs: int = 8,
        enable_prefix_caching: bool = True,
        prefix_cache_memory_bytes: int | None = None,
        speculative: str | None = None,
        chat_template: str | Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        from edge_infer.checkpoint.resolve import resolve

        self._options = RunnerOptions(
            max_model_len=max_model_len,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            kv_cache_dtype=kv_cache_dtype,
            threads=threads,
            weights=weights,
            chunk_size=chunk_size,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=enable_prefix_caching,
            prefix_cache_memory_bytes=prefix_cache_memory_bytes,
            speculative=speculative,
        )
        self.path = resolve(model, progress=progress)
        started = time.perf_counter()
        self.tokenizer = Tokenizer.from_folder(self.path)
        self.lock = threading.RLock()  # one step at a time; calls beside each other share steps
        self.counters = Counters()
        self._embedding: EmbeddingJob | None = None
        self._loaded: tuple[ModelRunner, Scheduler] | None = None
        runner = self.runner
        self.vocab_size = runner.vocab_size
        self.max_model_len = runner.max_model_len
        self.max_num_seqs = max_num_seqs
        self.kv_plan = runner.plan
        # The pool that was planned is the pool that comes back after a suspension.
        self._options = replace(self._options, kv_cache_memory_bytes=runner.plan.bytes)
        self._template_override = chat_template
        self._ids = itertools.count()
        self.load_seconds = time.perf_counter() - started

    @property
    def runner(self) -> ModelRunner:
        """The model in memory, loaded if it is suspended."""
        return self._resumed()[0]

    @property
    def scheduler(self) -> Scheduler:
        return self._resumed()[1]

    @property
    def suspended(self) -> bool:
        return self._loaded is None

    def suspend(self) -> bool:
        """Unmaps the weights and frees the KV pool and the tokenizer, until the next call that
        needs them. False, with nothing changed, while requests run."""
        with self.lock:
            if self._loaded is not None:
                _, scheduler = self._loaded
                if scheduler.busy or scheduler.runner.blocks.used_blocks():
                    return False
                self._loaded = None
                del scheduler
            self.tokenizer.unload()
        give_back_heap()
        return True

    def resume(self) -> None:
        """Loads what :meth:`suspend` gave back. Whatever needs it does so by itself."""
        self._resumed()

    def kv_use(self) -> KvUse:
        """What runs and what the KV pool holds now; never loads a suspended model."""
        loaded = self._loaded
        if loaded is None:
            return KvUse(0, 0, 0, 0, 0)
        blocks = loaded[0].blocks
        return KvUse(
            len(loaded[1].running),
            blocks.used_blocks(),
            blocks.used_bytes(),
            blocks.cached_blocks(),
            blocks.cache.idle_bytes(),
        )

    def _resumed(self) -> tuple[ModelRunner, Scheduler]:
        with self.lock:
            if self._loaded is None:
                runner = ModelRunner(self.path, self._options)
                self._loaded = runner, Scheduler(runner, self.counters)
            return self._loaded

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Completes each prompt, ``params.n`` times; a list runs as one batch. A prompt is a
        string, a list of token ids, or ``{"prompt_token_ids": [...]}``."""
        if not isinstance(prompts, (Sequence, Mapping)):
            raise _not_a_prompt(prompts)
        single = isinstance(prompts, (str, bytes, bytearray, Mapping)) or (
            len(prompts) > 0 and isinstance(prompts[0], int)
        )
        many: Sequence[Any] = [prompts] if single else list(prompts)
        all_params = (
            [params or SamplingParams()] * len(many)
            if not isinstance(params, Sequence)
            else list(params)
        )
        if len(all_params) != len(many):
            raise ConfigError(
                f"{len(many)} prompts came with {len(all_params)} sampling parameters."
            )
        prompted = [self.new_requests(p, s) for p, s in zip(many, all_params, strict=True)]
        self._run([r for choices in prompted for r in choices])
        return [request_output(choices) for choices in prompted]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | None = None,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several as a batch, through the checkpoint's chat
        template."""
        if not messages:
            raise ConfigError("chat needs at least one message.")
        conversations: Sequence[Any] = [messages] if isinstance(messages[0], Mapping) else messages
        prompts = [self.chat_prompt(c, **template_kwargs) for c in conversations]
        return self.generate(prompts, params)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any
    ) -> dict[str, Any]:
        """The conversation as a prompt: rendered text and token ids. The template writes BOS
        itself."""
        template = load_chat_template(
            self.tokenizer, self._template_override, with_tools=bool(template_kwargs.get("tools"))
        )
        text = template.render(messages, **template_kwargs)
        return {
            "prompt": text,
            "prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False),
        }

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[str, None, RequestOutput]:
        """Text deltas of one completion. They never split a character, and never show part of a
        stop string. Closing the iterator cancels the request. The generator's return value is the
        finished output."""
        (request, *others) = self.new_requests(prompt, params or SamplingParams())
        if others:
            raise ConfigError(
                f"n = {len(others) + 1}; a stream has one choice.", remedy="Use generate."
            )
        with self.lock:
            self.scheduler.add(request)
        try:
            while not request.finished:
                self._step([request])
                if text := request.take_text():
                    yield text
            if text := request.take_text():  # a call beside this one ended it
                yield text
            _raise_errors([request])
            return request_output([request])
        finally:
            self._abort([request])

    def embed(self, prompts: Sequence[Prompt], pooling: str = "mean") -> list[np.ndarray]:
        """Embeddings f32 [hidden] of length 1, one a prompt: the ``mean`` or the ``last`` of its
        tokens' hidden states after the model's last norm.

        Raises ConfigError for another pooling or a bad prompt, CapacityError
        (``context_length_exceeded``) for a prompt that does not fit.
        """
        job = self.embedding_job(prompts, pooling)
        try:
            while not job.finished:
                with self.lock:
                    self.step_embedding(job)
        finally:
            with self.lock:
                self.end_embedding(job)
        return job.vectors

    def embedding_job(self, prompts: Sequence[Prompt], pooling: str) -> EmbeddingJob:
        """What :meth:`embed` does, for someone who steps it."""
        tokens = [self._tokens(p)[1] for p in prompts]
        for ids in tokens:
            if len(ids) > self.max_model_len:
                raise CapacityError(
                    f"The prompt has {len(ids)} tokens; the context holds {self.max_model_len}.",
                    remedy="Shorten the prompt, or raise max_model_len.",
                    code="context_length_exceeded",
                )
            self.kv_plan.check_possible(len(ids))
        return EmbeddingJob(tokens, pooling)

    def step_embedding(self, job: EmbeddingJob, rows: int | None = None) -> int:
        """At most ``rows`` rows, None for a chunk, unless another job is at work: two that each
        hold a part of the pool could wait for each other for ever. Returns the number. The caller
        holds ``lock``."""
        self._embedding = self._embedding or job
        return job.step(self.runner, rows) if self._embedding is job else 0

    def end_embedding(self, job: EmbeddingJob) -> None:
        """Gives back what a job holds, finished or not. The caller holds ``lock``."""
        job.close()
        if self._embedding is job:
            self._embedding = None

    def _run(self, requests: list[Request]) -> None:
        try:
            with self.lock:
                for r in requests:
                    self.scheduler.add(r)
            while any(not r.finished for r in requests):
                self._step(requests)
            _raise_errors(requests)
        except BaseException:
            self._abort(requests)
            raise

    def _step(self, requests: list[Request]) -> None:
        """One step of everything that runs, unless another call has finished ``requests``."""
        with self.lock:
            if any(not r.finished for r in requests):
                self.scheduler.step()

    def _abort(self, requests: list[Request]) -> None:
        with self.lock:
            for r in requests:
                if not r.finished:
                    self.scheduler.abort(r)

    def new_requests(
        self,
        prompt: Prompt,
        params: SamplingParams,
        constraint: Callable[[], TokenConstraint] | None = None,
        call: Call | None = None,
    ) -> list[Request]:
        """The ``params.n`` choices of one prompt, ready for the scheduler. ``constraint`` makes
        what restricts one choice's output; ``call``: what they belong to, by default one of their
        own.

        Raises ConfigError for a prompt that is none, CapacityError (``context_length_exceeded``)
        for one that leaves no room for an answer.
        """
        if constraint is not None and params.ignore_eos:
            raise ConfigError(
                "ignore_eos makes no sense with a constraint on the output, which EOS ends.",
                remedy="Leave one of them out.",
            )
        text, ids = self._tokens(prompt)
        room = self.max_model_len - len(ids)
        least = 0 if params.max_tokens == 0 else 1
        if room < least:
            answer = ", one of them for the answer" if least else ""
            raise CapacityError(
                f"The prompt has {len(ids)} tokens; the context holds {self.max_model_len}"
                f"{answer}.",
                remedy="Shorten the prompt, or raise max_model_len.",
                code="context_length_exceeded",
            )
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        fits = self.kv_plan.tokens - len(ids)
        if fits < least:
            raise CapacityError(
                f"The prompt has {len(ids)} tokens; the KV cache holds {self.kv_plan.tokens}.",
                remedy="Shorten the prompt, or raise kv_cache_memory_bytes.",
                code="context_length_exceeded",
            )
        name = f"req-{next(self._ids)}"
        arrival = time.perf_counter()
        # Asking for them loads the tokenizer, which a request of bare tokens can do without.
        eos = frozenset(() if params.ignore_eos else self.tokenizer.eos_token_ids)
        shared = Call()
        requests = [
            Request(
                name,
                text,
                ids,
                params,
                vocab_size=self.vocab_size,
                max_tokens=min(max_tokens, fits),
                eos_token_ids=eos,
                detokenizer=self._detokenizer(params) if params.detokenize else None,
                arrival=arrival,
                choice=choice,
                constraint=None if constraint is None else constraint(),
                call=call or shared,
            )
            for choice in range(params.n)
        ]
        for r in requests[1:]:
            r.leader = requests[0]
        self.kv_plan.check_possible(len(ids) + requests[0].max_tokens)
        return requests

    def _detokenizer(self, params: SamplingParams) -> Detokenizer:
        return Detokenizer(
            self.tokenizer,
            params.stop_strings,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            keep_special=params.keep_special_token_ids,
        )

    def _tokens(self, prompt: Any) -> tuple[str | None, list[int]]:
        text: str | None = None
        ids: Any
        if isinstance(prompt, str):
            text, ids = prompt, self.tokenizer.encode(prompt)
        elif isinstance(prompt, Mapping):
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
            if ids is None:
                if not isinstance(text, str):
                    raise ConfigError("A prompt object needs prompt or prompt_token_ids.")
                ids = self.tokenizer.encode(text)
        else:
            ids = prompt
        if not isinstance(ids, Sequence) or isinstance(ids, (str, bytes, bytearray)):
            raise _not_a_prompt(prompt)
        if not ids:
            raise ConfigError("The prompt is empty.", remedy="Give at least one token.")
        size = self.vocab_size
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < size:
                raise ConfigError(f"Token id {i!r} is outside the vocabulary of {size}.")
        return text, list(ids)


def _not_a_prompt(value: Any) -> ConfigError:
    return ConfigError(
        f"{str(value)[:80]!r} of type {type(value).__name__} is not a prompt.",
        remedy="Give a string, a list of token ids, or an object with prompt_token_ids.",
    )


def _raise_errors(requests: list[Request]) -> None:
    for r in requests:
        if r.error is not None:
            raise r.error
