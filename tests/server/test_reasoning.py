"""Reasoning is told apart from the answer, however the text is cut."""

from __future__ import annotations

import random

import pytest

from edge_infer.server.reasoning import ReasoningFormat, ReasoningSplitter, reasoning_for

CASES = [
    # text, starts open, reasoning, answer
    ("<think>\nLet me see.\n</think>\n\nParis.", False, "Let me see.", "Paris."),
    ("\n <think>a</think>b", False, "a", "b"),
    ("Let me see.\n\n</think>\n\nParis.\n", True, "Let me see.", "Paris.\n"),
    ("<think>\n\n</think>\n\nParis.", False, "", "Paris."),
    ("\n\n</think>Paris.", True, "", "Paris."),
    ("Paris <think>b</think>", False, "", "Paris <think>b</think>"),
    ("  Paris", False, "", "  Paris"),
    ("<thin", False, "", "<thin"),
    ("<thinx", False, "", "<thinx"),
    ("<think>cut </thin", False, "cut </thin", ""),
    ("cut off here  ", True, "cut off here", ""),
    ("a < b </ c\n  d</think>e</think>f", True, "a < b </ c\n  d", "e</think>f"),
    ("", False, "", ""),
    ("<think>größe 日本</think>", False, "größe 日本", ""),
]


def split(pieces: list[str], starts_open: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter("<think>", "</think>", starts_open)
    parts = [p for piece in pieces for p in splitter.feed(piece)] + splitter.finish()
    texts = {"reasoning": "", "text": ""}
    for kind, text in parts:
        assert text
        texts[kind] += text
    return texts["reasoning"], texts["text"]


@pytest.mark.parametrize(("text", "starts_open", "reasoning", "answer"), CASES)
def test_any_cut_gives_the_same(text, starts_open, reasoning, answer) -> None:
    expected = (reasoning, answer)
    assert split([text], starts_open) == expected
    assert split(list(text), starts_open) == expected
    for i in range(len(text)):
        assert split([text[:i], text[i:]], starts_open) == expected
    rng = random.Random(0)
    for _ in range(20):
        cuts = sorted(rng.choices(range(len(text) + 1), k=4))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert split(pieces, starts_open) == expected


def test_text_is_given_out_as_it_comes() -> None:
    splitter = ReasoningSplitter("<think>", "</think>")
    assert splitter.feed("<think>one") == [("reasoning", "one")]
    assert splitter.feed(" two</th") == [("reasoning", " two")]
    assert splitter.feed("ink>\nAnd") == [("text", "And")]


def test_the_template_tells_the_tags() -> None:
    qwen = "{% if '</think>' in content %}{{ content.split('</think>')[-1] }}{% endif %}"
    assert reasoning_for(qwen) == ReasoningFormat("<think>", "</think>")
    assert reasoning_for("{{ '[THINK]' + x + '[/THINK]' }}").open_tag == "[THINK]"
    assert reasoning_for("{{ messages }}") is None
    assert reasoning_for(None) is None


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("user: what does <think> mean?\nassistant: ", False),
    ],
)
def test_the_prompt_tells_whether_reasoning_is_open(prompt, is_open) -> None:
    assert ReasoningFormat("<think>", "</think>").starts_open(prompt) is is_open
