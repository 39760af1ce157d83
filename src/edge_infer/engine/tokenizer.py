"""The tokenizer of a checkpoint folder: text to token ids and back.

Encoding is the ``tokenizers`` library, imported and loaded at first use, since it costs more time
and memory than anything else that the engine imports (docs/edge/dependencies.md has the numbers).

Decoding works on bytes: every token is a fixed run of bytes, so text can be streamed token by token
and one definition of it holds everywhere (invalid UTF-8 becomes U+FFFD, one for each maximal
invalid part).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_infer.errors import CheckpointError, ConfigError, UnsupportedError

if TYPE_CHECKING:
    from edge_infer.engine.library_tokenizer import LibraryBackend

MAX_FILE_BYTES = 512 << 20


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
        self._loaded: LibraryBackend | None = None
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
        if generation.get("eos_token_id") is None:  # older folders have it in config.json only
            generation["eos_token_id"] = _read_json(folder / "config.json").get("eos_token_id")
        return cls(folder, config, generation, _chat_templates(folder, config))

    def encode(
        self, text: str, add_special_tokens: bool = True, *, parse_special: bool = True
    ) -> list[int]:
        """Token ids of ``text``.

        ``add_special_tokens``: the BOS and EOS tokens that the model's policy asks for.
        ``parse_special``: the text of a control token becomes that token; with False, plain text.
        """
        try:
            return self.backend.encode(text, add_special_tokens, parse_special)
        except UnicodeEncodeError as e:
            raise ConfigError(
                f"the text is not valid Unicode: it has a lone surrogate at character {e.start}.",
                remedy="Decode the input with errors='replace'.",
            ) from e

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
        data = b"".join(self.token_bytes(i, skip_special_tokens) for i in ids)
        if strip_leading_space and self.dummy_prefix and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
        """The bytes that the token adds to the text; empty for special tokens that are skipped."""
        backend = self.backend
        if skip_special_tokens and token_id in backend.special_ids:
            return b""
        return backend.bytes_of(token_id)

    def vocabulary(self) -> list[bytes]:
        """The bytes of every token by id; empty where an id has no token. Made anew each time."""
        return self.backend.vocabulary()

    @property
    def dummy_prefix(self) -> bool:
        """Whether decoded text begins with a space that the original text did not have."""
        return self.backend.dummy_prefix

    @property
    def vocab_size(self) -> int:
        """Tokens that have a text: the largest id plus one. The model's head may have more rows."""
        return self.backend.size

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text: left out by ``skip_special_tokens``."""
        return self.backend.special_ids

    @property
    def bos_token_id(self) -> int | None:
        token = _token_text(self._config.get("bos_token"))
        if token is not None:
            return self.token_to_id(token)
        value = self._generation_config.get("bos_token_id")
        return value if isinstance(value, int) else None

    @property
    def eos_token_ids(self) -> list[int]:
        """Every token that ends generation: generation_config.json's (else config.json's), then the
        tokenizer's EOS."""
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
        return self.backend.token_to_id(token)

    @property
    def loaded(self) -> bool:
        """Whether the vocabulary is in memory."""
        return self._loaded is not None

    def unload(self) -> None:
        """Gives the loaded file's memory back; it is loaded again when it is next needed."""
        with self._lock:
            self._loaded = None

    @property
    def heap_bytes(self) -> int:
        """Heap memory that the loaded file took; 0 while it is not loaded."""
        loaded = self._loaded
        return 0 if loaded is None else loaded.heap_bytes

    @property
    def backend(self) -> LibraryBackend:
        """The library's object, loaded when it is first asked for."""
        with self._lock:
            if self._loaded is None:
                from edge_infer.engine.library_tokenizer import LibraryBackend

                self._loaded = LibraryBackend(self.path / "tokenizer.json")
            return self._loaded


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
