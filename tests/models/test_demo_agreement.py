"""The demo model against transformers on the same dequantized weights, at every ISA level.

A near-tie is a position where the reference's two best logits lie closer than 4 times the RMS logit
error measured over all positions. Disagreements must be near-ties, and rare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tiny

from edge_infer import LLM, SamplingParams, _native

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROMPTS = [
    "The lighthouse stood on a rock at the end of the harbour, and every evening",
    "Water boils at one hundred degrees at sea level, but on a high mountain",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "In the autumn of 1887 a young clerk in a small town on the river",
    "Ingredients: two eggs, a cup of flour, a pinch of salt. First,",
    "Die Bibliothek öffnet um neun Uhr, aber an Feiertagen",
    "The three laws of thermodynamics can be summed up as follows: first,",
    "Q: What is the capital of Australia?\nA: Canberra.\nQ: What is the capital of Japan?\nA:",
]
LENGTH = 64


def reference_model(folder):
    """transformers' Gemma 3 in f32 with the checkpoint's weights dequantized."""
    config = transformers.Gemma3TextConfig(**tiny.plain_config(folder))
    model = transformers.Gemma3ForCausalLM(config).eval()
    state = tiny.dequantized(folder)
    tensors = {n: torch.from_numpy(np.array(v, np.float32)) for n, v in state.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def continuations(demo_model):
    """Each prompt continued greedily to LENGTH tokens, and the reference's logits."""
    llm = LLM(demo_model, max_model_len=128)
    starts = [llm.tokenizer.encode(text) for text in PROMPTS]
    params = [
        SamplingParams(temperature=0, max_tokens=LENGTH - len(s), ignore_eos=True) for s in starts
    ]
    outputs = llm.generate(starts, params)
    model = reference_model(demo_model)
    out = []
    with torch.no_grad():
        for start, o in zip(starts, outputs, strict=True):
            ids = [*start, *o.outputs[0].token_ids]
            out.append((len(start), ids, model(torch.tensor([ids])).logits[0].numpy()))
    return out


def worker(folder: str, ids_file: str, out_file: str) -> None:
    """Logits of every position under the ISA level of this process's environment."""
    with open(ids_file) as f:
        entries = json.load(f)
    r = tiny.runner(folder, max_model_len=128)
    assert r.program.isa == os.environ["EDGE_INFER_ISA"]
    results = [tiny.logits(r, [ids], prompts=[n])[0] for n, ids in entries]
    np.save(out_file, np.stack(results).astype(np.float32))


@pytest.mark.parametrize("level", _native.available_levels())
def test_agrees_with_transformers(level, demo_model, continuations, tmp_path) -> None:
    ids_file, out_file = tmp_path / "ids.json", tmp_path / "logits.npy"
    # the scalar reference is slow: two prompts are enough to see that it is the same model
    chosen = continuations[:2] if level == "scalar" else continuations
    ids_file.write_text(json.dumps([(n, ids) for n, ids, _ in chosen]))
    arguments = ", ".join(repr(str(p)) for p in (demo_model, ids_file, out_file))
    code = f"import test_demo_agreement as t; t.worker({arguments})"
    subprocess.run(
        [sys.executable, "-c", code],
        env=tiny.environment(level),
        check=True,
        timeout=280,
    )
    got = np.load(out_file)
    want = np.stack([logits for _, _, logits in chosen])
    rms = float(np.sqrt(((got - want) ** 2).mean()))
    top = np.sort(want, axis=-1)[..., -2:]
    gap = top[..., 1] - top[..., 0]
    differ = got.argmax(-1) != want.argmax(-1)
    assert rms < 0.35, rms  # the logits of this model have a standard deviation of about 3
    assert differ.mean() <= 0.05
    assert (gap[differ] < 4 * rms).all()
    print(f"{level}: rms {rms:.4f}, agree {1 - differ.mean():.4f}")


def test_prefill_and_decode_numerics_are_close(demo_model, continuations) -> None:
    r = tiny.runner(demo_model, max_model_len=128)
    kl = []
    for _, ids, _ in continuations:
        prefill = torch.from_numpy(tiny.logits(r, [ids])[0]).double().log_softmax(-1)
        decode = torch.from_numpy(tiny.logits(r, [ids], prompts=[1])[0]).double().log_softmax(-1)
        kl.append((prefill.exp() * (prefill - decode)).sum(-1)[1:])
    values = torch.cat(kl)
    print(f"KL(prefill || decode): mean {values.mean():.5f}, max {values.max():.5f}")
    assert 0 <= values.mean() < 0.01 and values.max() < 0.3
