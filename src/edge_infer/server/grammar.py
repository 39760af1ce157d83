"""Grammars that output must follow: JSON schemas, regular expressions, choices, Lark, tool calls.

llguidance parses them and tells, before each token, which tokens may follow. Its limits bound the
time and memory of a grammar: what goes over them is an error of the one request.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edge_infer.errors import ConfigError, ExecutionError, UnsupportedError
from edge_infer.server.json_text import loads

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    from edge_infer.engine.tokenizer import Tokenizer

Kind = Literal["json_object", "json_schema", "regex", "choice", "lark", "structure"]

MAX_SOURCE_CHARS = 1 << 20
MAX_REGEX_CHARS = 1 << 14
# llguidance follows references and rules by recursion (some 3000 overflow a thread's stack), and an
# object costs time in proportion to the square of its properties (1000: 0.2 s).
MAX_REFERENCES = 1000
MAX_PROPERTIES = 1000
MAX_SCHEMA_VALUES = 20_000
MAX_RULES = 1000
MAX_CHOICES = 1000
MAX_LEXER_STATES = 50_000  # 1 to 2 KB each
INITIAL_LEXER_FUEL = 200_000  # about 0.5 s and 80 MB
CACHED_GRAMMARS = 32

# Between two JSON tokens: nothing, one space, or one line break with its indentation. Unbounded
# white space would let a model that repeats itself stay there until its tokens are used up.
JSON_SPACE = r"( |\n( {0,32}|\t{0,8}))?"
# Tokens that fit into any JSON string are looked at together. The library's own list of such sets
# is longer: it costs 47 MB more for 262,144 tokens, and no grammar here is faster with it.
_TOKEN_SETS = [r'[^"\\\x00-\x1F\x7F]+']
_ANY_TEXT = r"/(.|\n)*/"
_LARK_SPACE = r"/[ \n\t]{0,8}/"


@dataclass(frozen=True)
class ReasoningPrefix:
    """Reasoning that may come before the text that the grammar describes.

    ``starts_open``: the prompt already has the opening tag, so the closing one must come.
    """

    open_tag: str
    close_tag: str
    starts_open: bool


@dataclass(frozen=True)
class GrammarSpec:
    """What the output must look like.

    ``value``: None for ``json_object``; the schema (dict, bool or JSON text) for ``json_schema``;
    text for ``regex`` (it must match the whole output; digits and word characters are ASCII, there
    is no look-around) and ``lark``; a list of strings for ``choice``; Lark text of our own making
    for ``structure``. ``tags`` are texts that may be special tokens of the model: such a grammar
    refers to number i as the rules ``tag_i``, and ``until_tag_i`` (any text up to and with the
    tag).
    """

    kind: Kind
    value: Any = None
    tags: tuple[str, ...] = ()
    reasoning: ReasoningPrefix | None = None


class GrammarConstraint:
    """One output's place in its grammar; a ``TokenConstraint`` of the engine."""

    def __init__(self, matcher: LLMatcher, words: int, tokens: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros(words, np.uint32)
        self._tokens = tokens  # of the tokenizer; the head may have more rows

    def mask(self) -> np.ndarray:
        """uint32 [ceil(vocab / 32)], bit set: the token may follow. The array is used again by the
        next call. Raises ExecutionError when the grammar goes over its limits."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        return self._mask

    def allows(self, token: int) -> bool:
        """Whether :meth:`mask` has the token, in microseconds. Raises ExecutionError likewise."""
        allowed = token < self._tokens and bool(self._matcher.validate_tokens([token]))
        self._check()
        return allowed

    def accept(self, token: int) -> None:
        """Takes the token that was chosen. Raises ExecutionError when it is not allowed."""
        self._matcher.consume_token(token)
        self._check()

    def finished(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ExecutionError(
                f"the grammar cannot go on: {_reason(self._matcher.get_error())}.",
                remedy="Make the schema or grammar simpler.",
                code="grammar_failed",
            )


class GrammarCompiler:
    """Compiles grammars for one tokenizer.

    ``vocab_size``: rows of the model's head, which may be more than the tokenizer has tokens; the
    rows beyond are never allowed. The tokenizer's data (its vocabulary as a tree of bytes: about
    50 MB for 262,144 tokens) is built by :meth:`prepare`, or at the first grammar; llguidance holds
    the interpreter's lock meanwhile, for about a second. Safe to call from several threads, and
    better not called on an event loop.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._data: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    @property
    def prepared(self) -> bool:
        return self._data is not None

    def prepare(self) -> None:
        """Builds the tokenizer's data, while nobody waits for a token.

        Raises UnsupportedError for a tokenizer that grammars cannot be used with.
        """
        with self._lock:
            self._vocabulary()

    def _vocabulary(self) -> LLTokenizer:
        if self._data is None:
            self._data = _tokenizer_data(self._tokenizer, self._vocab_size)
        return self._data

    def compile(self, spec: GrammarSpec) -> Callable[[], GrammarConstraint]:
        """A maker of constraints, one for each output.

        Raises ConfigError (``invalid_grammar``) for a grammar that is malformed, unsupported, too
        large, or that no output satisfies.
        """
        source = _source(spec, self._tag_symbol)
        with self._lock:
            matcher = self._compiled.get(source)
            if matcher is None:
                matcher = self._matcher(source, spec)
                self._compiled[source] = matcher
                if len(self._compiled) > CACHED_GRAMMARS:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end(source)
        words = -(-self._vocab_size // 32)
        tokens = min(self._vocab_size, self._tokenizer.vocab_size)
        return lambda: GrammarConstraint(matcher.deep_copy(), words, tokens)

    def _matcher(self, source: str, spec: GrammarSpec) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._vocabulary(), source, log_level=0, limits=_limits())
        if not matcher.is_error() and not any(matcher.compute_bitmask()):
            raise _invalid(spec, "no output satisfies it")
        if matcher.is_error():
            raise _invalid(spec, matcher.get_error())
        return matcher

    def _tag_symbol(self, tag: str) -> str | None:
        """The tag as Lark's name of a special token; None when it is plain text."""
        token = self._tokenizer.token_to_id(tag)
        return f"<[{token}]>" if token in self._tokenizer.special_ids else None


