"""The tokenizer of a GGUF file, read from its metadata and checked.

Metadata comes from anywhere: lengths, ids, types and sizes are checked here, so that what follows
can rely on them. :mod:`edge_infer.checkpoint.tokenizer_gguf` writes it as a Hugging Face folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_infer.checkpoint.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from edge_infer.errors import CheckpointError, UnsupportedError

# Bounds far above any real file; beyond them a hostile file would cost minutes and gigabytes.
MAX_TOKENS = 2_000_000
MAX_MERGES = 4_000_000
MAX_PIECE_CHARS = 2048
MAX_TEXT_CHARS = 64 << 20
MAX_TEMPLATE_CHARS = 1 << 20

# GGUF token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Texts that mark an end of generation or of a turn in the known chat formats. Files often leave
# them typed as normal text; llama.cpp takes them as control tokens wherever they occur. It also
# does so with </s>, which is left out here: in Gemma's vocabulary that is an HTML tag.
_END_TEXTS = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    ]
)
# Fill-in-the-middle texts by the metadata keys of their role: control tokens too where the file
# types them as normal text, unless it names the role's token itself.
_FIM_TEXTS = {
    ("fim_pre_token_id", "prefix_token_id"): (
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim\u2581begin\uff5c> <PRE> \u2581<PRE>"
        " <|code_prefix|> <|prefix|>"
    ),
    ("fim_suf_token_id", "suffix_token_id"): (
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim\u2581hole\uff5c> <SUF> \u2581<SUF>"
        " <|code_suffix|> <|suffix|>"
    ),
    ("fim_mid_token_id", "middle_token_id"): (
        "<|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim\u2581end\uff5c> <MID> \u2581<MID>"
        " <|code_middle|> <|middle|>"
    ),
    ("fim_pad_token_id",): "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    ("fim_rep_token_id",): "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    ("fim_sep_token_id",): "<|file_sep|>",
}
# Always shown in the text, although files type them as control tokens (the gpt-oss format).
_VISIBLE_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True)
class GgufTokenizer:
    """The validated tokenizer of a GGUF file.

    ``tokens`` and ``types`` are by token id; ``scores`` is empty for byte-level BPE, ``merges`` for
    SentencePiece BPE. ``eos_token_ids`` has every token that ends generation, the EOS token first.
    """

    kind: str  # "bpe" or "spm"
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    pre: PreTokenizer | None
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    pad_token_id: int | None
    eos_token_ids: list[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    strip_after_special: bool  # Phi-3: white space after a special token is dropped
    chat_template: str | list[dict[str, str]] | None


def read(fields: Mapping[str, Any]) -> GgufTokenizer:
    """Validates the ``tokenizer.*`` metadata of a GGUF file. Raises as :func:`export` does."""
    model = string_field(fields, "tokenizer.ggml.model")
    if model is None:
        raise CheckpointError(
            "the GGUF file has no tokenizer (tokenizer.ggml.model is missing).",
            remedy="Use a complete model file; a vocabulary can be added when converting to GGUF.",
        )
    if model not in ("gpt2", "llama"):
        raise UnsupportedError(
            f"the GGUF file's tokenizer type is {model!r}; only 'gpt2' (byte-level BPE) and 'llama'"
            " (SentencePiece BPE) are supported.",
            remedy="Convert the original Hugging Face folder instead: its tokenizer.json is used.",
        )
    spm = model == "llama"
    tokens = _strings(fields, "tokenizer.ggml.tokens", MAX_TOKENS)
    if not tokens:
        raise CheckpointError("the GGUF file's vocabulary (tokenizer.ggml.tokens) is empty.")
    tokens = [t if t else f"[EMPTY_{i}]" for i, t in enumerate(tokens)]
    _check_pieces(tokens)
    types = _integers(fields, "tokenizer.ggml.token_type", len(tokens)) or [NORMAL] * len(tokens)

    pre: PreTokenizer | None = None
    scores: list[float] = []
    merges: list[str] = []
    if spm:
        scores = _floats(fields, "tokenizer.ggml.scores", len(tokens)) or [0.0] * len(tokens)
        add_bos, add_space_prefix = True, True
    else:
        pre = _pre_tokenizer(fields)
        merges = _strings(fields, "tokenizer.ggml.merges", MAX_MERGES)
        if not merges:
            raise CheckpointError("the GGUF file's BPE merges (tokenizer.ggml.merges) are missing.")
        _check_merges(merges, tokens)
        add_bos, add_space_prefix = pre.add_bos, False

    ids = {
        role: _token_id(fields, f"{key}_token_id", tokens)
        for role, key in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
            ("eot", "eot"),
            ("eom", "eom"),
        )
    }
    if spm:
        for role, default in (("bos", 1), ("eos", 2), ("unk", 0)):
            if ids[role] is None and default < len(tokens):
                ids[role] = default
    types = _effective_types(tokens, types, fields)
    add_bos = _boolean(fields, "tokenizer.ggml.add_bos_token", add_bos)
    add_eos = _boolean(fields, "tokenizer.ggml.add_eos_token", False)
    for role, wanted in (("bos", add_bos), ("eos", add_eos)):
        if wanted and ids[role] is None:
            raise CheckpointError(
                f"the GGUF file's policy adds a {role.upper()} token to prompts, but"
                f" tokenizer.ggml.{role}_token_id is missing."
            )
    name = (string_field(fields, "general.name") or "").lower()
    return GgufTokenizer(
        kind="spm" if spm else "bpe",
        tokens=tokens,
        types=types,
        scores=scores,
        merges=merges,
        pre=pre,
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        unk_token_id=ids["unk"],
        pad_token_id=ids["pad"],
        eos_token_ids=_end_ids(tokens, [ids["eos"], ids["eot"], ids["eom"]]),
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=spm
        and _boolean(fields, "tokenizer.ggml.add_space_prefix", add_space_prefix),
        strip_after_special="phi-3" in name or "phi3" in name,
        chat_template=_chat_template(fields),
    )


def split_merge(merge: str) -> list[str]:
    left, _, right = merge[1:].partition(" ")  # a leading space belongs to the left part
    return [merge[:1] + left, right]


def _effective_types(tokens: list[str], types: list[int], fields: Mapping[str, Any]) -> list[int]:
    fim: set[str] = set()
    for keys, texts in _FIM_TEXTS.items():
        if not any(f"tokenizer.ggml.{key}" in fields for key in keys):
            fim.update(texts.split())
    ends = _end_texts(tokens)
    out = list(types)
    for i, text in enumerate(tokens):
        if text in _VISIBLE_TEXTS or (text in _END_TEXTS and text not in ends):
            out[i] = USER_DEFINED
        elif (text in ends and out[i] != UNKNOWN) or (text in fim and out[i] == NORMAL):
            out[i] = CONTROL
    return out


def _end_texts(tokens: list[str]) -> frozenset[str]:
    # Beside <|return|> and <|call|>, <|end|> closes a part of a message, not the turn.
    if {"<|return|>", "<|call|>", "<|end|>"} <= set(tokens):
        return _END_TEXTS - {"<|end|>"}
    return _END_TEXTS


def _end_ids(tokens: list[str], named: list[int | None]) -> list[int]:
    ends = _end_texts(tokens)
    ids = [i for i in named if i is not None]
    ids += [i for i, text in enumerate(tokens) if text in ends]
    return list(dict.fromkeys(ids))


def _pre_tokenizer(fields: Mapping[str, Any]) -> PreTokenizer:
    name = string_field(fields, "tokenizer.ggml.pre")
    pre = PRE_TOKENIZERS.get(name or "")
    if pre is None:
        said = f"names the pre-tokenizer {name!r}" if name else "names no pre-tokenizer"
        raise UnsupportedError(
            f"the GGUF file {said} (tokenizer.ggml.pre); known are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}.",
            remedy="Convert the original Hugging Face folder instead: its tokenizer.json is used.",
        )
    return pre


def _check_pieces(tokens: list[str]) -> None:
    total = 0
    for i, text in enumerate(tokens):
        total += len(text)
        if len(text) > MAX_PIECE_CHARS:
            raise CheckpointError(
                f"token {i} of the GGUF file's vocabulary has {len(text)} characters; at most"
                f" {MAX_PIECE_CHARS} are accepted."
            )
    if total > MAX_TEXT_CHARS:
        raise CheckpointError(
            f"the GGUF file's vocabulary has {total} characters of text; at most {MAX_TEXT_CHARS}"
            " are accepted."
        )
    unique = len(set(tokens))
    if unique != len(tokens):
        raise CheckpointError(
            f"the GGUF file's vocabulary has {len(tokens)} tokens but only {unique} different"
            " texts; each token must have its own."
        )


def _check_merges(merges: list[str], tokens: list[str]) -> None:
    vocabulary = set(tokens)
    for i, merge in enumerate(merges):
        left, right = split_merge(merge)
        for part in (left, right, left + right):
            if not right or part not in vocabulary:
                raise CheckpointError(
                    f"merge {i} of {len(merges)} in the GGUF file ({merge[:80]!r}) does not join"
                    f" two tokens of the vocabulary into a third ({part[:80]!r} is not a token)."
                )


def _chat_template(fields: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    default = string_field(fields, "tokenizer.chat_template")
    prefix = "tokenizer.chat_template."
    named = {}
    for key in fields:
        if isinstance(key, str) and key.startswith(prefix):
            text = string_field(fields, key)
            if text is not None:
                named[key[len(prefix) :]] = text
    for name, text in (("default", default or ""), *named.items()):
        if len(text) > MAX_TEMPLATE_CHARS:
            raise CheckpointError(
                f"the GGUF file's chat template {name!r} has {len(text)} characters; at most"
                f" {MAX_TEMPLATE_CHARS} are accepted."
            )
    if not named:
        return default
    if default is not None:
        named = {"default": default, **named}
    return [{"name": name, "template": text} for name, text in named.items()]


def _text(value: Any, key: str) -> str:
    """A str; bytes (as some readers give them) must be UTF-8."""
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError as e:
            raise CheckpointError(f"the GGUF field {key} has text that is not UTF-8: {e}.") from e
    if not isinstance(value, str):
        raise CheckpointError(
            f"the GGUF field {key} must hold text, but holds {type(value).__name__}."
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as e:  # surrogates: a reader that passes bad bytes through
        raise CheckpointError(f"the GGUF field {key} has text that is not UTF-8: {e}.") from e
    return value


def string_field(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return None if value is None else _text(value, key)


def _list(fields: Mapping[str, Any], key: str, limit: int) -> list[Any] | None:
    value = fields.get(key)
    if value is None:
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise CheckpointError(
            f"the GGUF field {key} must be an array, but is {type(value).__name__}."
        )
    if len(value) > limit:
        raise CheckpointError(
            f"the GGUF field {key} has {len(value)} entries; at most {limit} are accepted."
        )
    return list(value)


def _strings(fields: Mapping[str, Any], key: str, limit: int) -> list[str]:
    return [_text(v, key) for v in _list(fields, key, limit) or []]


def _per_token(fields: Mapping[str, Any], key: str, count: int) -> list[Any] | None:
    values = _list(fields, key, MAX_TOKENS)
    if values is not None and len(values) != count:
        raise CheckpointError(f"the GGUF field {key} has {len(values)} entries for {count} tokens.")
    return values


def is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _integers(fields: Mapping[str, Any], key: str, count: int) -> list[int] | None:
    values = _per_token(fields, key, count)
    if values is None:
        return None
    if not all(is_integer(v) for v in values):
        raise CheckpointError(f"the GGUF field {key} must hold integers only.")
    return [int(v) for v in values]


def _floats(fields: Mapping[str, Any], key: str, count: int) -> list[float] | None:
    values = _per_token(fields, key, count)
    if values is None:
        return None
    try:
        numbers = [float(v) for v in values]
    except (TypeError, ValueError) as e:
        raise CheckpointError(f"the GGUF field {key} must hold numbers only.") from e
    if any(v != v for v in numbers):
        raise CheckpointError(f"the GGUF field {key} has scores that are not numbers (NaN).")
    return numbers


def _boolean(fields: Mapping[str, Any], key: str, default: bool) -> bool:
    value = fields.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise CheckpointError(f"the GGUF field {key} must be true or false, but is {value!r:.80}.")


def _token_id(fields: Mapping[str, Any], name: str, tokens: list[str]) -> int | None:
    key = f"tokenizer.ggml.{name}"
    value = fields.get(key)
    if value is None:
        return None
    if not is_integer(value) or not 0 <= int(value) < len(tokens):
        raise CheckpointError(
            f"the GGUF field {key} is {value!r:.80}, outside the {len(tokens)} tokens."
        )
    return int(value)
