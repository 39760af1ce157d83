"""What the endpoints of one server share."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_infer.engine.chat_template import ChatTemplate
from edge_infer.engine.chat_template import load as load_chat_template
from edge_infer.engine.params import SamplingParams
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import CapacityError, ConfigError, EngineStoppedError, ExecutionError
from edge_infer.server.config import ServerConfig
from edge_infer.server.errors import ApiError
from edge_infer.server.grammar import GrammarCompiler, GrammarSpec
from edge_infer.server.metrics import Metrics
from edge_infer.server.response_store import ResponseStore
from edge_infer.server.tools import format_for

if TYPE_CHECKING:
    from starlette.requests import Request

    from edge_infer.engine.request import Call, TokenConstraint
    from edge_infer.engine.serving import Delta, Generation, ServingEngine

log = logging.getLogger(__name__)
_CHARS_PER_TOKEN = 256  # more than the longest tokens of any vocabulary in use have


class ServerContext:
    """Engine, settings and state of one server; ``context_of(request)`` in an endpoint."""

    def __init__(self, engine: ServingEngine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.tokenizer: Tokenizer = engine.llm.tokenizer
        self.templates = ChatTemplates(self.tokenizer, config)
        if config.chat_template is not None:
            self.templates.get()  # what is wrong with it is said now, and not to a client
        if config.tool_format is not None:
            format_for(None, config.tool_format)  # likewise
        self._grammars = self._new_compiler()
        self.metrics = Metrics(engine)
        self.responses = ResponseStore()
        self.defaults = sampling_defaults(engine.llm.path)
        self.started = int(time.time())
        self.in_flight = 0  # HTTP requests that count as use
        self.draining = False
        self.ledger_lock = asyncio.Lock()
        self.last_ledger: tuple[float, dict[str, Any]] = (-math.inf, {})  # when it was taken

    def _new_compiler(self) -> GrammarCompiler:
        return GrammarCompiler(self.tokenizer, self.engine.llm.vocab_size)

    def wants_grammars(self) -> bool:
        """Whether the vocabulary should be read for grammars as soon as nobody is held up by it."""
        return not self.config.lazy_grammars and not self._grammars.prepared

    async def prepare_grammars(self) -> None:
        """Reads it. Raises EdgeInferError when the tokenizer cannot be used with grammars."""
        await asyncio.to_thread(self._grammars.prepare)

    async def suspend(self) -> None:
        """Gives back the memory of weights, KV pool, tokenizer and grammars, if nothing runs. The
        next request that needs them loads them."""
        compiler, self._grammars = self._grammars, self._new_compiler()
        if await self.engine.suspend():
            log.info("Idle: the model is unloaded until it is needed.")
        else:
            self._grammars = compiler

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises ApiError 404 for a model that is not served."""
        if name is None:
            return self.config.model_names[0]
        if name not in self.config.model_names:
            raise ApiError(
                f"The model {name[:200]!r} is not served here.",
                status=404,
                param="model",
                code="model_not_found",
                remedy=f"Use {', '.join(self.config.model_names)}.",
            )
        return name

    def check_limits(self, *, n: int | None, **logprobs: int | None) -> None:
        """Raises ApiError 400 for more choices or log-probabilities than this server gives."""
        for param, value, most in (
            ("n", n, self.config.max_choices),
            *((name, value, self.config.max_logprobs) for name, value in logprobs.items()),
        ):
            if value is not None and value > most:
                raise ApiError(f"{param} = {value}; at most {most} is accepted.", param=param)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Raises CapacityError (``context_length_exceeded``) at once for a text so long
        that it cannot fit, before the tokenizer spends seconds and memory on it."""
        most = self.engine.llm.max_model_len
        if len(text) > most * _CHARS_PER_TOKEN:
            raise CapacityError(
                f"The prompt has {len(text)} characters; the context holds {most} tokens.",
                remedy="Shorten the prompt, or raise max_model_len.",
                code="context_length_exceeded",
            )
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def check_tokens(self, ids: Sequence[int], param: str) -> None:
        """Raises ApiError 400 for an id outside the vocabulary."""
        size = self.engine.llm.vocab_size
        outside = next((i for i in ids if i >= size), None)
        if outside is not None:
            raise ApiError(f"Token id {outside} is outside the vocabulary of {size}.", param=param)

    def compile(self, spec: GrammarSpec, param: str) -> Callable[[], TokenConstraint]:
        """A maker of constraints. Takes milliseconds, or seconds at the first grammar: not for the
        event loop. Raises ApiError 400, about ``param``, for a grammar that cannot be used."""
        try:
            return self._grammars.compile(spec)
        except ConfigError as e:
            raise ApiError(e.message, remedy=e.remedy, code=e.code, param=param) from e

    def generate(
        self,
        prompt: Any,
        params: SamplingParams,
        constraint: Callable[[], TokenConstraint] | None = None,
        call: Call | None = None,
    ) -> Generation:
        """Queues a request; raises EdgeInferError at once for one that cannot run."""
        return self.engine.generate(prompt, params, constraint=constraint, call=call)

    async def deltas(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """The deltas of a generation, timed. Closing it cancels the generation.

        Raises what ended a choice with ``error``, and EngineStoppedError when the engine stopped
        under it.
        """
        clock = self.metrics.clock()
        try:
            async for delta in generation:
                if delta.token_ids:
                    clock.tick(delta.index, delta.finish_reason is not None)
                if delta.finish_reason == "error":
                    raise generation.error or ExecutionError("The engine failed on this request.")
                if delta.finish_reason == "abort":
                    raise EngineStoppedError(
                        "The server stopped before the answer was complete.",
                        remedy="Ask again later.",
                    )
                yield delta
        finally:
            generation.cancel()


class ChatTemplates:
    """The model's compiled chat templates, each compiled once."""

    def __init__(self, tokenizer: Tokenizer, config: ServerConfig) -> None:
        self._tokenizer = tokenizer
        self._override = config.chat_template
        self._compiled: dict[bool, ChatTemplate] = {}
        self._lock = threading.Lock()

    @property
    def exist(self) -> bool:
        """Whether this model can chat."""
        return bool(self._override or self._tokenizer.chat_templates)

    def get(self, with_tools: bool = False) -> ChatTemplate:
        """Raises UnsupportedError (``chat_template_missing``) for a base model."""
        with self._lock:
            if with_tools not in self._compiled:
                self._compiled[with_tools] = load_chat_template(
                    self._tokenizer, self._override, with_tools=with_tools
                )
            return self._compiled[with_tools]


def sampling_defaults(folder: Path) -> dict[str, Any]:
    """Sampling parameters that the model's generation_config.json recommends, for requests that
    leave them out."""
    try:
        found = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    defaults: dict[str, Any] = {}
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        value = found.get(name) if isinstance(found, dict) else None
        if value is None:
            continue
        try:
            SamplingParams(**{name: value})
        except ConfigError as e:
            log.warning("generation_config.json: %s It is left out.", e.message)
        else:
            defaults[name] = value
    return defaults


def context_of(request: Request) -> ServerContext:
    """The context of the app that serves ``request``."""
    context: ServerContext = request.app.state.context
    return context
