"""Fidelity: definitions by hand, then whole runs on a tiny model, a packed twin and a fake peer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import byte_model
import numpy as np
import pytest

from edge_infer.checkpoint.convert import convert
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import ConfigError, ExecutionError, UnsupportedError
from edge_infer.harness import divergence
from edge_infer.harness.divergence import Scores, log_softmax
from edge_infer.harness.fidelity import FidelityOptions, fidelity, score, summarize
from edge_infer.harness.logits_file import LogitsFile, LogitsWriter
from edge_infer.harness.predictions import FilePredictions, chunk_text, greedy
from edge_infer.harness.schema import Artifact

TEXT = "The quick brown fox jumps over the lazy dog. " * 12


def test_divergence_by_hand() -> None:
    p = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32))
    q = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], np.float32))
    scores = Scores()
    scores.add(p[0], q[0], 0)
    scores.add(p[1], q[1], 2)
    assert scores.kl == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-6)
    assert scores.nll == pytest.approx([math.log(4), math.log(10)], rel=1e-6)
    assert scores.reference_nll == pytest.approx([math.log(2), math.log(10)], rel=1e-6)
    assert scores.same_top == [False, True]
    found = summarize(scores, "r", "prefill")
    assert found.kl_median == pytest.approx(0.125 * math.log(2))
    assert found.perplexity == pytest.approx(math.sqrt(40))
    assert found.log_perplexity_ratio == pytest.approx(math.log(2) / 2)
    # the error of the mean of x and 0 is x / 2 over the square root of n - 1
    assert found.kl_mean_error == pytest.approx(0.125 * math.log(2))
    assert found.top1_agreement == 0.5


def test_tokens_below_the_floor_are_left_out() -> None:
    p = log_softmax(np.array([0.0, -20.0], np.float32))
    q = log_softmax(np.array([0.0, 20.0], np.float32))
    scores = Scores()
    scores.add(p, q, 0)
    assert scores.kl[0] == pytest.approx(20.0)


def test_log_softmax() -> None:
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal(1000) * 30).astype(np.float32)
    wide = logits.astype(np.float64)
    assert np.abs(log_softmax(logits) - (wide - np.logaddexp.reduce(wide))).max() < 1e-4
    logits[3] = np.nan
    with pytest.raises(ExecutionError, match="not finite"):
        log_softmax(logits)


def test_percentiles_are_linear() -> None:
    assert divergence.quantile([0.0, 1.0, 2.0, 10.0], 0.99) == pytest.approx(9.76)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path, Path]:
    """A plain folder, its packed twin, and a text."""
    folder = tmp_path_factory.mktemp("models")
    plain = byte_model.write_model(folder / "plain")
    packed = convert(plain, folder / "packed", bits=4)
    text = folder / "text.txt"
    text.write_text(TEXT)
    return plain, packed, text


def test_a_model_agrees_with_itself(models) -> None:
    _, packed, text = models
    options = FidelityOptions(str(packed), str(packed), text, context=64, chunks=3, prompts=2)
    (arm,) = fidelity(options).arms
    found = arm.fidelity
    assert found.positions == 3 * 31
    assert found.kl_max == 0.0
    assert found.top1_agreement == 1.0
    assert found.perplexity == found.reference_perplexity
    assert [case.first_difference for case in found.greedy] == [None, None]
    assert [case.tokens for case in found.greedy] == [64, 64]


def test_a_plain_reference_is_not_converted(models) -> None:
    """While the model is what the engine would run: converted, where it is plain."""
    plain, _, text = models
    options = FidelityOptions(str(plain), str(plain), text, context=64, chunks=1, prompts=0)
    assert fidelity(options).arms[0].fidelity.kl_mean > 0.001


def test_greedy_is_what_the_engine_generates(models) -> None:
    from edge_infer import LLM, SamplingParams

    _, packed, _ = models
    llm = LLM(packed, max_model_len=128, max_num_seqs=3)
    prompts = [llm.tokenizer.encode(text) for text in ("One", "Two three", "Something longer.")]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    want = [o.outputs[0].token_ids for o in llm.generate(prompts, params)]
    assert greedy(packed, prompts, 20) == want


def expected_scores(plain: Path, packed: Path, context: int, chunks: int) -> Scores:
    """The same by another way: whole chunks at once, every row, KL over the whole vocabulary."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
    import tiny

    tokens = chunk_text(Tokenizer.from_folder(plain), TEXT, context, chunks)
    scores = Scores()
    rows = []
    for folder in (plain, packed):
        runner = tiny.runner(folder, max_model_len=context)
        rows.append([tiny.logits(runner, [t.tolist()])[0] for t in tokens])
    for ids, a, b in zip(tokens, *rows, strict=True):
        at = slice(context // 2, context - 1)
        p, q = (np.stack([log_softmax(row) for row in x[at]]).astype(float) for x in (a, b))
        following = ids[context // 2 + 1 :]
        scores.kl += (np.exp(p) * (p - q)).sum(axis=1).tolist()
        scores.nll += [-q[i, t] for i, t in enumerate(following)]
        scores.reference_nll += [-p[i, t] for i, t in enumerate(following)]
        scores.same_top += (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
    return scores


def test_a_packed_model_against_its_source(models, tmp_path) -> None:
    plain, packed, text = models
    saved = tmp_path / "reference.logits"
    options = FidelityOptions(
        str(packed), str(plain), text, context=64, chunks=4, prompts=3, save_logits=saved
    )
    artifact = fidelity(options)
    found = artifact.arms[0].fidelity
    want = summarize(expected_scores(plain, packed, 64, 4), "plain", "prefill")
    assert found.kl_mean > 0.001
    for name in ("kl_mean", "kl_median", "kl_p99", "perplexity", "reference_perplexity"):
        assert getattr(found, name) == pytest.approx(getattr(want, name), rel=1e-3), name
    assert found.top1_agreement == want.top1_agreement
    assert artifact.arms[0].metric("kl.mean").median == found.kl_mean
    assert 4 < artifact.arms[0].metric("bits_per_weight").median < 5
    assert any(case.first_difference is not None for case in found.greedy)
    again = Artifact.model_validate_json(artifact.model_dump_json())
    assert again.arms[0].fidelity == found

    # the saved reference stands for the model, to the precision of its 16 bits
    options = FidelityOptions(str(packed), str(saved), text, context=64, chunks=4, prompts=0)
    from_file = fidelity(options).arms[0].fidelity
    assert from_file.kl_mean == pytest.approx(found.kl_mean, rel=2e-3)
    assert from_file.top1_agreement == pytest.approx(found.top1_agreement, abs=0.02)
    # and as a peer it agrees with the model that it came from
    options = FidelityOptions(
        str(packed), str(plain), text, context=64, chunks=4, prompts=0, peer_logits=(saved,)
    )
    peer = fidelity(options).arms[1]
    assert peer.name == "reference.logits"
    assert abs(peer.fidelity.kl_mean) < 1e-6
    assert peer.fidelity.numerics == "file"


def test_decode_numerics_are_near_but_not_the_same(models) -> None:
    plain, packed, text = models
    results = [
        fidelity(
            FidelityOptions(
                str(packed), str(plain), text, context=64, chunks=2, prompts=0, numerics=numerics
            )
        )
        .arms[0]
        .fidelity
        for numerics in ("prefill", "decode")
    ]
    assert results[1].numerics == "decode"
    assert results[1].kl_mean == pytest.approx(results[0].kl_mean, rel=0.5)


def test_llama_cpp_as_a_peer(models, tmp_path, monkeypatch) -> None:
    """A program that stands for llama-perplexity: it checks what it is asked and writes a file."""
    plain, packed, text = models
    saved = tmp_path / "made.logits"
    options = FidelityOptions(
        str(packed), str(plain), text, context=64, chunks=2, prompts=0, save_logits=saved
    )
    fidelity(options)
    bench = tmp_path / "llama-bench"
    bench.write_text("#!/bin/sh\n")
    bench.chmod(0o755)
    monkeypatch.setenv("EDGE_INFER_LLAMA_BENCH", str(bench))
    gguf = tmp_path / "twin.gguf"
    from_here = Path(__file__).parents[1] / "checkpoint"
    monkeypatch.syspath_prepend(str(from_here))
    import model_files

    model_files.write_gguf(gguf, "qwen3", ["Q4_0"])
    options = FidelityOptions(
        str(packed), str(plain), text, context=64, chunks=2, prompts=0, peer_models=(gguf,)
    )
    with pytest.raises(UnsupportedError, match="llama-perplexity"):
        fidelity(options)
    program = tmp_path / "llama-perplexity"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nfor last; do :; done\ncp {saved} "$last"\n'
    )
    program.chmod(0o755)
    artifact = fidelity(options)
    peer = artifact.arms[1]
    assert peer.name == "llama.cpp twin.gguf"
    assert abs(peer.fidelity.kl_mean) < 1e-6
    assert peer.metric("bits_per_weight").median > 4
    asked = (tmp_path / "asked").read_text()
    assert f"-m {gguf} -f {text}" in asked
    assert "-c 64 -b 64 --chunks 2 --kl-divergence-base" in asked
    assert str(tmp_path) not in json.dumps(artifact.model_dump())


def test_a_file_is_taken_as_it_is(tmp_path) -> None:
    """The format lifts what is improbable; that must not count against what is probable."""
    vocab, tokens = 1 << 17, np.zeros((1, 16), np.int32)
    logits = np.full((7, vocab), -30.0, np.float32)
    logits[:, 0] = 0.0
    writer = LogitsWriter(tmp_path / "f", tokens, vocab)
    writer.add(logits)
    writer.close()
    file = FilePredictions(tmp_path / "f")
    (scores,) = score(file, [file], tokens, None)
    # normalized again, the 131071 lifted tokens of e^-16 each would take 1.5% of the probability
    assert scores.nll == pytest.approx([0.0] * 7, abs=1e-4)


def test_what_does_not_go_together(models, tmp_path) -> None:
    plain, packed, text = models
    saved = tmp_path / "f.logits"
    base = {"model": str(packed), "reference": str(plain), "text": text, "prompts": 0}
    fidelity(FidelityOptions(**base, context=64, chunks=2, save_logits=saved))
    other = tmp_path / "other.txt"
    other.write_text(TEXT.replace("fox", "cat"))
    with pytest.raises(ConfigError, match="made of other tokens: token 16 is"):
        fidelity(
            FidelityOptions(**{**base, "text": other}, context=64, peer_logits=(saved,), chunks=2)
        )
    with pytest.raises(ConfigError, match="2 chunks of 64 tokens; 3 of 64"):
        fidelity(FidelityOptions(**base, context=64, peer_logits=(saved,), chunks=3))
    with pytest.raises(ConfigError, match=r"the text has 540 tokens, 8 chunks"):
        fidelity(FidelityOptions(**base, context=64, chunks=9))
    with pytest.raises(ConfigError, match="16 or more"):
        fidelity(FidelityOptions(**base, context=8))
    with pytest.raises(ConfigError, match="need a reference model"):
        fidelity(FidelityOptions(**{**base, "prompts": 1, "reference": str(saved)}, context=64))
    with pytest.raises(ConfigError, match="prefill or decode"):
        fidelity(FidelityOptions(**base, context=64, numerics="both"))
    with pytest.raises(ConfigError, match="0 to 12"):
        FidelityOptions(**{**base, "prompts": 13})
    assert LogitsFile(saved).chunks == 2
