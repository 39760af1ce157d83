"""Schemas, a small byte tokenizer, and random output under a grammar without a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edge_infer import _native
from edge_infer.engine.tokenizer import Tokenizer

SPECIAL = ("<bos>", "<eos>", "<|call|>", "<|end|>", "[TOOL_CALLS]", "[ARGS]")

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
SCHEMAS = {
    "any": True,
    "scalars": {"type": ["boolean", "null", "integer", "number"]},
    "enum": {"enum": ["rot", "größe", 'a "quoted" word', 7, None, {"a": [1]}]},
    "const": {"const": {"a": [1, None, "日本"]}},
    "bounds": {
        "type": "array",
        "minItems": 3,
        "maxItems": 5,
        "items": {"type": "integer", "minimum": -3, "exclusiveMaximum": 120},
    },
    "floats": {
        "type": "object",
        "properties": {"x": {"type": "number", "minimum": -1.5, "maximum": 2.25}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "person": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
                },
                "required": ["name", "tags"],
                "additionalProperties": False,
            },
            "名前": {"type": "string", "minLength": 1, "maxLength": 4},
        },
        "required": ["person", "名前"],
        "additionalProperties": False,
    },
    "optional": {
        "type": "object",
        "properties": {k: {"type": "integer"} for k in "abc"},
        "required": ["b"],
        "additionalProperties": False,
    },
    "extra": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "any_of": {
        "anyOf": [
            {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"},
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
        ]
    },
    "one_of": {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": v}, v: {}}, "required": ["k", v]}
            for v in ("x", "y")
        ]
    },
    "all_of": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]},
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "formats": {
        "type": "array",
        "prefixItems": [{"type": "string", "format": f} for f in ("date", "uuid", "ipv4")],
        "minItems": 3,
        "items": False,
    },
}


def byte_tokenizer(folder: Path, special: tuple[str, ...] = SPECIAL) -> Tokenizer:
    """Every byte is a token; then come the special tokens."""
    import tokenizers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(letters)}, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(list(special))
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<bos>", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(folder)


def plausible_logits(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray:
    """f32 [vocab]: what ends strings, numbers and lists is more likely than the rest, so that
    random output ends."""
    logits = np.zeros(vocab_size, np.float32)
    bonus = np.log(vocab_size) - 2.5
    for text in ('"', "}", "]", ",", '",', '"}', "</", ">"):
        for token in tokenizer.encode(text, add_special_tokens=False):
            logits[token] = bonus
    logits[tokenizer.eos_token_ids] = bonus
    return logits


def generate(tokenizer, constraint, logits: np.ndarray, seed: int, max_tokens: int):
    """(tokens without EOS, whether the grammar ended it) at temperature 1."""
    state = _native.SamplingState(
        len(logits),
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias={},
        seed=seed,
        num_logprobs=-1,
    )
    ids: list[int] = []
    while len(ids) < max_tokens:
        mask = constraint.mask()
        token = int(state.sample(logits, mask).token)
        check_allows(
            tokenizer, constraint, mask, len(logits), [token, (seed + len(ids)) % len(logits)]
        )
        if token in tokenizer.eos_token_ids:
            return ids, True
        constraint.accept(token)
        ids.append(token)
        if constraint.finished():
            return ids, True
    return ids, False


def check_allows(tokenizer: Tokenizer, constraint, mask, vocab_size: int, more: list[int]) -> None:
    """The answer about single tokens is that of the mask: for ``more``, the special ones, some at
    random, and a row of the head that is no token."""
    rng = np.random.default_rng(sum(more))
    probes = {*more, *tokenizer.special_ids, *rng.integers(0, vocab_size, 5), vocab_size - 1}
    for token in map(int, probes):
        allowed = bool(mask[token // 32] >> (token % 32) & 1)
        assert constraint.allows(token) == allowed, (token, tokenizer.decode([token]))


def may_end(tokenizer: Tokenizer, constraint) -> bool:
    """Whether EOS may follow."""
    eos = tokenizer.eos_token_ids[0]
    return bool(constraint.mask()[eos // 32] >> (eos % 32) & 1)
