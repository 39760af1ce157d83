"""Guessed tokens: the same result bit for bit, fewer steps where text repeats."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from byte_model import VOCAB, write_model

from edge_infer import LLM, SamplingParams
from edge_infer.checkpoint.convert import convert
from edge_infer.engine.speculative import LONGEST, LONGEST_PAUSE, SHORTEST, NgramProposer
from edge_infer.errors import ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("speculative")
    return convert(write_model(root / "hf"), root / "packed", bits=4)


@pytest.fixture(scope="module")
def plain(model) -> LLM:
    return LLM(model, threads=2)


@pytest.fixture
def llm(model) -> LLM:
    return LLM(model, threads=2, speculative="ngram")


def complete(llm: LLM, prompts: list[list[int]], **params: object) -> list[tuple]:
    outputs = llm.generate(prompts, SamplingParams(**params))
    return [
        (c.token_ids, c.text, c.logprobs, c.finish_reason, c.stop_reason)
        for o in outputs
        for c in o.outputs
    ]


# Few tokens are likely, so that text repeats itself.
FEW = {t: 30.0 for t in range(40, 44)}
PROMPT = [40, 41, 42, 43, 40, 41, 42, 40, 43, 41] * 6


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0, "logit_bias": FEW},
        {"temperature": 3.0, "seed": 3, "logit_bias": FEW},
        {"temperature": 4.0, "seed": 3, "logit_bias": FEW, "n": 3},
        {"temperature": 4.0, "seed": 2, "logit_bias": FEW, "repetition_penalty": 1.1},
        {"temperature": 4.0, "seed": 1, "logit_bias": FEW, "frequency_penalty": 0.2, "top_k": 3},
        {
            "temperature": 4.0,
            "seed": 5,
            "logit_bias": FEW,
            "stop_token_ids": [43],
            "min_tokens": 40,
        },
        {"temperature": 3.0, "seed": 3, "logit_bias": FEW, "stop": ["JJJJJJ"]},
    ],
)
def test_not_one_bit_changes(llm, plain, params) -> None:
    params = {"max_tokens": 90, "ignore_eos": True, "logprobs": 4, **params}
    prompts = [PROMPT, [7, 8, 9], [*PROMPT[5:], 1]]
    got = complete(llm, prompts, **params)
    assert got == complete(plain, prompts, **params)
    assert llm.runner.blocks.used_blocks() == 0
    if "logit_bias" in params:
        assert llm.counters.accepted_tokens > 0
    if "stop" in params or "stop_token_ids" in params:
        assert "stop" in {c[3] for c in got}
    if "seed" in params:
        assert llm.counters.guessed_tokens > llm.counters.accepted_tokens
    assert llm.counters.generated_tokens == sum(len(c[0]) for c in got)


def test_repeating_text_takes_fewer_steps(llm, plain) -> None:
    params = {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "logit_bias": {50: 100.0}}
    steps = {}
    for name, engine in (("plain", plain), ("ngram", llm)):
        before = engine.counters.steps
        assert complete(engine, [[1, 2, 3]], **params)[0][0] == [50] * 200
        steps[name] = engine.counters.steps - before
    assert steps["plain"] == 200 and steps["ngram"] < 200 / 5


def test_a_small_pool_and_preemption(model, plain) -> None:
    per_block = plain.runner.plan.bytes // sum(plain.runner.plan.blocks)
    small = LLM(
        model,
        threads=2,
        speculative="ngram",
        kv_cache_memory_bytes=per_block * 30,
        max_num_seqs=4,
        chunk_size=64,
    )
    params = {"temperature": 0.7, "seed": 3, "max_tokens": 120, "ignore_eos": True, "logprobs": 1}
    params["logit_bias"] = FEW
    prompts = [PROMPT[i:] * 2 for i in range(4)]
    assert complete(small, prompts, **params) == complete(plain, prompts, **params)
    assert small.counters.preemptions > 0 and small.counters.accepted_tokens > 0
    assert small.runner.blocks.used_blocks() == 0


def test_with_a_constraint(llm, plain) -> None:
    import numpy as np

    class Three:
        """Only three tokens; ends after 60."""

        def __init__(self) -> None:
            self.count = 0

        def mask(self) -> np.ndarray:
            words = np.zeros(-(-VOCAB // 32), np.uint32)
            words[1] = 0b111
            return words

        def allows(self, token: int) -> bool:
            return token in (32, 33, 34)

        def accept(self, token: int) -> None:
            assert token in (32, 33, 34)
            self.count += 1

        def finished(self) -> bool:
            return self.count == 60

    def run(engine: LLM) -> list[int]:
        params = SamplingParams(temperature=0.3, seed=2, max_tokens=100)
        (request,) = engine.new_requests([32, 33, 34] * 10, params, Three)
        engine.scheduler.add(request)
        while engine.scheduler.busy:
            engine.scheduler.step()
        assert request.finish_reason == "stop" and len(request.generated) == 60
        return request.generated

    assert run(llm) == run(plain)
    assert llm.counters.accepted_tokens > 0


def test_unknown_kinds_are_refused(model) -> None:
    with pytest.raises(ConfigError, match="speculative = 'draft'"):
        LLM(model, speculative="draft")


def test_proposals() -> None:
    p = NgramProposer()
    assert p.propose([1, 2, 3], 8) == []
    assert p.propose([1, 2, 3, 4, 5, 1, 2, 3], 8) == [4, 5]
    p.learn(2, 2)
    assert p.propose([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 8) == [1, 2, 3, 4]
    assert p.propose([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 1) == [1]
    assert p.propose([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 0) == []
    p.learn(4, 4)
    p.learn(8, 8)
    loop = NgramProposer()
    loop.learn(2, 2)
    loop.learn(4, 4)
    assert loop.propose([9, 7, 8, 9, 7, 8, 9, 7], 8) == [8, 9, 7, 8, 9, 7, 8, 9]


def test_wrong_guesses_get_rare() -> None:
    """Text whose every run of three has occurred and went on otherwise."""
    p, rng = NgramProposer(), random.Random(0)
    tokens = [rng.randrange(4) for _ in range(300)]
    attempts = 0
    for _ in range(2000):
        guess = p.propose(tokens, LONGEST)
        tokens.append(rng.randrange(4) if not guess else (guess[0] + 1) % 4)
        if guess:
            assert len(guess) == SHORTEST
            attempts += 1
            p.learn(len(guess), 0)
    assert 2000 / (LONGEST_PAUSE + 1) - 1 <= attempts < 2000 / LONGEST_PAUSE + 10
