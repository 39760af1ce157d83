"""Prompt lookup: what followed the latest tokens when they last occurred is a guess at what comes.

The guess is verified in the next step as further decode rows, and only what the model would have
chosen anyway is taken, so tokens never change. Text that copies its prompt, or itself, gains.
"""

from __future__ import annotations

from collections.abc import Sequence

MATCH = 3  # tokens that have to agree before a guess is made
SHORTEST, LONGEST = 2, 8  # tokens of a guess
LONGEST_PAUSE = 64  # steps


class NgramProposer:
    """Guesses for one request. A wrong one costs rows, so each failure doubles the pause before the
    next, and each success makes the next one longer."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}  # where the latest such run of tokens went on
        self._indexed = MATCH
        self._length = SHORTEST
        self._pause = 0  # steps without a guess still to come
        self._last_pause = 0

    def propose(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Up to ``limit`` tokens that may follow ``tokens``, which only ever grow."""
        for end in range(self._indexed, len(tokens)):
            self._next[tuple(tokens[end - MATCH : end])] = end
        self._indexed = max(self._indexed, len(tokens))
        if self._pause:
            self._pause -= 1
            return []
        start = self._next.get(tuple(tokens[-MATCH:]))
        if start is None:
            return []
        guess = list(tokens[start : start + min(self._length, limit)])
        while len(guess) < min(self._length, limit):  # a repetition goes on with itself
            guess.append(guess[len(guess) - (len(tokens) - start)])
        return guess

    def learn(self, proposed: int, accepted: int) -> None:
        """What became of a guess of ``proposed`` tokens."""
        if accepted == 0:
            self._last_pause = min(max(1, 2 * self._last_pause), LONGEST_PAUSE)
            self._pause = self._last_pause
            self._length = SHORTEST
        elif accepted == proposed:
            self._last_pause = 0
            self._length = min(2 * self._length, LONGEST)
        else:
            self._last_pause //= 2
            self._length = max(SHORTEST, accepted)
