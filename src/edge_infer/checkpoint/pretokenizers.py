"""Pre-tokenizers of byte-level BPE by the name that GGUF files give them (``tokenizer.ggml.pre``).

A pre-tokenizer is a list of regular expressions. Each splits the pieces that the one before left:
matches and the gaps between them both stay as pieces (``Split`` with behaviour ``Isolated``). The
expressions are those of the original tokenizers, in the form that the ``tokenizers`` library reads;
``(?i:'s|...)`` is spelt out for ASCII because that is how llama.cpp matches it.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_PUNCT = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
# The letters that DeepSeek-LLM's pre-tokenizer takes as words: cased letters only.
_DEEPSEEK_LETTERS = (
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-"
    "\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18"
    "-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2"
    "-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-"
    "\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-"
    "\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-"
    "\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]"
)


def _tiktoken(digits: str, lead: str = _WORD_LEAD, tail: str = r"[\r\n]*") -> str:
    """The shape that Llama 3, Qwen 2 and their relatives share; they differ in runs of digits."""
    return (
        rf"{_CONTRACTION}|{lead}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+{tail}|\s*[\r\n]+|{_SPACES}"
    )


def _cased(suffix: str, digits: str) -> str:
    """The o200k shape: words split where lower case turns into upper case."""
    return (
        rf"{_WORD_LEAD}{_UPPER}*{_LOWER}+{suffix}|{_WORD_LEAD}{_UPPER}+{_LOWER}*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"
    )


@dataclass(frozen=True)
class PreTokenizer:
    """How one named pre-tokenizer splits text, and the policy that its name implies.

    ``ignore_merges``: a piece that is a token as a whole is taken as it is, without merging.
    ``add_bos``: BOS is put in front when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA3_PATTERNS = (_tiktoken(r"\p{N}{1,3}"),)
_LLAMA3 = PreTokenizer(_LLAMA3_PATTERNS, ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_tiktoken(r"\p{N}"),))
_GPT2_ONLY = PreTokenizer((_GPT2,))
_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_DEEPSEEK_V3_MAIN = _ASCII_PUNCT + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_DEEPSEEK_V3 = PreTokenizer(
    (r"\p{N}{1,3}", _CJK, _DEEPSEEK_V3_MAIN + r"[\r\n]*|\s*[\r\n]+|" + _SPACES)
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        _LLAMA3,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer(_LLAMA3_PATTERNS)),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer(_LLAMA3_PATTERNS, ignore_merges=True)),
    **dict.fromkeys(
        (
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "megrez",
            "stablelm2",
            "hunyuan",
            "grok-2",
            "solar-open",
        ),
        _QWEN2,
    ),
    "qwen35": PreTokenizer(
        (
            rf"{_CONTRACTION}|{_WORD_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}",
        )
    ),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "a.x-4.0", "mellum"),
        _GPT2_ONLY,
    ),
    **dict.fromkeys(("trillion", "granite-docling"), _GPT2_ONLY),
    **dict.fromkeys(
        (
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ),
        _DIGITS_GPT2,
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            r"\s?" + _DEEPSEEK_LETTERS + "+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _CJK_WIDE,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK_V3),
    "spark2_5": PreTokenizer(
        (r"\p{N}{1,3}", _CJK, _DEEPSEEK_V3_MAIN + r"|[\r\n]|" + _SPACES, r"\p{N}")
    ),
    "tekken": PreTokenizer((_cased("", r"\p{N}"),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "kanana2", "minimax-m2"),
        PreTokenizer((_cased(_CONTRACTION + "?", r"\p{N}{1,3}"),)),
    ),
    "seed-coder": PreTokenizer(
        (
            rf"{_CONTRACTION}|{_WORD_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+"
            rf"|{_SPACES}",
        )
    ),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        PreTokenizer(
            (
                r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
                rf"|{_WORD_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|{_SPACES}",
            )
        ),
    ),
}
