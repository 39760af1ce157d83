"""The tokenizer of a checkpoint folder: text to token ids and back.

Encoding is the ``tokenizers`` library, imported and loaded at first use (or by :meth:`preload`, in
a thread beside the loading of the weights), since it costs more time and memory than anything else
that the engine imports. Decoding works on bytes: every token is a fixed run of bytes, so text can
be streamed token by token and one definition of it holds everywhere (invalid UTF-8 becomes U+FFFD,
one for each maximal invalid part).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_infer.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    import tokenizers

_SPACE = "\u2581"
MAX_FILE_BYTES = 512 << 20


def _byte_of_char() -> dict[str, int]:
    """GPT-2's map of bytes to printable characters, the other way round.

    Bytes that print as themselves in Latin-1 are themselves; the rest follow from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(printable)]
    table = {chr(b): b for b in printable}
    table.update({chr(0x100 + i): b for i, b in enumerate(rest)})
    return table


class Tokenizer:
    """A Hugging Face folder's tokenizer. Make one with :meth:`from_folder`."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        generation_config: dict[str, Any],
        chat_templates: dict[str, str],
    ) -> None:
        self.path = path
        self._config = config
        self._generation_config = generation_config
        self._lock = threading.Lock()
        self._loaded: tokenizers.Tokenizer | None = None
        self._bytes: _TokenBytes | None = None
        #: Chat templates by name; most folders have one, ``default``.
        self.chat_templates = chat_templates

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Reads the small configuration files; ``tokenizer.json`` is loaded at first use.

        Raises CheckpointError for a missing or damaged file, UnsupportedError for a folder that has
        only a SentencePiece model.
        """
        folder = Path(path)
        if not (folder / "tokenizer.json").is_file():
            if (folder / "tokenizer.model").is_file():
                raise UnsupportedError(
                    f"{folder} has a SentencePiece tokenizer.model but no tokenizer.json.",
                    remedy="Save it once with transformers' AutoTokenizer(...).save_pretrained, or"
                    " take the tokenizer.json of the model's hub page.",
                )
            raise CheckpointError(
                f"{folder} has no tokenizer.json.",
                remedy="Copy the model's tokenizer files into the folder.",
            )
        size = (folder / "tokenizer.json").stat().st_size
        if size > MAX_FILE_BYTES:
            raise CheckpointError(
                f"{folder / 'tokenizer.json'} has {size} bytes; at most {MAX_FILE_BYTES} are read."
            )
        config = _read_json(folder / "tokenizer_config.json")
        generation = _read_json(folder / "generation_config.json")
        return cls(folder, config, generation, _chat_templates(folder, config))

    def preload(self) -> threading.Thread:
        """Starts loading in the background; errors are raised by the first use, not here."""

        def load() -> None:
            try:
                self._backend()
            except (CheckpointError, UnsupportedError):
                return

        thread = threading.Thread(target=load, name="tokenizer-load", daemon=True)
        thread.start()
        return thread

    def encode(
        self, text: str, add_special_tokens: bool = True, *, parse_special: bool = True
    ) -> list[int]:
        """Token ids of ``text``.

        ``add_special_tokens``: the BOS and EOS tokens that the model's policy asks for.
        ``parse_special``: the text of a control token becomes that token; with False, plain text.
        """
        backend = self._backend()
        if parse_special:
            return list(backend.encode(text, add_special_tokens=add_special_tokens).ids)
        with self._lock:  # a mode of the shared object
            backend.encode_special_tokens = True
            try:
                return list(backend.encode(text, add_special_tokens=add_special_tokens).ids)
            finally:
                backend.encode_special_tokens = False

    def decode(
        self,
        ids: Iterable[int],
        skip_special_tokens: bool = True,
        *,
        strip_leading_space: bool = True,
    ) -> str:
        """Text of the token ids; ids outside the vocabulary have no text.

        ``strip_leading_space``: drop the space that SentencePiece models with a dummy prefix put
        before the first word; set it to False for a continuation of earlier text.
        """
        table = self._table()
        data = b"".join(table.bytes_of(i, skip_special_tokens) for i in ids)
        if strip_leading_space and table.dummy_prefix and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
        """The bytes that the token adds to the text; empty for special tokens that are skipped."""
        return self._table().bytes_of(token_id, skip_special_tokens)

    @property
    def dummy_prefix(self) -> bool:
        """Whether decoded text begins with a space that the original text did not have."""
        return self._table().dummy_prefix

    @property
    def vocab_size(self) -> int:
        """Tokens that have a text: the largest id plus one. The model's head may have more rows."""
        return len(self._table())

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text: left out by ``skip_special_tokens``."""
        return self._table().special_ids

    @property
    def bos_token_id(self) -> int | None:
        token = _token_text(self._config.get("bos_token"))
        if token is not None:
            return self.token_to_id(token)
        value = self._generation_config.get("bos_token_id")
        return value if isinstance(value, int) else None

    @property
    def eos_token_ids(self) -> list[int]:
        """Every token that ends generation: generation_config.json's, then the tokenizer's EOS."""
        value = self._generation_config.get("eos_token_id")
        ids = [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]
        token = _token_text(self._config.get("eos_token"))
        if token is not None:
            token_id = self.token_to_id(token)
            if token_id is not None:
                ids.append(token_id)
        return list(dict.fromkeys(ids))

    @property
    def chat_template(self) -> str | None:
        """The template named ``default``, or the only one."""
        if "default" in self.chat_templates:
            return self.chat_templates["default"]
        if len(self.chat_templates) == 1:
            return next(iter(self.chat_templates.values()))
        return None

    @property
    def special_tokens(self) -> dict[str, str]:
        """``bos_token``, ``eos_token``, ... as chat templates see them."""
        out = {}
        for key, value in self._config.items():
            text = _token_text(value)
            if key.endswith("_token") and text is not None:
                out[key] = text
        return out

    def token_to_id(self, token: str) -> int | None:
        """Id of the token with this text in ``tokenizer.json``'s own spelling, or None."""
        result = self._backend().token_to_id(token)
        return int(result) if result is not None else None

    def _backend(self) -> tokenizers.Tokenizer:
        with self._lock:
            if self._loaded is None:
                import tokenizers

                path = self.path / "tokenizer.json"
                try:
                    loaded = tokenizers.Tokenizer.from_file(str(path))
                except Exception as e:  # the library raises plain Exception
                    raise CheckpointError(
                        f"{path} cannot be read as a tokenizer: {e}.",
                        remedy="Fetch the model's tokenizer.json again.",
                    ) from e
                loaded.no_truncation()
                loaded.no_padding()
                self._loaded = loaded
            return self._loaded

    def _table(self) -> _TokenBytes:
        if self._bytes is None:
            self._bytes = _TokenBytes(self._backend())
        return self._bytes


