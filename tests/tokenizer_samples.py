"""Small GGUF tokenizer metadata for tests: one SentencePiece and one byte-level vocabulary."""

from __future__ import annotations

from typing import Any

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def spm_fields(**changes: Any) -> dict[str, Any]:
    """SentencePiece BPE: 3 special tokens, 256 bytes, 2 user-defined, single characters, words."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    user = ["<tool>", "  "]
    chars = [SPACE, *"abcdefghijklmnopqrstuvwxyzHW.,!0123456789é\n"]
    words = ["he", "ll", "llo", "hello", f"{SPACE}w", f"{SPACE}wo", "rl", "rld", f"{SPACE}world"]
    words += [f"{SPACE}hello", "or", "ld", "lo", "aa", "aaaa"]
    tokens = special + byte_tokens + user + chars + words
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [USER_DEFINED] * 2
    types += [NORMAL] * (len(chars) + len(words))
    scores = [0.0] * (len(tokens) - len(words)) + [-float(i + 1) for i in range(len(words))]
    fields = {
        "general.architecture": "llama",
        "llama.context_length": 2048,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {k: v for k, v in {**fields, **_dotted(changes)}.items() if v is not None}


def bpe_fields(**changes: Any) -> dict[str, Any]:
    """Byte-level BPE: the 256 bytes, a few merges, one control and one user-defined token."""
    alphabet = byte_alphabet()
    merges = ["h e", "l l", "ll o", "he llo", "Ġ w", "Ġw o", "r l", "rl d", "Ġwo rld", "Ġ Ġ"]
    merges += ["Ã ©", "ð Ł", "ðŁ ĺ"]
    tokens = alphabet + [m.replace(" ", "") for m in merges] + ["<|endoftext|>", "<tool>"]
    types = [NORMAL] * (len(tokens) - 2) + [CONTROL, USER_DEFINED]
    fields = {
        "general.architecture": "gpt2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    }
    return {k: v for k, v in {**fields, **_dotted(changes)}.items() if v is not None}


def byte_alphabet() -> list[str]:
    """GPT-2's printable character of every byte, in the order of the bytes."""
    out, extra = [], 0
    for b in range(256):
        if 0x21 <= b < 0x7F or 0xA1 <= b < 0xAD or b >= 0xAE:
            out.append(chr(b))
        else:
            out.append(chr(0x100 + extra))
            extra += 1
    return out


def _dotted(changes: dict[str, Any]) -> dict[str, Any]:
    """`pre=x` changes tokenizer.ggml.pre; names with two underscores are full keys."""
    return {
        k.replace("__", ".") if "__" in k else f"tokenizer.ggml.{k}": v for k, v in changes.items()
    }
