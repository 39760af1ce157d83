"""A small byte tokenizer, and random output under a grammar without a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edge_infer import _native
from edge_infer.engine.tokenizer import Tokenizer

SPECIAL = ("<bos>", "<eos>", "<|call|>", "<|end|>", "[TOOL_CALLS]", "[ARGS]")


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
        token = int(state.sample(logits, constraint.mask()).token)
        if token in tokenizer.eos_token_ids:
            return ids, True
        constraint.accept(token)
        ids.append(token)
        if constraint.finished():
            return ids, True
    return ids, False