def check(spec: GrammarSpec) -> None:
    """Raises ConfigError (``invalid_grammar``) unless the grammar is valid for any tokenizer."""
    from llguidance import LLMatcher

    source = _source(spec, lambda tag: None)
    failed, messages = LLMatcher.validate_grammar_with_warnings(source, None, limits=_limits())
    if failed:
        raise _invalid(spec, messages[0])


def _source(spec: GrammarSpec, symbol: Callable[[str], str | None]) -> str:
    """llguidance's own JSON form of the grammar."""
    body = _body(spec)
    tags = list(spec.tags)
    if spec.reasoning is None:
        grammars = [body]
    else:
        body["name"] = "body"
        prefix, tags_of_prefix = _prefix(spec.reasoning)
        grammars = [{"lark_grammar": _with_tags(prefix, tags_of_prefix, symbol)}, body]
    if "lark_grammar" in body:
        body["lark_grammar"] = _with_tags(body["lark_grammar"], tags, symbol)
    try:
        source = json.dumps({"grammars": grammars}, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise _invalid(spec, f"it is not JSON ({e})") from e
    _check_count(spec, len(source), "characters", MAX_SOURCE_CHARS)
    return source


def _body(spec: GrammarSpec) -> dict[str, Any]:
    value = spec.value
    if spec.kind == "json_object":
        return {"json_schema": json_schema({"type": "object"})}
    if spec.kind == "json_schema":
        if isinstance(value, str):
            try:
                value = loads(value)
            except (ValueError, RecursionError) as e:
                raise _invalid(spec, f"it is not JSON ({e})") from e
        return {"json_schema": json_schema(value)}
    if spec.kind == "choice":
        return {"lark_grammar": _choice(spec)}
    if spec.kind not in ("regex", "lark", "structure"):
        raise ConfigError(f"{spec.kind!r} is not a kind of grammar.", code="invalid_grammar")
    if not isinstance(value, str) or not value:
        raise _invalid(spec, "non-empty text is needed")
    if spec.kind == "regex":
        _check_count(spec, len(value), "characters", MAX_REGEX_CHARS)
        from llguidance import regex_to_lark

        return {"lark_grammar": f"start: /{regex_to_lark(value, 'dw')}/"}
    if spec.kind == "structure":
        return {"lark_grammar": value}
    _check_count(spec, sum(":" in line for line in value.splitlines()), "rules", MAX_RULES)
    _check_count(spec, value.count("$ref"), "references", MAX_REFERENCES)
    return {"lark_grammar": value}


def _check_count(spec: GrammarSpec, count: int, what: str, limit: int) -> None:
    if count > limit:
        raise _invalid(spec, f"it has {count} {what}, more than {limit}")


def _choice(spec: GrammarSpec) -> str:
    choices = spec.value
    texts = isinstance(choices, Sequence) and not isinstance(choices, str)
    if not texts or not choices or not all(isinstance(c, str) and c for c in choices):
        raise _invalid(spec, "a list of non-empty strings is needed")
    _check_count(spec, len(choices), "choices", MAX_CHOICES)
    return "start: " + " | ".join(literal(c) for c in dict.fromkeys(choices))


def json_schema(schema: Any) -> dict[str, Any]:
    """The schema with our options; what the caller put in their place is dropped.

    Raises ConfigError (``invalid_grammar``) when it is no object, or larger than our bounds.
    """
    spec = GrammarSpec("json_schema")
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise _invalid(spec, f"an object is needed, not {type(schema).__name__}")
    values = references = properties = 0
    waiting: list[Any] = [schema]
    while waiting and values <= MAX_SCHEMA_VALUES:
        value = waiting.pop()
        values += 1
        if isinstance(value, dict):
            references += "$ref" in value
            properties = max(properties, len(value))
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
    _check_count(spec, values, "values", MAX_SCHEMA_VALUES)
    _check_count(spec, references, "references", MAX_REFERENCES)
    _check_count(spec, properties, "properties in one object", MAX_PROPERTIES)
    return {**schema, "x-guidance": {"whitespace_pattern": JSON_SPACE, "lenient": False}}


def literal(text: str) -> str:
    """The text as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def _prefix(reasoning: ReasoningPrefix) -> tuple[str, list[str]]:
    if reasoning.starts_open:
        return f"start: until_tag_0 space @body\nspace: {_LARK_SPACE}\n", [reasoning.close_tag]
    return (
        f"start: (tag_0 until_tag_1 space)? @body\nspace: {_LARK_SPACE}\n",
        [reasoning.open_tag, reasoning.close_tag],
    )


def _with_tags(lark: str, tags: Sequence[str], symbol: Callable[[str], str | None]) -> str:
    """The grammar with the rules of the tags that it uses."""
    rules = []
    for i, tag in enumerate(tags):
        special = symbol(tag)
        if re.search(rf"\btag_{i}\b", lark):
            rules.append(f"tag_{i}: {special or literal(tag)}")
        if re.search(rf"\buntil_tag_{i}\b", lark):
            if special:
                rules.append(f"until_tag_{i}: UNTIL_ANY {special}")
            else:
                rules.append(f"until_tag_{i}[lazy]: UNTIL_ANY {literal(tag)}")
    if any("UNTIL_ANY" in r for r in rules):
        rules.append(f"UNTIL_ANY: {_ANY_TEXT}")
    return "\n".join([lark, *rules])


def _tokenizer_data(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    from edge_infer.device.usage import give_back_heap

    eos = [t for t in tokenizer.eos_token_ids if t < vocab_size]
    if not eos:
        raise UnsupportedError(
            "grammars need an end-of-sequence token, and this tokenizer names none.",
            remedy="Add eos_token to tokenizer_config.json.",
        )

    class Source:
        eos_token_id = eos[0]
        bos_token_id = None
        tokens = tokenizer.vocabulary()[:vocab_size]
        special_token_ids = sorted(t for t in tokenizer.special_ids if t < vocab_size)

        def __call__(self, text: bytes) -> list[int]:
            return tokenizer.encode(
                text.decode("utf-8", errors="replace"),
                add_special_tokens=False,
                parse_special=False,
            )

    data = LLTokenizer(
        TokenizerWrapper(Source()), n_vocab=vocab_size, eos_token=eos, slices=_TOKEN_SETS
    )
    give_back_heap()
    return data


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, initial_lexer_fuel=INITIAL_LEXER_FUEL)


def _reason(error: str) -> str:
    """llguidance's message in one line."""
    if error.startswith("NoExtension"):
        return "no output satisfies it"
    lines = error.strip().split("\n")
    named = [line for line in lines if line.startswith("error: ")]
    return (named[0].removeprefix("error: ") if named else lines[0])[:300].rstrip(".")


def _invalid(spec: GrammarSpec, why: str) -> ConfigError:
    names = {"json_schema": "JSON schema", "lark": "Lark grammar", "regex": "regular expression"}
    name = names.get(spec.kind, spec.kind)
    return ConfigError(
        f"the {name} cannot be used: {_reason(why)}.",
        remedy="Leave out what is not supported, or make it smaller.",
        code="invalid_grammar",
    )
