"""The runtime tokenizer: encoding policy, decoding by bytes, what folders may get wrong."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizer_samples import bpe_fields, spm_fields

from edge_infer.checkpoint import tokenizer_gguf
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import CheckpointError, ConfigError, UnsupportedError

SAMPLES = {"spm": spm_fields, "bpe": bpe_fields}


@pytest.fixture(params=list(SAMPLES))
def folder(request, tmp_path):
    tokenizer_gguf.export(SAMPLES[request.param](), tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer(folder) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("text", ["hello world", "é😀日本", "a b\n", "", " hello", "\u0000\t"])
def test_decode_gives_the_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["hello world", "é😀日本 a", "a <tool> b"])
def test_decode_agrees_with_the_library(tokenizer, text):
    ids = tokenizer.encode(text)
    backend = tokenizer.backend._library
    for skip in (True, False):
        assert tokenizer.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)


def test_special_text_is_special_unless_asked_otherwise(tokenizer):
    special = min(tokenizer.special_ids)
    text = tokenizer.decode([special], skip_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=False) == [special]
    plain = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert special not in plain
    assert tokenizer.decode(plain) == text
    assert tokenizer.encode(text, add_special_tokens=False) == [special]  # the mode is not kept


def test_bos_policy(tmp_path):
    for name, fields, first in (
        ("spm", spm_fields(), 1),
        ("spm-off", spm_fields(add_bos_token=False), None),
        ("bpe", bpe_fields(), None),
        ("bpe-on", bpe_fields(add_bos_token=True), bpe_fields()["tokenizer.ggml.bos_token_id"]),
    ):
        (tmp_path / name).mkdir()
        tokenizer_gguf.export(fields, tmp_path / name)
        tokenizer = Tokenizer.from_folder(tmp_path / name)
        ids = tokenizer.encode("hello")
        plain = tokenizer.encode("hello", add_special_tokens=False)
        assert ids == ([first, *plain] if first is not None else plain)


def test_end_tokens_come_from_generation_config_and_tokenizer(tmp_path):
    tokenizer_gguf.export(spm_fields(), tmp_path)
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == [2]
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == [7, 2]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == [5, 6, 2]
    (tmp_path / "generation_config.json").unlink()
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.eos_token_ids, tokenizer.bos_token_id) == ([7, 2], 1)


def test_ids_outside_the_vocabulary_have_no_text(tokenizer):
    assert tokenizer.decode([tokenizer.vocab_size, 10**9, -1]) == ""


def test_vocab_size_covers_added_tokens(tokenizer):
    fields = json.loads((tokenizer.path / "tokenizer.json").read_text())
    assert tokenizer.vocab_size == len(fields["model"]["vocab"])


def test_a_damaged_file_is_named_at_first_use(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    tokenizer = Tokenizer.from_folder(tmp_path)
    with pytest.raises(CheckpointError):
        tokenizer.encode("a")


def test_opening_a_folder_does_not_import_the_library(folder):
    code = (
        "import sys; from edge_infer.engine.tokenizer import Tokenizer;"
        f" Tokenizer.from_folder({str(folder)!r}); assert 'tokenizers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', "null"])
def test_damaged_tokenizer_json(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path).encode("a")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_configuration(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        Tokenizer.from_folder(folder)


def test_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(UnsupportedError, match="SentencePiece"):
        Tokenizer.from_folder(tmp_path)


def test_unknown_decoder_is_refused(folder):
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(data))
    with pytest.raises(UnsupportedError, match="WordPiece"):
        Tokenizer.from_folder(folder).decode([3])


@pytest.mark.parametrize("parse_special", [True, False])
def test_lone_surrogates_are_refused(tokenizer, parse_special):
    with pytest.raises(ConfigError, match="surrogate"):
        tokenizer.encode("a\ud800b", parse_special=parse_special)


def test_threads_encode_each_in_their_own_mode(tokenizer) -> None:
    special = next(tokenizer.token_bytes(i, False).decode() for i in sorted(tokenizer.special_ids))
    texts = [f"say {special} {i}" for i in range(4)]
    want = {
        (t, parse): tokenizer.encode(t, add_special_tokens=False, parse_special=parse)
        for t in texts
        for parse in (True, False)
    }
    assert all(want[t, True] != want[t, False] for t in texts)

    def run(seed: int) -> int:
        order = list(want) * 40
        random.Random(seed).shuffle(order)
        return sum(
            tokenizer.encode(t, add_special_tokens=False, parse_special=parse) == want[t, parse]
            for t, parse in order
        )

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(run, range(6))) == {40 * len(want)}


def test_a_long_text_leaves_the_interpreter_to_others(tokenizer) -> None:
    text = " ".join(f"word{i} und {i * 7919}" for i in range(40_000))
    tokenizer.encode("x")
    encoding = threading.Thread(target=tokenizer.encode, args=(text,))
    encoding.start()
    ticks = 0
    while encoding.is_alive():
        time.sleep(0.0005)
        ticks += 1
    assert ticks > 20  # one or two where the library keeps the lock
