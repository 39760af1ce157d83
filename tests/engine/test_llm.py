"""The Python API on a tiny random model: batches, streams, limits, preemption, cancellation."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from byte_model import VOCAB, write_model

from edge_infer import LLM, SamplingParams
from edge_infer.checkpoint.convert import convert
from edge_infer.errors import CapacityError, ConfigError, ExecutionError, UnsupportedError


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("llm")
    return convert(write_model(root / "hf"), root / "packed", bits=4)


@pytest.fixture(scope="module")
def llm(model) -> LLM:
    return LLM(model, threads=2)


GREEDY = SamplingParams(temperature=0, max_tokens=20)
PROMPTS = ["Hello", "a much longer prompt than the first one, " * 4, "x", "12 34"]


def ids(outputs) -> list[list[int]]:
    return [o.outputs[0].token_ids for o in outputs]


def test_a_batch_equals_its_members(llm) -> None:
    for params in (GREEDY, SamplingParams(temperature=0.9, top_k=40, seed=7, max_tokens=20)):
        alone = [ids(llm.generate(p, params))[0] for p in PROMPTS]
        assert ids(llm.generate(PROMPTS, params)) == alone
    assert len({tuple(t) for t in alone}) == len(PROMPTS)


def test_chunks_and_threads_do_not_change_tokens(model, llm) -> None:
    want = ids(llm.generate(PROMPTS, GREEDY))
    for options in ({"chunk_size": 5}, {"threads": 1}, {"chunk_size": 64, "max_num_seqs": 2}):
        assert ids(LLM(model, **options).generate(PROMPTS, GREEDY)) == want


def test_weight_modes_agree(model, llm) -> None:
    want = ids(llm.generate(PROMPTS, GREEDY))
    assert ids(LLM(model, weights="resident").generate(PROMPTS, GREEDY)) == want
    for dtype in ("bf16", "int8"):
        assert ids(LLM(model, kv_cache_dtype=dtype).generate("a", GREEDY))[0]
    with pytest.raises(ConfigError):
        LLM(model, weights="floating")
    with pytest.raises(ConfigError):
        LLM(model, kv_cache_dtype="int4")


def test_preemption_changes_no_token(model, llm) -> None:
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=120, ignore_eos=True)
    prompts = [p * 3 for p in PROMPTS]
    want = ids(llm.generate(prompts, params))
    per_block = llm.runner.plan.bytes // sum(llm.runner.plan.blocks)
    small = LLM(model, kv_cache_memory_bytes=per_block * 38, max_num_seqs=4, chunk_size=64)
    outputs = small.generate(prompts, params)
    assert ids(outputs) == want
    assert sum(o.metrics.preemptions for o in outputs) > 0
    assert small.runner.blocks.used_blocks() == 0


def test_stream_gives_the_text(llm) -> None:
    params = SamplingParams(temperature=1.2, seed=11, max_tokens=80, ignore_eos=True)
    text = llm.generate("Hi", params)[0].outputs[0].text
    deltas = list(llm.stream("Hi", params))
    assert "".join(deltas) == text and len(deltas) > 5
    for d in deltas:
        d.encode()


def test_stop_strings(llm) -> None:
    params = dict(temperature=1.0, seed=2, max_tokens=100, ignore_eos=True)
    text = llm.generate("Hi", SamplingParams(**params))[0].outputs[0].text
    stop = next(text[i : i + 3] for i in range(10, 60) if text[i : i + 3].isprintable())
    first = text.index(stop)
    done = llm.generate("Hi", SamplingParams(**params, stop=stop))[0].outputs[0]
    assert done.text == text[:first]
    assert (done.finish_reason, done.stop_reason) == ("stop", stop)
    kept = SamplingParams(**params, stop=stop, include_stop_str_in_output=True)
    assert llm.generate("Hi", kept)[0].outputs[0].text == text[:first] + stop
    assert "".join(llm.stream("Hi", SamplingParams(**params, stop=stop))) == text[:first]


def test_stop_tokens_and_lengths(llm) -> None:
    free = llm.generate("Hi", GREEDY)[0].outputs[0]
    assert free.finish_reason == "length" and len(free.token_ids) == 20
    token = free.token_ids[4]
    at = free.token_ids.index(token)
    params = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[token])
    done = llm.generate("Hi", params)[0].outputs[0]
    assert done.token_ids == free.token_ids[: at + 1]
    assert (done.finish_reason, done.stop_reason) == ("stop", token)
    params = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[token], min_tokens=12)
    assert token not in llm.generate("Hi", params)[0].outputs[0].token_ids[:11]


def test_logprobs(llm) -> None:
    out = llm.generate("Hi", SamplingParams(temperature=0, max_tokens=5, logprobs=3))[0].outputs[0]
    assert out.logprobs is not None and len(out.logprobs) == 5
    for token, entry in zip(out.token_ids, out.logprobs, strict=True):
        assert entry.chosen.token_id == token == entry.top[0].token_id
        values = [t.logprob for t in entry.top]
        assert values == sorted(values, reverse=True) and len(values) == 3 and values[0] <= 0


def test_chat_uses_the_template(llm) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    prompt = llm.chat_prompt(messages)
    assert prompt["prompt"] == "<bos><turn>user:Hi<turn>"
    assert prompt["prompt_token_ids"][0] == 256 and prompt["prompt_token_ids"][-1] == 258
    assert ids(llm.chat(messages, GREEDY)) == ids(llm.generate(prompt, GREEDY))
    assert len(llm.chat([messages, messages], GREEDY)) == 2
    with pytest.raises(ConfigError):
        llm.chat([])


def test_limits_have_both_numbers(model) -> None:
    llm = LLM(model, max_model_len=64)
    with pytest.raises(CapacityError, match=r"64 tokens; the context holds 64") as e:
        llm.generate([[1] * 64])
    assert e.value.code == "context_length_exceeded"
    out = llm.generate([[1] * 60], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(out[0].outputs[0].token_ids) == 4
    for bad in (-1, 2.5, True):
        with pytest.raises(ConfigError):
            LLM(model, prefix_cache_memory_bytes=bad)
    with pytest.raises(ConfigError, match="no effect"):
        LLM(model, prefix_cache_memory_bytes=5, enable_prefix_caching=False)
    for bad in (0, -5, 10**9, 2.5, True):
        with pytest.raises(ConfigError):
            LLM(model, max_model_len=bad)
    with pytest.raises(CapacityError, match="1000 bytes"):
        LLM(model, kv_cache_memory_bytes=1000)
    pool = LLM(model, kv_cache_memory_bytes=llm.runner.plan.bytes, max_num_seqs=8)
    assert pool.runner.plan.tokens < 512
    with pytest.raises(
        CapacityError, match=f"500 tokens; the KV cache holds {pool.runner.plan.tokens}"
    ):
        pool.generate([[1] * 500])


def test_pool_memory_goes_back(model) -> None:
    llm = LLM(model, threads=1, enable_prefix_caching=False)
    pool = llm.runner.pool

    def resident() -> int:
        with open("/proc/self/pagemap", "rb") as f:
            f.seek(pool.address // 4096 * 8)
            entries = np.frombuffer(f.read(pool.bytes // 4096 * 8), np.uint64)
        return int((entries >> np.uint64(63)).sum()) * 4096

    stream = llm.stream([1] * 400, SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    next(stream)
    used = resident()
    assert used >= llm.runner.blocks.used_bytes() * 0.9
    stream.close()
    assert resident() < used * 0.2


def test_bare_tokens_load_no_tokenizer(model) -> None:
    llm = LLM(model)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
    out = llm.generate([[1, 2, 3]], params)[0].outputs[0]
    assert len(out.token_ids) == 3 and out.text == ""
    assert llm.tokenizer._loaded is None


def test_a_model_that_does_not_fit_is_refused(model, monkeypatch) -> None:
    size = (model / "model.safetensors").stat().st_size
    monkeypatch.setattr("edge_infer.engine.runner.free_memory", lambda: size - 1)
    with pytest.raises(CapacityError, match=f"{size} bytes; {size - 1} are free"):
        LLM(model)
    monkeypatch.setattr("edge_infer.engine.runner.free_memory", lambda: size + 40_000)
    llm = LLM(model, max_num_seqs=1, chunk_size=16)
    assert llm.runner.pool.bytes <= 40_000 and llm.runner.plan.tokens < llm.max_model_len
    with pytest.raises(CapacityError, match="40000 are free"):
        LLM(model, max_num_seqs=1, chunk_size=16, kv_cache_memory_bytes=10**15)


@pytest.mark.parametrize("prompt", ["", [], [VOCAB], [-1], ["a"], {"text": "a"}])
def test_bad_prompts(llm, prompt) -> None:
    bad = [prompt] if not isinstance(prompt, str) else prompt
    if prompt == "":
        bad = {"prompt_token_ids": []}
    with pytest.raises(ConfigError):
        llm.generate(bad)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_k": -2},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"presence_penalty": 3},
        {"max_tokens": -1},
        {"min_tokens": 5, "max_tokens": 4},
        {"stop": [""]},
        {"logprobs": -1},
        {"logit_bias": {-1: 2.0}},
        {"logit_bias": {5: "x"}},
        {"logit_bias": {5: 10**400}},
        {"logit_bias": {5: float("inf")}},
        {"logit_bias": None},
        {"logprobs": "x"},
        {"logprobs": 1.5},
        {"stop": 5},
        {"stop_token_ids": None},
        {"stop_token_ids": ["x"]},
        {"temperature": 10**400},
        {"temperature": True},
        {"max_tokens": True},
        {"seed": 1.5},
    ],
)
def test_bad_parameters(params) -> None:
    with pytest.raises(ConfigError):
        SamplingParams(**params)


def test_integers_of_any_size(llm) -> None:
    def tokens(**params: object) -> list[int]:
        drawn = SamplingParams(temperature=1.0, seed=1, max_tokens=8, **params)
        return llm.generate([7, 8], drawn)[0].outputs[0].token_ids

    assert tokens(top_k=10**30) == tokens(top_k=10**9) == tokens()
    for token in (VOCAB, 10**30):
        with pytest.raises(ConfigError, match=f"token {token}.* {VOCAB}"):
            tokens(logit_bias={token: 1.0})


@pytest.mark.parametrize("prompts", [None, 5, [2.5], ["a", 5], b"abc", [b"abc"]])
def test_what_is_no_prompt(llm, prompts) -> None:
    with pytest.raises(ConfigError, match="is not a prompt"):
        llm.generate(prompts)


def test_closing_a_stream_frees_everything(llm) -> None:
    stream = llm.stream("Hi", SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    next(stream)
    assert llm.runner.blocks.used_blocks() > 0
    stream.close()
    assert llm.runner.blocks.used_blocks() == 0
    assert not llm.scheduler.busy


def test_random_cancels_leave_nothing(llm) -> None:
    rng = random.Random(1)
    s = llm.scheduler
    live = []
    for i in range(300):
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        request = llm.new_requests([1 + i % 50] * rng.randint(1, 100), params)[0]
        s.add(request)
        live.append(request)
        for _ in range(rng.randint(0, 2)):
            s.step()
        if rng.random() < 0.8:
            victim = live.pop(rng.randrange(len(live)))
            before = list(victim.tokens)
            s.abort(victim)
            s.step() if s.busy else None
            assert victim.tokens == before and victim.finished
    for r in live:
        s.abort(r)
    assert not s.busy and llm.runner.blocks.used_blocks() == 0


def test_nan_weights_are_found(tmp_path) -> None:
    folder = write_model(tmp_path / "nan", nan=True)
    with pytest.raises(ExecutionError, match=r"NaN|finite"):
        LLM(folder, threads=1).generate("Hi", GREEDY)


def test_a_request_that_fails_leaves_the_others_alone(llm) -> None:
    want = ids(llm.generate("Hello", GREEDY))[0]
    nothing = {i: float("-inf") for i in range(VOCAB)}
    bad = SamplingParams(temperature=0, max_tokens=20, logit_bias=nothing)
    requests = [llm.new_requests("Hello", p)[0] for p in (bad, GREEDY, bad)]
    for r in requests:
        llm.scheduler.add(r)
    while llm.scheduler.busy:
        llm.scheduler.step()
    assert [r.finish_reason for r in requests] == ["error", "length", "error"]
    assert requests[1].generated == want
    assert llm.runner.blocks.used_blocks() == 0
    with pytest.raises(ExecutionError):
        llm.generate(["Hello", "x"], [GREEDY, bad])
    with pytest.raises(ExecutionError):
        list(llm.stream("Hello", bad))


def test_unknown_architecture(tmp_path) -> None:
    folder = write_model(tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["MysteryForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="MysteryForCausalLM"):
        LLM(folder)


def test_calls_beside_a_stream_take_no_text_from_it(llm) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    alone = "".join(llm.stream([65, 66, 67], params))
    stream = llm.stream([65, 66, 67], params)
    text = next(stream)
    llm.generate([70, 71], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    assert text + "".join(stream) == alone
    stream = llm.stream([65, 66, 67], params)
    text = next(stream)
    llm.generate([70, 71], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    assert text + "".join(stream) == alone


def test_threads_get_what_they_get_alone(llm) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [[10 + i, 20 + i] for i in range(4)]
    alone = [llm.generate(p, params)[0].outputs[0].token_ids for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            got = list(pool.map(lambda p: llm.generate(p, params)[0].outputs[0].token_ids, prompts))
            assert got == alone


def test_a_path_that_is_not_utf8_has_a_name(model, tmp_path) -> None:
    link = tmp_path / "m\udcff"
    link.symlink_to(model)
    with pytest.raises(UnsupportedError, match="not UTF-8"):
        LLM(link)
