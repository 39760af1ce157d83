"""The sandbox that chat templates run in: jinja2's, with bounds on what a template may consume.

jinja2 forbids access to Python's internals, but not loops without end or strings without bound.
Loop iterations and calls are counted, CPU time is looked at while counting, and every operation
whose result can be out of proportion to its input is checked before it runs.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 300_000  # loop iterations and calls
MAX_CPU_SECONDS = 3.0
MAX_STRING = 16 << 20  # characters of one string, and of the whole prompt
MAX_PADDING = 4096  # width of a padded field
MAX_INT_BITS = 1024

# Filters and globals that no chat template needs and that make long output of short input.
_DROPPED_FILTERS = ("attr", "batch", "center", "slice", "urlize", "wordwrap", "xmlattr", "random")
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
# Field widths that are long, or that come from an argument: %99999s, %*s, {:>99999}, {:{width}}.
_WIDTH = re.compile(r"\d{5,}|%[^%a-zA-Z]*\*|\{[^{}]*:[^{}]*\{")


class LimitError(Exception):
    """A template went over a bound."""


class RefusedError(Exception):
    """The template itself refused the messages (``raise_exception``)."""


class _GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}`` marks training targets; here only its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metered(NodeTransformer):
    """Counts every loop iteration, and sends ``~`` through a function that checks sizes."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("step")))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        checked = nodes.EnvironmentAttribute("concat_checked")
        return nodes.Call(checked, node.nodes, [], None, None)


class _Budget(threading.local):
    steps = 0
    deadline = 0.0


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """One template's sandbox."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants would be folded while compiling, outside the bounds
            extensions=[_GenerationTag, loopcontrols],
        )
        self._budget = _Budget()
        for name in _DROPPED_FILTERS:
            self.filters.pop(name, None)
        self.filters["tojson"] = _tojson
        self.filters["indent"] = _checked_indent(self.filters["indent"])
        self.filters["replace"] = _replace
        self.filters["format"] = _format
        self.filters["join"] = self._join
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def budget(self) -> _Meter:
        return _Meter(self._budget)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Metered().visit(source), *args, **kwargs)

    @property
    def step(self) -> None:
        """Reading it is one step: in a compiled template an attribute is cheaper than a call."""
        budget = self._budget
        budget.steps -= 1
        if budget.steps < 0:
            raise LimitError(f"more than {MAX_STEPS} steps")
        if budget.steps & 63 == 0 and time.thread_time() > budget.deadline:
            raise LimitError(f"more than {MAX_CPU_SECONDS:g} s of CPU time")

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, str) and attribute in ("format", "format_map"):
            _check_format(obj)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, str) and argument in ("format", "format_map"):
            _check_format(obj)
        return super().getitem(obj, argument)

    def concat_checked(self, *parts: Any) -> str:
        texts = [str(p) for p in parts]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        getter = make_attrgetter(self, attribute) if attribute is not None else None
        texts = [str(getter(x) if getter else x) for x in value]
        _check_size(sum(map(len, texts)) + len(d) * len(texts))
        return d.join(texts)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.step  # noqa: B018
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, obj.__name__, args)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, (str, list, tuple)):
            _check_size(len(result))
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sized = (str, list, tuple)
        if operator == "*":
            for a, b in ((left, right), (right, left)):
                if isinstance(a, sized) and isinstance(b, int):
                    _check_size(len(a) * b)
        elif operator == "+" and isinstance(left, sized) and isinstance(right, sized):
            _check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int):
            _check_bits(result.bit_length())
        return result


class _Meter:
    """Gives one rendering its steps and its time; renderings in other threads have their own."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget

    def __enter__(self) -> None:
        self._budget.steps = MAX_STEPS
        self._budget.deadline = time.thread_time() + MAX_CPU_SECONDS

    def __exit__(self, *_: object) -> None:
        self._budget.steps = 0


def _check_size(size: int) -> None:
    if size > MAX_STRING:
        raise LimitError(f"a value of {size} characters or items, more than {MAX_STRING}")


def _check_bits(bits: int) -> None:
    if bits > MAX_INT_BITS:
        raise LimitError(f"an integer of more than {MAX_INT_BITS} bits")


def _check_format(text: str) -> None:
    if _WIDTH.search(text):
        raise LimitError(f"text formatted wider than {MAX_PADDING} characters")


def _format(text: Any, *args: Any, **kwargs: Any) -> str:
    _check_format(str(text))
    return str(text) % (kwargs or args)


def _check_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    """Refuses the str methods' calls whose result would be out of proportion to their input."""
    if name in _PADDING_METHODS and args and isinstance(args[0], int) and args[0] > MAX_PADDING:
        raise LimitError(f"text padded to {args[0]} characters, more than {MAX_PADDING}")
    if name == "replace" and len(args) > 1 and isinstance(args[1], str):
        _check_size(len(text) + text.count(str(args[0])) * len(args[1]))
    if name == "join" and args and isinstance(args[0], (list, tuple)):
        _check_size(sum(len(text) + len(x) for x in args[0] if isinstance(x, str)))


def _checked_indent(indent: Any) -> Any:
    def checked(s: str, width: int | str = 4, *args: Any, **kwargs: Any) -> str:
        size = width if isinstance(width, int) else len(width)
        if size > MAX_PADDING:
            raise LimitError(f"an indent of {size} characters, more than {MAX_PADDING}")
        _check_size(len(s) + size * (s.count("\n") + 1))
        return str(indent(s, width, *args, **kwargs))

    return checked


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    _check_method(text, "replace", (old, new))
    return text.replace(old, new, -1 if count is None else count)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int) and indent > 64:
        raise LimitError(f"JSON indented by {indent} characters, more than 64")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> Iterator[str]:
    raise RefusedError(message)


def _strftime_now(format: str) -> str:
    if len(format) > 256:
        raise LimitError("a time format of more than 256 characters")
    return datetime.now().strftime(format)