class _TokenBytes:
    """Bytes by token id, made when a token is first asked for."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._added = {i: t.content for i, t in added.items()}
        self.special_ids = frozenset(i for i, t in added.items() if t.special)
        self._size = max(backend.get_vocab_size(), max(added, default=-1) + 1)
        self._cache: dict[int, bytes] = {}
        self._byte_level, self.dummy_prefix = _decoder_kind(backend)
        self._byte_of_char = _byte_of_char() if self._byte_level else {}

    def __len__(self) -> int:
        return self._size

    def bytes_of(self, token_id: int, skip_special: bool) -> bytes:
        if skip_special and token_id in self.special_ids:
            return b""
        data = self._cache.get(token_id)
        if data is None:
            data = self._cache[token_id] = self._make(token_id)
        return data

    def _make(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        if token_id < 0:
            return b""
        piece = self._backend.id_to_token(token_id)
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


def _decoder_kind(backend: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """(byte-level, dummy prefix) of tokenizer.json's decoder."""
    decoder = backend.decoder
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


def _token_text(value: Any) -> str | None:
    """A special token as tokenizer_config.json gives it: a string, or an object with content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise CheckpointError(f"{path} cannot be read: {e}.", remedy="Fetch the file again.") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return value


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """By name, from chat_template.jinja, additional_chat_templates/ and tokenizer_config.json.

    The files of their own win, as they do in transformers.
    """
    out: dict[str, str] = {}
    value = config.get("chat_template")
    if isinstance(value, str):
        out["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                out[str(entry.get("name", "default"))] = entry["template"]
    try:
        for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            out[file.stem] = file.read_text(encoding="utf-8")
        single = folder / "chat_template.jinja"
        if single.is_file():
            out["default"] = single.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise CheckpointError(f"a chat template in {folder} cannot be read: {e}.") from e
    return out
