"""Log-probabilities of the prompt: against a runner that gives every row's logits, and whatever the
chunks, the company and the cache are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_infer import LLM, SamplingParams
from edge_infer.engine import runner as runner_module
from edge_infer.engine.runner import ModelRunner, Piece, RunnerOptions
from edge_infer.errors import CapacityError, ConfigError

TEXT = "A prompt that is scored, long enough for several blocks of the pool. " * 3
SCORED = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=3)


def values(output) -> list[float]:
    assert output.prompt_logprobs[0] is None
    return [e.chosen.logprob for e in output.prompt_logprobs[1:]]


@pytest.fixture(scope="module")
def reference(model, llm) -> np.ndarray:
    """log-softmax f64 [tokens, vocab] of TEXT."""
    runner = ModelRunner(model, RunnerOptions(all_outputs=True, threads=1))
    ids = llm.tokenizer.encode(TEXT)
    blocks = runner.blocks.new_sequence()
    assert runner.blocks.reserve(blocks, len(ids))
    runner.run([Piece(ids, 0, len(ids), len(ids), blocks, True, True)])
    logits = np.array(runner.output("logits"), np.float64)
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def test_they_are_those_of_the_logits(llm, reference) -> None:
    (output,) = llm.generate(TEXT, SCORED)
    ids = output.prompt_token_ids
    assert len(output.prompt_logprobs) == len(ids)
    want = [reference[i, t] for i, t in enumerate(ids[1:])]
    np.testing.assert_allclose(values(output), want, atol=2e-5)
    for i, entry in enumerate(output.prompt_logprobs[1:]):
        assert entry.chosen.token_id == ids[i + 1]
        best = np.sort(reference[i])[::-1][:3]
        np.testing.assert_allclose([t.logprob for t in entry.top], best, atol=2e-5)


def test_nothing_else_changes_them_and_they_change_nothing_else(model, llm, monkeypatch) -> None:
    (want,) = llm.generate(TEXT, SCORED)
    (plain,) = llm.generate(TEXT, SamplingParams(temperature=0, max_tokens=6))
    assert plain.prompt_logprobs is None
    assert plain.cached_tokens > 0  # the pool has them, and the scored prompt is computed anyway
    assert want.outputs[0].token_ids == plain.outputs[0].token_ids
    (again, _, short) = llm.generate([TEXT, "company", "x"], SCORED)
    assert again.cached_tokens == 0
    assert again == replaced(want, again)
    assert short.prompt_logprobs == [None]
    monkeypatch.setattr(runner_module, "SCORED_BYTES", 4 * llm.vocab_size * 7)
    for options in ({"chunk_size": 5}, {"chunk_size": 64, "enable_prefix_caching": False}):
        other = LLM(model, threads=1, **options)
        assert other.runner.scored_rows == 7
        (output,) = other.generate(TEXT, SCORED)
        assert output == replaced(want, output)


def replaced(want, output):
    """``want`` with the identity of another run."""
    return replace(
        want,
        request_id=output.request_id,
        metrics=output.metrics,
        cached_tokens=output.cached_tokens,
    )


def test_preemption_keeps_them(model, llm) -> None:
    prompts = [TEXT + tail for tail in ("", "b", "c", "d")]
    params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True, prompt_logprobs=0)
    want = [values(o) for o in llm.generate(prompts, params)]
    per_block = llm.runner.plan.bytes // sum(llm.runner.plan.blocks)
    small = LLM(model, kv_cache_memory_bytes=per_block * 30, max_num_seqs=4, chunk_size=64)
    outputs = small.generate(prompts, params)
    assert sum(o.metrics.preemptions for o in outputs) > 0
    assert [values(o) for o in outputs] == want
    assert small.runner.blocks.used_blocks() == 0


def test_several_choices_share_them(llm) -> None:
    params = SamplingParams(n=3, temperature=1, seed=5, max_tokens=4, prompt_logprobs=1)
    (output,) = llm.generate(TEXT, params)
    assert len(output.outputs) == 3
    assert values(output) == values(llm.generate(TEXT, SCORED)[0])


def test_a_prompt_alone(llm) -> None:
    alone = SamplingParams(max_tokens=0, prompt_logprobs=3)
    (output,) = llm.generate(TEXT, alone)
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([], "length")
    assert values(output) == values(llm.generate(TEXT, SCORED)[0])
    full = [5] * llm.max_model_len
    assert len(values(llm.generate([full], alone)[0])) == llm.max_model_len - 1
    with pytest.raises(CapacityError):
        llm.generate([[*full, 5]], alone)
    (nothing,) = llm.generate(TEXT, SamplingParams(max_tokens=0))
    assert nothing.outputs[0].finish_reason == "length"
    assert "".join(llm.stream("x", SamplingParams(max_tokens=0))) == ""
    assert llm.runner.blocks.used_blocks() == 0


@pytest.mark.parametrize("value", [-1, 1001, True, 1.0])
def test_bad_numbers_are_refused(value) -> None:
    with pytest.raises(ConfigError, match="prompt_logprobs"):
        SamplingParams(prompt_logprobs=value)
