"""Encoding and decoding with the ``tokenizers`` library: any tokenizer.json that it can load."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_infer.device.usage import give_back_heap, heap_use
from edge_infer.errors import CheckpointError, UnsupportedError

_SPACE = "\u2581"


def byte_of_char() -> dict[str, int]:
    """GPT-2's map of bytes to printable characters, the other way round.

    Bytes that print as themselves in Latin-1 are themselves; the rest follow from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(printable)]
    table = {chr(b): b for b in printable}
    table.update({chr(0x100 + i): b for i, b in enumerate(rest)})
    return table


class LibraryBackend:
    """tokenizer.json, loaded by the library.

    Raises CheckpointError for a file that the library cannot read, UnsupportedError for a decoder
    whose text is not the tokens' bytes one after the other.
    """

    def __init__(self, path: Path) -> None:
        import tokenizers

        before = heap_use().total
        try:
            self._library = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the library raises plain Exception
            raise CheckpointError(
                f"{path} cannot be read as a tokenizer: {e}.",
                remedy="Fetch the model's tokenizer.json again.",
            ) from e
        give_back_heap()  # parsing leaves twice the vocabulary's size behind
        #: What the library keeps of it, for the ledger.
        self.heap_bytes = max(0, heap_use().total - before)
        self._library.no_truncation()
        self._library.no_padding()
        self._modes = _Modes()
        added = self._library.get_added_tokens_decoder()
        self._added = {i: t.content.encode() for i, t in added.items()}
        self.special_ids = frozenset(i for i, t in added.items() if t.special)
        self._special_starts = {added[i].content[:1] for i in self.special_ids}
        self.size = max(self._library.get_vocab_size(), max(added, default=-1) + 1)
        self._byte_level, self.dummy_prefix = self._decoder_kind()
        self._byte_of_char = byte_of_char() if self._byte_level else {}
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str, add_special_tokens: bool, parse_special: bool) -> list[int]:
        text.encode()  # a lone surrogate: UnicodeEncodeError, where the library says TypeError
        # Text that no special token can begin in needs no change of mode, and no wait for others.
        plain = not parse_special and not self._special_starts.isdisjoint(text)
        with self._modes.use(plain, self._set_plain):
            # encode() holds the interpreter's lock, for a second where a text is long; a batch does
            # not.
            (encoded,) = self._library.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def _set_plain(self, plain: bool) -> None:
        self._library.encode_special_tokens = plain

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that the token adds to the text."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._make_bytes(token_id)
        return data

    def vocabulary(self) -> list[bytes]:
        """Every token's bytes by id, not kept here."""
        return [self._make_bytes(i) for i in range(self.size)]

    def token_to_id(self, token: str) -> int | None:
        token_id = self._library.token_to_id(token)
        return int(token_id) if token_id is not None else None

    def _make_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        piece = self._library.id_to_token(token_id) if 0 <= token_id < self.size else None
        if piece is None:
            return b""
        if self._byte_level:
            try:
                return bytes(self._byte_of_char[c] for c in piece)
            except KeyError:  # not in the alphabet of bytes: the piece is its own text
                return piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            try:
                return bytes([int(piece[3:5], 16)])
            except ValueError:
                pass
        return piece.replace(_SPACE, " ").encode()

    def _decoder_kind(self) -> tuple[bool, bool]:
        """(byte-level, dummy prefix) of tokenizer.json's decoder."""
        decoder = self._library.decoder
        state = json.loads(decoder.__getstate__()) if decoder is not None else {}
        steps = state.get("decoders", [state]) if state else []
        kinds = [step.get("type") for step in steps]
        if kinds == ["ByteLevel"]:
            return True, False
        if kinds == ["Metaspace"]:
            return False, steps[0].get("prepend_scheme", "always") != "never"
        if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
            return False, any(s["type"] == "Strip" and s.get("start", 0) > 0 for s in steps)
        raise UnsupportedError(
            f"tokenizer.json has the decoder {' + '.join(map(str, kinds)) or 'none'}; supported are"
            " ByteLevel, Metaspace and SentencePiece's Replace + ByteFallback + Fuse + Strip."
        )


class _Modes:
    """Use of an object that has a mode: by many at a time in the same one, in turn otherwise."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._users = 0
        self._mode = False

    @contextmanager
    def use(self, mode: bool, switch: Callable[[bool], None]) -> Iterator[None]:
        """``switch`` is called while nobody uses the object."""
        with self._turn, self._changed:
            while self._users and self._mode != mode:
                self._changed.wait()
            if self._mode != mode:
                switch(mode)
                self._mode = mode
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify()
