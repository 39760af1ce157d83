"""Token ids to text while they are generated, with stop strings.

A delta never ends inside a UTF-8 character and never shows text that may still become a stop
string. Each token costs time in proportion to its own characters, whatever came before.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol

from edge_infer.errors import ConfigError


class TokenSource(Protocol):
    """What a detokenizer needs of a tokenizer."""

    @property
    def dummy_prefix(self) -> bool: ...

    def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes: ...


class _StopMatcher:
    """The Knuth-Morris-Pratt automaton of one stop string."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0  # length of the longest prefix of `stop` that the text ends with
        self._fallback = [0] * len(stop)
        k = 0
        for i in range(1, len(stop)):
            while k and stop[i] != stop[k]:
                k = self._fallback[k - 1]
            k += stop[i] == stop[k]
            self._fallback[i] = k

    def feed(self, char: str) -> bool:
        """True when the stop string is complete; the matcher must not be fed after that."""
        k = self.matched
        while k and char != self.stop[k]:
            k = self._fallback[k - 1]
        k += char == self.stop[k]
        self.matched = k
        return k == len(self.stop)


class Detokenizer:
    """Text of one generated sequence.

    ``stop``: strings that end the text. The first to be complete counts; of two that end at the
    same character, the longer. The text ends before it, or after it with ``include_stop``.
    ``strip_leading_space``: drop the dummy space in front of SentencePiece text. Leave it off when
    the text continues a prompt, where that space separates two words. ``keep_special``: special
    tokens that are not skipped.

    Bytes that are no UTF-8 become U+FFFD once no later byte can complete them.
    Raises ConfigError for an empty stop string.
    """

    def __init__(
        self,
        tokenizer: TokenSource,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        *,
        keep_special: Collection[int] = (),
        strip_leading_space: bool = False,
    ) -> None:
        if isinstance(stop, str):
            stop = [stop]
        if not all(isinstance(s, str) and s for s in stop):
            raise ConfigError(
                f"stop strings must be non-empty text, got {list(stop)!r:.200}.",
                remedy="Leave out empty strings.",
            )
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
        self._keep_special = keep_special
        self._strip_next = strip_leading_space and tokenizer.dummy_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matchers = [_StopMatcher(s) for s in dict.fromkeys(stop)]
        self._held = ""  # decoded text that may be the beginning of a stop string
        self._parts: list[str] = []
        self._finished = False
        #: The stop string that ended the text, or None.
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """Everything that was given out so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def push(self, token_id: int) -> str:
        """Takes one token; returns the text that became certain (often empty or several tokens').

        After a stop string, or after :meth:`finish`, tokens are ignored.
        """
        if self._finished:
            return ""
        skip = self._skip_special_tokens and token_id not in self._keep_special
        data = self._tokenizer.token_bytes(token_id, skip)
        if self._strip_next and data:
            data = data[1:] if data[:1] == b" " else data
            self._strip_next = False
        return self._take(self._decoder.decode(data))

    def finish(self) -> str:
        """Ends the sequence: returns what was held back."""
        if self._finished:
            return ""
        delta = self._take(self._decoder.decode(b"", final=True))
        self._finished = True
        held, self._held = self._held, ""
        return delta + self._emit(held)

    def _emit(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text

    def _take(self, new: str) -> str:
        if not self._matchers:
            return self._emit(new)
        text = self._held + new
        for i, char in enumerate(new):
            complete = [m.stop for m in self._matchers if m.feed(char)]
            if complete:
                self.stopped = max(complete, key=len)
                self._finished = True
                self._held = ""
                end = len(text) - len(new) + i + 1
                return self._emit(text[: end if self._include_stop else end - len(self.stopped)])
        certain = len(text) - max(m.matched for m in self._matchers)
        self._held = text[certain:]
        return self._emit(text[:certain])
