"""Reading calls out of text that comes in pieces of any size.

What comes out depends on the text alone, not on how it was cut: a reader decides only when no later
text can change the decision.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from edge_infer.server.json_text import loads
from edge_infer.server.tools.declared import Tool
from edge_infer.server.tools.events import CallArguments, CallStart, TextPart, ToolEvent

log = logging.getLogger(__name__)

MAX_HEADER_CHARS = 512
_MAX_FOOTER_CHARS = 256
_CUT_FOOTER = re.compile(r"[\s}\]]*(<[/\w]*)?")


class ToolStream(ABC):
    """One answer's text to events.

    White space next to a call belongs to the call's format and is dropped. What looks like a call
    but is malformed, or names a tool that was not offered, comes back as text, with a warning (one
    an answer: a model that repeats itself may write thousands).
    """

    def __init__(self, opening: str, tools: Mapping[str, Tool], new_id: Callable[[], str]) -> None:
        self._opening = opening
        self._warned = False
        self._tools = tools
        self._new_id = new_id
        self._buffer = ""
        self._space = ""  # held back: dropped when a call follows
        self._events: list[ToolEvent] = []
        self._in_call = False
        self._drop_space = False  # a call has just ended
        self._ended = False
        self.calls = 0

    def feed(self, text: str) -> list[ToolEvent]:
        """Takes the next piece of text."""
        self._buffer += text
        return self._read()

    def finish(self) -> list[ToolEvent]:
        """Ends the text: gives out what was held back."""
        self._ended = True
        events = self._read()
        if self._space:
            events.append(TextPart(self._space))
            self._space = ""
        return events

    def _read(self) -> list[ToolEvent]:
        while self._step():
            pass
        events, self._events = self._events, []
        return _joined(events)

    def _step(self) -> bool:
        """Uses up some of the buffer; False when there is nothing to do before more text."""
        return self._call_step() if self._in_call else self._text_step()

    def _text_step(self) -> bool:
        at = self._buffer.find(self._opening)
        if at >= 0:
            self._text(self._buffer[:at])
            self._buffer = self._buffer[at + len(self._opening) :]
            self._in_call = True
            return True
        keep = 0 if self._ended else overlap(self._buffer, self._opening)
        certain = len(self._buffer) - keep
        self._text(self._buffer[:certain])
        self._buffer = self._buffer[certain:]
        return False

    @abstractmethod
    def _call_step(self) -> bool: ...

    def _text(self, text: str) -> None:
        if self._drop_space:
            text = text.lstrip()
        if not text:
            return
        self._drop_space = False
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._events.append(TextPart(kept))

    def _start_call(self, name: str) -> None:
        self._space = ""
        self._events.append(CallStart(self.calls, self._new_id(), name))
        self.calls += 1

    def _arguments(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self.calls - 1, text))

    def _end_call(self) -> None:
        self._in_call = False
        self._drop_space = True

    def _malformed(self, why: str, raw: str) -> None:
        """The opening tag and ``raw``, which was taken from the buffer, are text after all."""
        if not self._warned:
            log.warning("A tool call comes back as text: %s.", why)
        self._warned = True
        self._in_call = False
        self._text(self._opening_text() + raw)

    def _opening_text(self) -> str:
        """The tag that led to the call."""
        return self._opening


class JsonToolStream(ToolStream):
    """Calls whose arguments are JSON in the text, which are passed on as they come.

    ``header``: from after the opening tag to before the arguments, with a group ``name``.
    ``shape``: how a header begins, white space left out, to give up early on other text.
    ``footer``: what ends a call. ``again``: what leads to another call's header. ``at_start``:
    calls have no tag of their own; only the beginning of the answer can be one.
    ``constrained``: a grammar enforces the format, so arguments may go out before they are
    complete; otherwise they are checked first.
    """

    def __init__(
        self,
        opening: str,
        tools: Mapping[str, Tool],
        new_id: Callable[[], str],
        *,
        header: re.Pattern[str],
        shape: str | None,
        footer: re.Pattern[str],
        again: re.Pattern[str] | None = None,
        at_start: bool = False,
        constrained: bool = False,
    ) -> None:
        super().__init__(opening, tools, new_id)
        self._header = header
        self._shape = shape
        self._footer = footer
        self._again = again
        self._at_start = at_start
        self._constrained = constrained
        self._state: Callable[[], bool] = self._header_step
        self._in_call = at_start
        self._start = ""  # header of the call that is being read
        self._name = ""
        self._value = JsonEnd()
        self._pending = ""  # arguments that are not given out yet
        self._another = False  # the call follows one under the same opening tag

    def _opening_text(self) -> str:
        return "" if self._another else self._opening

    def _text_step(self) -> bool:
        if not self._at_start:
            return super()._text_step()
        self._text(self._buffer)
        self._buffer = ""
        return False

    def _call_step(self) -> bool:
        return self._state()

    def _header_step(self) -> bool:
        window = self._buffer[:MAX_HEADER_CHARS]
        found = self._header.match(window)
        if found is None:
            begins = "".join(window.split())
            possible = self._shape is None or (
                self._shape.startswith(begins) or begins.startswith(self._shape)
            )
            if possible and not self._ended and len(self._buffer) < MAX_HEADER_CHARS:
                return False
            return self._give_up("its beginning is not in the format", "")
        self._name = found["name"]
        self._start = found[0]
        self._buffer = self._buffer[found.end() :]
        if self._name not in self._tools:
            return self._give_up(f"there is no tool {self._name[:100]!r}", self._start)
        self._value = JsonEnd()
        self._pending = ""
        if self._constrained:
            self._start_call(self._name)
        self._state = self._value_step
        return True

    def _value_step(self) -> bool:
        end = self._value.find(self._buffer)
        self._pending += self._buffer[:end]
        self._buffer = self._buffer[end:]
        if self._constrained:
            self._arguments(self._pending)
            self._pending = ""
        elif self._value.done:
            if not _is_object(self._pending):
                return self._give_up(
                    f"the arguments of {self._name!r} are not JSON", self._start + self._pending
                )
            self._start_call(self._name)
            self._arguments(self._pending)
        if self._value.done:
            self._state = self._footer_step
            return True
        if self._ended and not self._constrained:
            return self._give_up(
                f"the arguments of {self._name!r} are cut off", self._start + self._pending
            )
        return False

    def _footer_step(self) -> bool:
        """The call stands; what follows it may lead to another one."""
        window = self._buffer[:_MAX_FOOTER_CHARS]
        for pattern, another in ((self._again, True), (self._footer, False)):
            found = pattern.match(window) if pattern is not None else None
            if found is not None:
                if found.end() == len(window) and not self._ended:
                    return False
                self._buffer = self._buffer[found.end() :]
                return self._leave_call(another)
        if len(window) < _MAX_FOOTER_CHARS and not self._ended:
            return False
        if self._ended and _CUT_FOOTER.fullmatch(window):
            self._buffer = ""
        return self._leave_call(False)

    def _leave_call(self, another: bool) -> bool:
        self._state = self._header_step
        self._another = another
        if not another:
            self._end_call()
        return True

    def _give_up(self, why: str, raw: str) -> bool:
        self._state = self._header_step
        if self._at_start and self.calls == 0 and not self._looks_like_call(raw):
            self._in_call = False  # an answer like any other
            self._text(raw)
        else:
            self._malformed(why, raw)
        self._another = False
        return True

    def _looks_like_call(self, raw: str) -> bool:
        text = "".join((raw or self._buffer)[:MAX_HEADER_CHARS].split())
        return bool(text) and self._shape is not None and text.startswith(self._shape)


class BlockToolStream(ToolStream):
    """Calls that end with a tag of their own and are read as a whole: ``parse`` turns what is
    between the tags into a name and JSON arguments; it raises ValueError for what is malformed."""

    def __init__(
        self,
        opening: str,
        closing: str,
        tools: Mapping[str, Tool],
        new_id: Callable[[], str],
        parse: Callable[[str, Mapping[str, Tool]], tuple[str, str]],
    ) -> None:
        super().__init__(opening, tools, new_id)
        self._closing = closing
        self._parse = parse
        self._seen = 0  # no closing tag begins before this place of the buffer

    def _call_step(self) -> bool:
        at = self._buffer.find(self._closing, self._seen)
        if at < 0:
            self._seen = max(0, len(self._buffer) - len(self._closing) + 1)
            if not self._ended:
                return False
            self._seen = 0
            self._malformed("it is cut off", "")
            return True
        raw = self._buffer[:at]
        self._seen = 0
        try:
            name, arguments = self._parse(raw, self._tools)
        except ValueError as e:
            self._malformed(str(e)[:200], "")
            return True
        self._buffer = self._buffer[at + len(self._closing) :]
        self._start_call(name)
        self._arguments(arguments)
        self._end_call()
        return True


class JsonEnd:
    """Finds where a JSON object ends in text that comes in pieces."""

    _STRUCTURE = re.compile(r'["{}\[\]]')
    _STRING = re.compile(r'["\\]')

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._string = False
        self._escaped = False

    def find(self, text: str) -> int:
        """How much of ``text`` belongs to the object; sets ``done`` at its end."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (self._STRING if self._string else self._STRUCTURE).search(text, at)
            if found is None:
                return len(text)
            char, at = found[0], found.end()
            if char == "\\":
                self._escaped = True
            elif char == '"':
                self._string = not self._string
            else:
                self._depth += 1 if char in "{[" else -1
                if self._depth == 0:
                    self.done = True
                    return at
        return at


def _is_object(text: str) -> bool:
    try:
        return isinstance(loads(text), dict)
    except (ValueError, RecursionError):
        return False


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that ``tag`` begins with."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-size:]):
            return size
    return 0


def _joined(events: list[ToolEvent]) -> list[ToolEvent]:
    """Neighbouring texts as one."""
    out: list[ToolEvent] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, TextPart) and isinstance(last, TextPart):
            out[-1] = TextPart(last.text + event.text)
        else:
            out.append(event)
    return out
