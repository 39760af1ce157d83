"""Incremental text: equal to the whole decoded at once, for any tokens and any stop strings."""

from __future__ import annotations

import random

import pytest
from tokenizer_samples import bpe_fields, spm_fields

from edge_infer.checkpoint import tokenizer_gguf
from edge_infer.engine.detokenizer import Detokenizer
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import ConfigError

TEXTS = ["hello world", "😀 é日本", "  a\n\n", "aaaa hello", "\u0000x", "<tool>hello"]


@pytest.fixture(scope="module", params=["spm", "bpe"])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer_gguf.export(spm_fields() if request.param == "spm" else bpe_fields(), folder)
    return Tokenizer.from_folder(folder)


def run(detokenizer: Detokenizer, ids) -> list[str]:
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


def random_ids(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Real text, cut anywhere and mixed with arbitrary tokens: characters split, bytes invalid."""
    ids: list[int] = []
    for _ in range(rng.randrange(1, 6)):
        some = tokenizer.encode(rng.choice(TEXTS), add_special_tokens=rng.random() < 0.3)
        ids += some[rng.randrange(len(some)) :] if rng.random() < 0.3 else some
        ids += [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(3))]
    return ids


def reference_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first; the longest of those ending there."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text.endswith(s, 0, end)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("skip", [True, False])
def test_deltas_join_to_the_full_text(tokenizer, seed, skip):
    ids = random_ids(tokenizer, random.Random(seed))
    for strip in (False, True):
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, strip_leading_space=strip)
        deltas = run(detokenizer, ids)
        whole = tokenizer.decode(ids, skip, strip_leading_space=strip)
        assert "".join(deltas) == whole == detokenizer.text
        assert detokenizer.stopped is None


@pytest.mark.parametrize("seed", range(120))
def test_stop_strings_match_the_reference(tokenizer, seed):
    rng = random.Random(seed)
    ids = random_ids(tokenizer, rng)
    text = tokenizer.decode(ids, strip_leading_space=False)
    stops = []
    for _ in range(rng.randrange(1, 4)):
        if text and rng.random() < 0.7:  # taken from the text: spans tokens
            at = rng.randrange(len(text))
            stops.append(text[at : at + rng.randrange(1, 8)])
        else:
            stops.append("".join(rng.choice("ahelo wd") for _ in range(rng.randrange(1, 4))))
    expected, stop = reference_stop(text, stops)
    for include in (False, True):
        detokenizer = Detokenizer(tokenizer, stops, include)
        shown = ""
        for token in ids:
            shown += detokenizer.push(token)
            # at no time has text been shown that the result does not have
            assert (expected + (stop or "") if include else expected).startswith(shown)
        shown += detokenizer.finish()
        assert shown == (expected + (stop or "") if include else expected)
        assert detokenizer.stopped == stop
        assert detokenizer.text == shown


def test_a_character_in_pieces_appears_once_it_is_whole(tokenizer):
    ids = tokenizer.encode("😀", add_special_tokens=False)
    assert len(ids) > 1
    deltas = run(Detokenizer(tokenizer), ids)
    assert [d for d in deltas if d.strip()] == ["😀"]
    assert "\ufffd" not in "".join(deltas)


def test_an_incomplete_character_becomes_a_replacement_at_the_end(tokenizer):
    ids = tokenizer.encode("😀", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(tokenizer)
    assert "\ufffd" not in "".join(detokenizer.push(i) for i in ids)
    assert detokenizer.finish() == "\ufffd"


def test_text_that_cannot_become_a_stop_string_is_not_delayed(tokenizer):
    detokenizer = Detokenizer(tokenizer, ["zz"])
    ids = tokenizer.encode("hello", add_special_tokens=False)
    assert "".join(detokenizer.push(i) for i in ids).endswith("hello")


def test_a_false_start_of_a_stop_string_is_released(tokenizer):
    detokenizer = Detokenizer(tokenizer, ["hellox"])
    ids = tokenizer.encode("hello", add_special_tokens=False)
    assert "".join(detokenizer.push(i) for i in ids).strip() == ""
    rest = detokenizer.push(tokenizer.encode("a", add_special_tokens=False)[-1])
    assert "hello" in rest


def test_nothing_comes_after_a_stop_string(tokenizer):
    detokenizer = Detokenizer(tokenizer, ["he"])
    ids = tokenizer.encode("hello hello", add_special_tokens=False)
    assert "".join(run(detokenizer, ids)).strip() == ""
    assert detokenizer.stopped == "he"
    assert detokenizer.push(ids[0]) == ""
    assert detokenizer.finish() == ""


def test_special_tokens_are_hidden_or_shown(tokenizer):
    special = min(tokenizer.special_ids)
    assert "".join(run(Detokenizer(tokenizer), [special])) == ""
    shown = "".join(run(Detokenizer(tokenizer, skip_special_tokens=False), [special]))
    assert shown.startswith("<")


def test_one_stop_string_may_be_given_bare(tokenizer):
    assert Detokenizer(tokenizer, "ab")._matchers[0].stop == "ab"


@pytest.mark.parametrize("stop", [[""], ["a", ""], [3]])
def test_bad_stop_strings_are_refused(tokenizer, stop):
    with pytest.raises(ConfigError):
        Detokenizer(tokenizer, stop)


def test_the_cost_of_a_token_does_not_grow_with_the_text():
    class Source:
        dummy_prefix = False
        calls = 0

        def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
            self.calls += 1
            return b"ab"

    source = Source()
    detokenizer = Detokenizer(source, ["ababx"])
    for _ in range(5000):
        detokenizer.push(0)
    assert source.calls == 5000  # each token is looked at once
    assert len(detokenizer._held) < len("ababx")
