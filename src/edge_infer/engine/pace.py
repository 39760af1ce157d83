"""How many rows of prompts a step takes while others generate: as many as fit a time."""

from __future__ import annotations

MIN_ROWS = 16  # of a step: prompts go on, whatever it takes
FIRST_ROWS = 64  # while nothing is known
_WEIGHT = 0.5  # of the newest step


class Pace:
    """Keeps steps about ``target`` seconds long (None or 0: as long as a full chunk takes) while
    somebody generates. It learns what a row costs from the steps that ran.

    Which rows run together changes no request's tokens, so this may depend on time.
    """

    def __init__(self, target: float | None = None) -> None:
        self.target = target or None
        self._decode: float | None = None  # seconds of a step that only decodes
        self._row: float | None = None  # seconds that a row of a prompt adds

    def room(self, chunk: int, decodes: int) -> int:
        """Rows for prompts and embeddings in a step of ``chunk`` rows in which ``decodes``
        requests get a token."""
        room = max(chunk - decodes, 0)
        if self.target is None or decodes == 0:
            return room
        if self._row is None:
            return min(room, FIRST_ROWS)
        left = self.target - (self._decode or 0.0)
        if left > 0.0 and left >= room * self._row:
            return room
        return min(room, max(int(left / self._row) if left > 0.0 else 0, MIN_ROWS))

    def learn(self, seconds: float, rows: int, decodes: int) -> None:
        """A step with ``rows`` rows of prompts and ``decodes`` others took ``seconds``."""
        if rows:
            base = (self._decode or 0.0) if decodes else 0.0
            self._row = _mean(self._row, max(seconds - base, 0.0) / rows)
        elif decodes:
            self._decode = _mean(self._decode, seconds)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else (1 - _WEIGHT) * old + _WEIGHT * new
