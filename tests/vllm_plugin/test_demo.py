"""The demo model in vLLM on the native path: its tokens, and where its weights lie.

Near-ties as in tests/models/test_demo_agreement.py: a disagreement must lie where the two best
logits are closer than 4 times the RMS difference of the two engines.
"""

from __future__ import annotations

import re
from pathlib import Path

import engines
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_demo_agreement import PROMPTS  # noqa: E402

from edge_infer import LLM, _native  # noqa: E402

LENGTH = 40


@pytest.fixture(scope="module")
def prompts(demo_model) -> list[list[int]]:
    tokenizer = LLM(demo_model, max_model_len=64).tokenizer
    return [tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def llm(demo_model):
    with engines.engine(demo_model) as running:
        yield running


def test_greedy_tokens_are_those_of_the_native_engine(llm, demo_model, prompts):
    outputs = engines.generate(llm, prompts, LENGTH, logprobs=20)
    import tiny

    runner = tiny.runner(demo_model, max_model_len=128)
    errors, gaps, same = [], [], 0
    for prompt, output in zip(prompts, outputs, strict=True):
        made = list(output.outputs[0].token_ids)
        logits = tiny.logits(runner, [[*prompt, *made]], prompts=[len(prompt)])[0]
        logits = logits[len(prompt) - 1 : -1].astype(np.float64)
        native = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for position, (token, listed) in enumerate(
            zip(made, output.outputs[0].logprobs, strict=True)
        ):
            # every position continues vLLM's own tokens, so each is one comparison
            errors += [entry.logprob - native[position, i] for i, entry in listed.items()]
            best = int(native[position].argmax())
            if best == token:
                same += 1
            else:
                gaps.append(native[position, best] - native[position, token])
    rms = float(np.sqrt(np.mean(np.square(errors))))
    total = same + len(gaps)
    print(f"rms {rms:.4f}, {same} of {total} tokens agree, widest gap {max(gaps, default=0):.3f}")
    assert rms < 0.35
    assert same >= 0.95 * total
    assert all(gap < 4 * rms for gap in gaps)


def mappings() -> list[tuple[int, int, str, dict[str, int]]]:
    """(begin, end, path, kilobytes by name) of every mapping of this process."""
    out: list[tuple[int, int, str, dict[str, int]]] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)", line)
        if head:
            out.append((int(head[1], 16), int(head[2], 16), head[3], {}))
        elif (value := re.match(r"(\w+): +(\d+) kB", line)) is not None:
            out[-1][3][value[1]] = int(value[2])
    return out


def test_anonymous_memory_holds_no_weights(llm, demo_model):
    parts = [
        tensor
        for module in engines.model_of(llm).modules()
        for segment in getattr(module, "edge_infer_segments", [])
        for tensor in (segment.codes, segment.scales, segment.minimums)
        if tensor is not None
    ]
    size = (demo_model / "model.safetensors").stat().st_size
    assert sum(t.nbytes for t in parts) > 0.95 * size  # all that matters is here
    maps = mappings()
    for tensor in parts:
        _, end, path, kilobytes = next(m for m in maps if m[0] <= tensor.data_ptr() < m[1])
        assert Path(path).resolve() == (demo_model / "model.safetensors").resolve()
        assert tensor.data_ptr() + tensor.nbytes <= end
        assert kilobytes["Anonymous"] == 0 and kilobytes["Private_Dirty"] == 0
    # and no parameter repeats one of them
    largest = max(p.nbytes for p in engines.model_of(llm).parameters())
    assert largest < 1 << 20


def test_runs_on_the_threads_of_torch(llm):
    library, threads = _native.linear_threads()
    assert Path(library).name.startswith(("libgomp", "libiomp", "libomp"))
    assert threads == torch.get_num_threads()


def test_one_copy_for_embedding_and_head(llm):
    model = engines.model_of(llm)
    assert model.lm_head.__dict__["edge_infer_embedding"] is model.model.embed_tokens
    assert not list(model.lm_head.parameters())


def test_a_token_outside_of_the_vocabulary(llm):
    embed = engines.model_of(llm).model.embed_tokens
    with pytest.raises(Exception, match="is outside 0"):
        embed(torch.tensor([embed.org_vocab_size]))
