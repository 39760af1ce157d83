"""GGUF tokenizer metadata to the files of a Hugging Face folder.

Two kinds are converted, so that the ``tokenizers`` library gives llama.cpp's ids for the same file:

- byte-level BPE (``tokenizer.ggml.model`` = ``gpt2``): merges as stored, pre-tokenizer by name
  (:mod:`edge_infer.checkpoint.pretokenizers`); an unknown name is refused, never guessed;
- SentencePiece BPE (``llama``): the pair whose joined piece scores highest merges first, so the
  merges are every split of every piece, ordered by score; unknown characters fall back to bytes.

The merges are written as they are made: a vocabulary of 262,144 pieces has half a million.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from edge_infer.checkpoint.gguf_vocabulary import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GgufTokenizer,
    is_integer,
    read,
    split_merge,
    string_field,
)
from edge_infer.errors import StorageError

SPACE = "\u2581"


def export(fields: Mapping[str, Any], out_dir: Path | str) -> list[str]:
    """Writes ``tokenizer.json``, ``tokenizer_config.json`` and ``generation_config.json``.

    ``fields`` maps GGUF keys to Python values (str, bool, int, float, lists of them). The chat
    template goes into ``tokenizer_config.json``, the tokens that end generation into
    ``generation_config.json``. Returns the names of the files written.

    Raises CheckpointError for damaged or hostile metadata, UnsupportedError for a tokenizer type or
    pre-tokenizer that is not known here, StorageError when writing fails.
    """
    tokenizer = read(fields)
    out = Path(out_dir)
    try:
        with open(out / "tokenizer.json", "w", encoding="utf-8") as f:
            _write_tokenizer_json(tokenizer, f)
        _write_json(out / "tokenizer_config.json", _tokenizer_config(tokenizer, fields))
        generation: dict[str, Any] = {}
        if tokenizer.bos_token_id is not None:
            generation["bos_token_id"] = tokenizer.bos_token_id
        if tokenizer.eos_token_ids:
            ids = tokenizer.eos_token_ids
            generation["eos_token_id"] = ids if len(ids) > 1 else ids[0]
        if tokenizer.pad_token_id is not None:
            generation["pad_token_id"] = tokenizer.pad_token_id
        _write_json(out / "generation_config.json", generation)
    except OSError as e:
        raise StorageError(
            f"cannot write the tokenizer files to {out}: {e.strerror or e}.",
            remedy="Free disk space or choose another output folder.",
        ) from e
    return ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]


def spm_merges(tokens: list[str], types: list[int], scores: list[float]) -> Iterator[list[str]]:
    """Every way to make a piece from two pieces, the piece with the highest score first.

    Splits of one piece have one score, and SentencePiece then takes the leftmost; ranks cannot tie,
    so the longer left part comes first, which agrees except inside long runs of one character.
    """
    usable = (NORMAL, UNUSED)
    pieces = {t for t, kind in zip(tokens, types, strict=True) if kind in usable}
    order = [i for i, t in enumerate(tokens) if types[i] in usable and len(t) > 1]
    order.sort(key=lambda i: -scores[i])  # stable: equal scores stay in the order of their ids
    for i in order:
        text = tokens[i]
        for cut in range(len(text) - 1, 0, -1):
            left, right = text[:cut], text[cut:]
            if left in pieces and right in pieces:
                yield [left, right]


def _write_tokenizer_json(tok: GgufTokenizer, f: TextIO) -> None:
    """Streams the file: the parts that grow with the vocabulary are never held as one object."""
    parts = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tok),
        "normalizer": _normalizer(tok),
        "pre_tokenizer": _pre_tokenizer_json(tok),
        "post_processor": _post_processor(tok),
        "decoder": _decoder(tok),
    }
    f.write("{")
    for key, value in parts.items():
        f.write(f"{_json(key)}: {_json(value)},\n")
    spm = tok.kind == "spm"
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": tok.tokens[tok.unk_token_id] if spm and tok.unk_token_id is not None else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": spm,
        "byte_fallback": spm,
        "ignore_merges": tok.pre.ignore_merges if tok.pre else False,
    }
    f.write('"model": ' + _json(model)[:-1] + ',\n"vocab": {')
    _write_joined(f, (f"{_json(t)}: {i}" for i, t in enumerate(tok.tokens)))
    f.write('},\n"merges": [')
    merges: Iterable[list[str]]
    if spm:
        merges = spm_merges(tok.tokens, tok.types, tok.scores)
    else:
        merges = (split_merge(m) for m in tok.merges)
    # As strings the library reads them a quarter faster; a piece with a space needs the pair.
    pairs = any(" " in t for t in tok.tokens)
    _write_joined(f, (_json(m if pairs else " ".join(m)) for m in merges))
    f.write("]}}\n")


def _added_tokens(tok: GgufTokenizer) -> list[dict[str, Any]]:
    unstripped = ("<unk>", "<s>", "<|endoftext|>")
    out = []
    for i, (text, kind) in enumerate(zip(tok.tokens, tok.types, strict=True)):
        if kind not in (UNKNOWN, CONTROL, USER_DEFINED):
            continue
        out.append(
            {
                "id": i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": tok.strip_after_special and text not in unstripped,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }
        )
    return out


def _normalizer(tok: GgufTokenizer) -> dict[str, Any] | None:
    if tok.kind != "spm":
        return None
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if not tok.add_space_prefix:
        return replace
    return {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace],
    }


def _pre_tokenizer_json(tok: GgufTokenizer) -> dict[str, Any] | None:
    if tok.pre is None:
        return None
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in tok.pre.patterns
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


def _post_processor(tok: GgufTokenizer) -> dict[str, Any] | None:
    if not (tok.add_bos or tok.add_eos):
        return None
    special: dict[str, Any] = {}

    def piece(token_id: int | None, type_id: int) -> dict[str, Any]:
        assert token_id is not None  # read() refuses a policy without its token
        text = tok.tokens[token_id]
        special[text] = {"id": text, "ids": [token_id], "tokens": [text]}
        return {"SpecialToken": {"id": text, "type_id": type_id}}

    def framed(name: str, type_id: int) -> list[dict[str, Any]]:
        middle = {"Sequence": {"id": name, "type_id": type_id}}
        first = [piece(tok.bos_token_id, type_id)] if tok.add_bos else []
        last = [piece(tok.eos_token_id, type_id)] if tok.add_eos else []
        return [*first, middle, *last]

    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": framed("A", 0) + framed("B", 1),
        "special_tokens": special,
    }


def _decoder(tok: GgufTokenizer) -> dict[str, Any]:
    if tok.kind != "spm":
        return {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if tok.add_space_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _tokenizer_config(tok: GgufTokenizer, fields: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": tok.add_bos,
        "add_eos_token": tok.add_eos,
    }
    for role in ("bos", "eos", "unk", "pad"):
        token_id = getattr(tok, f"{role}_token_id")
        if token_id is not None:
            config[f"{role}_token"] = tok.tokens[token_id]
    architecture = string_field(fields, "general.architecture")
    length = fields.get(f"{architecture}.context_length")
    if length is not None and is_integer(length) and length > 0:
        config["model_max_length"] = int(length)
    if tok.chat_template is not None:
        config["chat_template"] = tok.chat_template
    return config


_json = json.JSONEncoder(ensure_ascii=False).encode


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _write_joined(f: TextIO, items: Iterable[str]) -> None:
    iterator = iter(items)
    first = True
    while chunk := list(itertools.islice(iterator, 8192)):
        f.write(("" if first else ",\n") + ",\n".join(chunk))
        first = False
