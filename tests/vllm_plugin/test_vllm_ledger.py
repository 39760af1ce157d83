"""`edge-infer ledger` on the processes of a running vLLM: a tiny model with tied weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edge_infer.device.ledger import Ledger, process_ledger
from edge_infer.device.tensor_owners import BUFFERS, KV_CACHE, WEIGHTS

pytest.importorskip("vllm")

KV_BYTES = 32 << 20
VOCABULARY, HIDDEN = 16384, 256
PROGRAM = """
import json, os, sys
answer = os.dup(1)
os.dup2(2, 1)  # vLLM's processes write to stdout
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=256, max_num_seqs=2, enforce_eager=True,
          skip_tokenizer_init=True, kv_cache_memory_bytes=int(sys.argv[2]))
def look():
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    out = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
    os.write(answer, (json.dumps(list(out[0].outputs[0].token_ids)) + "\\n").encode())
look()
sys.stdin.readline()
look()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tied")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, head_dim=64, max_position_embeddings=256,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def seen(model) -> Iterator[tuple[list[Ledger], list[list[int]]]]:
    """The ledgers of all processes of an engine, and its tokens before and after the look."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(model), str(KV_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        tokens = [json.loads(process.stdout.readline() or "null")]
        assert tokens[0], "vLLM did not start: see its messages above"
        children = psutil.Process(process.pid).children(recursive=True)
        found = [process_ledger(pid) for pid in (process.pid, *(c.pid for c in children))]
        process.stdin.write("go\n")
        process.stdin.close()
        tokens.append(json.loads(process.stdout.readline()))
        yield found, tokens
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


def test_the_process_with_the_weights_names_them(seen) -> None:
    ledgers, _ = seen
    holders = [one for one in ledgers if one.line(KV_CACHE).anonymous > 0]
    assert len(holders) == 1
    lines = {line.name: line for line in holders[0].lines}
    # The vocabulary's matrix is there once. vLLM repacks other weights of this model for oneDNN,
    # which keeps them where no tensor refers to them.
    vocabulary, layer = 2 * VOCABULARY * HIDDEN, 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * 512)
    held = lines[WEIGHTS].anonymous + lines[WEIGHTS].file_backed
    assert 0.99 * vocabulary <= held <= 1.05 * (vocabulary + 2 * layer)
    assert lines[KV_CACHE].anonymous <= KV_BYTES
    assert lines[BUFFERS].anonymous > 0
    names = [one.name for one in holders[0].largest]
    assert any("embed_tokens.weight" in n and "lm_head.weight" in n for n in names), names
    assert any("kv_cache" in n for n in names), names
    assert len(names) == 10


def test_what_is_unexplained_is_a_line_of_its_own(seen) -> None:
    ledgers, _ = seen
    (holder,) = (one for one in ledgers if one.line(KV_CACHE).anonymous)
    assert "unexplained" in [line.name for line in holder.lines]
    assert holder.unexplained <= 0.05 * holder.anonymous


def test_the_engine_goes_on(seen) -> None:
    _, (before, after) = seen
    assert before == after
