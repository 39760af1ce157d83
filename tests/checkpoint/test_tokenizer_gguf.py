"""GGUF tokenizers: llama.cpp's ids for the same file, policy carried over, hostile metadata."""

from __future__ import annotations

import json
from pathlib import Path

import assets
import pytest
from tokenizer_samples import BYTE, CONTROL, NORMAL, SPACE, USER_DEFINED, bpe_fields, spm_fields

from edge_infer.checkpoint import gguf_vocabulary, tokenizer_gguf
from edge_infer.checkpoint.gguf_header import read_header
from edge_infer.checkpoint.pretokenizers import PRE_TOKENIZERS
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import CheckpointError, StorageError, UnsupportedError

GOLDEN = json.loads((Path(__file__).parent / "tokenizer_golden.json").read_text())


def exported(fields, folder: Path) -> Tokenizer:
    assert tokenizer_gguf.export(fields, folder)
    return Tokenizer.from_folder(folder)


def config(folder: Path, name: str = "tokenizer_config.json"):
    return json.loads((folder / name).read_text())


def ids_of(tokenizer: Tokenizer, *texts: str) -> list[int]:
    return [tokenizer.token_to_id(t) for t in texts]


class TestConformance:
    """Against llama.cpp's own test vectors and ids that llama.cpp gave for our texts."""

    @pytest.mark.parametrize("name", assets.VOCABULARIES)
    def test_llama_cpp_vectors(self, name, tmp_path):
        path = assets.llama_cpp_vocabularies() / f"ggml-vocab-{name}.gguf"
        tokenizer = exported(read_header(path).fields, tmp_path)
        texts = path.with_suffix(".gguf.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
        lines = path.with_suffix(".gguf.out").read_text("utf-8").split("\n")
        assert len(texts) > 40
        for text, line in zip(texts, lines, strict=False):
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            assert ids == [int(i) for i in line.split()], text
            if name not in ("llama-spm", "phi-3") or "  " not in text:
                assert tokenizer.decode(ids) == text

    @pytest.mark.parametrize("pre", ["gpt-2", *GOLDEN["gpt2_changes"]])
    def test_pre_tokenizers(self, pre, tmp_path):
        path = assets.llama_cpp_vocabularies() / "ggml-vocab-gpt-2.gguf"
        fields = {**read_header(path).fields, "tokenizer.ggml.pre": pre}
        tokenizer = exported(fields, tmp_path)
        changes = GOLDEN["gpt2_changes"].get(pre, {})
        for i, text in enumerate(GOLDEN["texts"]):
            want = changes.get(str(i), GOLDEN["gpt2"]["gpt-2"][i])
            assert tokenizer.encode(text, add_special_tokens=False) == want, text

    def test_every_pre_tokenizer_has_golden_ids(self):
        proven = {PRE_TOKENIZERS[name].patterns for name in ("gpt-2", *GOLDEN["gpt2_changes"])}
        assert {p.patterns for p in PRE_TOKENIZERS.values()} == proven

    def test_demo_model(self, tmp_path):
        tokenizer = exported(read_header(assets.demo_model()).fields, tmp_path)
        for kind, ids in (("texts", "gemma3"), ("special_texts", "gemma3_special")):
            for text, want in zip(GOLDEN[kind], GOLDEN[ids], strict=True):
                assert tokenizer.encode(text) == want, text
                shown = tokenizer.decode(want[1:], skip_special_tokens=False)
                assert shown == text.replace(SPACE, " ")
        assert tokenizer.bos_token_id == 2
        assert set(ids_of(tokenizer, "<eos>", "<end_of_turn>")) <= set(
            config(tmp_path, "generation_config.json")["eos_token_id"]
        )
        assert tokenizer.chat_template is None


class TestSentencePiece:
    def test_highest_score_merges_first(self, tmp_path):
        tokenizer = exported(spm_fields(), tmp_path)
        got = tokenizer.encode("hello world", add_special_tokens=False)
        assert got == ids_of(tokenizer, f"{SPACE}hello", f"{SPACE}world")

    def test_scores_not_order_decide(self, tmp_path):
        fields = spm_fields()
        tokens = fields["tokenizer.ggml.tokens"]
        scores = list(fields["tokenizer.ggml.scores"])
        scores[tokens.index("or")] = 100.0  # before "rl", so that "world" is out of reach
        tokenizer = exported({**fields, "tokenizer.ggml.scores": scores}, tmp_path)
        got = tokenizer.encode("world", add_special_tokens=False)
        assert got == ids_of(tokenizer, f"{SPACE}w", "or", "ld")

    def test_unknown_characters_fall_back_to_bytes(self, tmp_path):
        tokenizer = exported(spm_fields(), tmp_path)
        got = tokenizer.encode("日", add_special_tokens=False)
        assert got == ids_of(tokenizer, SPACE, "<0xE6>", "<0x97>", "<0xA5>")

    def test_text_that_looks_like_a_byte_token_stays_text(self, tmp_path):
        tokenizer = exported(spm_fields(), tmp_path)
        text = "<0x0A>"
        got = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.token_to_id(text) not in got
        assert tokenizer.decode(got) == text

    def test_space_prefix(self, tmp_path):
        (tmp_path / "with").mkdir()
        (tmp_path / "without").mkdir()
        tokenizer = exported(spm_fields(), tmp_path / "with")
        # the prefix comes back after every special token
        after = tokenizer.encode("<s>world", add_special_tokens=False)
        assert after == [1, tokenizer.token_to_id(f"{SPACE}world")]
        assert tokenizer.decode(tokenizer.encode("world")) == "world"
        bare = exported(spm_fields(add_space_prefix=False), tmp_path / "without")
        assert SPACE not in bare.decode(bare.encode("hello"))
        assert bare.encode("hello") == [1, bare.token_to_id("hello")]
        assert bare.decode(bare.encode(" world")) == " world"

    def test_user_defined_tokens_match_before_everything(self, tmp_path):
        tokenizer = exported(spm_fields(add_space_prefix=False), tmp_path)
        got = tokenizer.encode("a  <tool>b", add_special_tokens=False)
        assert got == ids_of(tokenizer, "a", "  ", "<tool>", "b")
        assert not {tokenizer.token_to_id("<tool>")} & tokenizer.special_ids

    def test_phi3_drops_white_space_after_special_tokens(self, tmp_path):
        tokenizer = exported(spm_fields(general__name="Phi3"), tmp_path)
        assert tokenizer.encode("</s> a", add_special_tokens=False) == [
            2,
            *ids_of(tokenizer, SPACE, "a"),
        ]

    def test_default_special_ids(self, tmp_path):
        fields = spm_fields(bos_token_id=None, eos_token_id=None, unknown_token_id=None)
        exported(fields, tmp_path)
        c = config(tmp_path)
        assert (c["bos_token"], c["eos_token"], c["unk_token"]) == ("<s>", "</s>", "<unk>")


class TestByteLevel:
    def test_merges(self, tmp_path):
        tokenizer = exported(bpe_fields(), tmp_path)
        assert tokenizer.encode("hello world") == ids_of(tokenizer, "hello", "Ġworld")
        assert tokenizer.decode(tokenizer.encode("é\u0000😀 <tool>")) == "é\u0000😀 <tool>"

    def test_whole_pieces_need_no_merges_where_the_pre_tokenizer_says_so(self, tmp_path):
        fields = bpe_fields()
        tokens = [*fields["tokenizer.ggml.tokens"], "zzz"]
        types = [*fields["tokenizer.ggml.token_type"], NORMAL]
        for pre, whole in (("gpt-2", False), ("llama-bpe", True)):
            (tmp_path / pre).mkdir()
            changed = bpe_fields(pre=pre, tokens=tokens, token_type=types, add_bos_token=False)
            tokenizer = exported(changed, tmp_path / pre)
            assert (tokenizer.encode("zzz") == [len(tokens) - 1]) is whole

    def test_bos_by_default_for_llama3(self, tmp_path):
        tokenizer = exported(bpe_fields(pre="llama-bpe"), tmp_path)
        assert tokenizer.encode("he")[0] == tokenizer.bos_token_id
        assert config(tmp_path)["add_bos_token"] is True

    def test_eos_policy(self, tmp_path):
        tokenizer = exported(bpe_fields(add_eos_token=True), tmp_path)
        assert tokenizer.encode("he")[-1] == tokenizer.eos_token_ids[0]

    @pytest.mark.parametrize("pre", ["made-up", "default", "", None])
    def test_unknown_pre_tokenizer_is_refused(self, pre, tmp_path):
        with pytest.raises(UnsupportedError, match="pre-tokenizer"):
            tokenizer_gguf.export(bpe_fields(pre=pre), tmp_path)

    def test_end_of_turn_texts_become_control_tokens(self, tmp_path):
        fields = bpe_fields()
        tokens = [*fields["tokenizer.ggml.tokens"], "<|im_end|>", "<|fim_prefix|>", "<|channel|>"]
        types = [*fields["tokenizer.ggml.token_type"], NORMAL, NORMAL, CONTROL]
        tokenizer = exported(bpe_fields(tokens=tokens, token_type=types), tmp_path)
        im_end, fim, channel = ids_of(tokenizer, *tokens[-3:])
        assert {im_end, fim} <= tokenizer.special_ids
        assert channel not in tokenizer.special_ids  # shown in the text
        assert tokenizer.encode("he<|im_end|>") == [*tokenizer.encode("he"), im_end]


class TestCarriedOver:
    def test_chat_template(self, tmp_path):
        exported(spm_fields(tokenizer__chat_template="{{ messages }}"), tmp_path)
        assert Tokenizer.from_folder(tmp_path).chat_template == "{{ messages }}"

    def test_named_chat_templates(self, tmp_path):
        fields = spm_fields(tokenizer__chat_template="d")
        fields["tokenizer.chat_template.tool_use"] = "t"
        exported(fields, tmp_path)
        assert Tokenizer.from_folder(tmp_path).chat_templates == {"default": "d", "tool_use": "t"}

    def test_context_length(self, tmp_path):
        exported(spm_fields(), tmp_path)
        assert config(tmp_path)["model_max_length"] == 2048

    def test_empty_tokens_get_a_name(self, tmp_path):
        fields = bpe_fields()
        tokens = [*fields["tokenizer.ggml.tokens"], ""]
        types = [*fields["tokenizer.ggml.token_type"], NORMAL]
        exported(bpe_fields(tokens=tokens, token_type=types), tmp_path)
        assert f"[EMPTY_{len(tokens) - 1}]" in config(tmp_path, "tokenizer.json")["model"]["vocab"]

    def test_bytes_are_accepted_as_text(self, tmp_path):
        fields = bpe_fields()
        tokens = [t.encode() for t in fields["tokenizer.ggml.tokens"]]
        assert exported(bpe_fields(tokens=tokens), tmp_path).encode("he") == [256]

    def test_files_written(self, tmp_path):
        names = tokenizer_gguf.export(bpe_fields(), tmp_path)
        assert sorted(names) == sorted(p.name for p in tmp_path.iterdir())


def _types(fields) -> list[int]:
    return fields["tokenizer.ggml.token_type"]


class TestHostile:
    @pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "no_vocab"])
    def test_other_tokenizers_are_named(self, kind, tmp_path):
        with pytest.raises(UnsupportedError, match=kind):
            tokenizer_gguf.export(spm_fields(model=kind), tmp_path)

    @pytest.mark.parametrize(
        "changes, says",
        [
            ({"model": None}, "no tokenizer"),
            ({"model": 3}, "must hold text"),
            ({"tokens": []}, "empty"),
            ({"tokens": None}, "empty"),
            ({"tokens": "abc"}, "must be an array"),
            ({"tokens": ["a", 3]}, "must hold text"),
            ({"tokens": ["a", b"\xff\xfe"]}, "not UTF-8"),
            ({"tokens": ["a", "\udcff"]}, "not UTF-8"),
            ({"tokens": ["a", "a", "b"]}, "3 tokens but only 2"),
            ({"tokens": ["x" * 100_000]}, "100000 characters"),
            ({"token_type": [1, 2]}, "2 entries for"),
            ({"token_type": {}}, "must be an array"),
            ({"scores": [0.5]}, "1 entries for"),
            ({"bos_token_id": 10**9}, "outside the"),
            ({"bos_token_id": -1}, "outside the"),
            ({"eos_token_id": "2"}, "outside the"),
            ({"eos_token_id": True}, "outside the"),
            ({"add_bos_token": "yes"}, "true or false"),
            ({"tokenizer__chat_template": 7}, "must hold text"),
            ({"tokenizer__chat_template": "x" * (2 << 20)}, "characters"),
        ],
    )
    def test_spm_metadata(self, changes, says, tmp_path):
        with pytest.raises(CheckpointError, match=says):
            tokenizer_gguf.export(spm_fields(**changes), tmp_path)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        "changes, says",
        [
            ({"merges": None}, "missing"),
            ({"merges": [b"\xff"]}, "not UTF-8"),
            ({"merges": ["nospace"]}, "merge 0 of 1"),
            ({"merges": ["h nosuch"]}, "'nosuch' is not a token"),
            ({"merges": ["h z"]}, "'hz' is not a token"),
            ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id is missing"),
        ],
    )
    def test_bpe_metadata(self, changes, says, tmp_path):
        with pytest.raises(CheckpointError, match=says):
            tokenizer_gguf.export(bpe_fields(**changes), tmp_path)

    @pytest.mark.parametrize("bad", [float("nan"), "x", None])
    def test_scores_must_be_numbers(self, bad, tmp_path):
        scores = list(spm_fields()["tokenizer.ggml.scores"])
        scores[5] = bad
        with pytest.raises(CheckpointError, match="numbers"):
            tokenizer_gguf.export(spm_fields(scores=scores), tmp_path)

    def test_types_must_be_integers(self, tmp_path):
        types = [*_types(spm_fields())[:-1], 1.5]
        with pytest.raises(CheckpointError, match="integers"):
            tokenizer_gguf.export(spm_fields(token_type=types), tmp_path)

    def test_limits(self, tmp_path, monkeypatch):
        monkeypatch.setattr(gguf_vocabulary, "MAX_TOKENS", 100)
        with pytest.raises(CheckpointError, match="at most 100"):
            tokenizer_gguf.export(spm_fields(), tmp_path)
        monkeypatch.undo()
        monkeypatch.setattr(gguf_vocabulary, "MAX_TEXT_CHARS", 100)
        with pytest.raises(CheckpointError, match="characters of text"):
            tokenizer_gguf.export(spm_fields(), tmp_path)

    def test_long_pieces_stay_cheap(self):
        tokens = ["a" * n for n in range(1, 600)]
        merges = tokenizer_gguf.spm_merges(tokens, [NORMAL] * len(tokens), [0.0] * len(tokens))
        assert sum(1 for _ in merges) == sum(range(599))

    def test_control_and_byte_tokens_are_not_merged_into(self):
        tokens, types = ["<", "s", ">", "<s", "<s>", "a"], [NORMAL] * 4 + [CONTROL, BYTE]
        merges = list(tokenizer_gguf.spm_merges(tokens, types, [0.0] * 6))
        assert merges == [["<", "s"]]
        types[4] = USER_DEFINED
        assert list(tokenizer_gguf.spm_merges(tokens, types, [0.0] * 6)) == merges

    def test_unwritable_folder(self, tmp_path):
        with pytest.raises(StorageError):
            tokenizer_gguf.export(bpe_fields(), tmp_path / "missing")
