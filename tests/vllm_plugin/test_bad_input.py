"""What LLM(...) says to something that cannot work: named errors, no hang, no signal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import engines
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny  # noqa: E402

from edge_infer.checkpoint.convert import convert  # noqa: E402
from edge_infer.errors import CheckpointError, UnsupportedError  # noqa: E402

tiny.CONFIGS["llama"] = {"num_attention_heads": 2, "num_key_value_heads": 1}  # heads of 32


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    tiny.make("llama", tmp_path / "plain")
    return convert(tmp_path / "plain", tmp_path / "packed")


def engine_config(folder: Path, **options):
    """What LLM(...) does first, in the user's process, before anything is started."""
    from vllm.engine.arg_utils import EngineArgs

    settings = {"quantization": "cpu_int4", "skip_tokenizer_init": True, "max_model_len": 64}
    return EngineArgs(str(folder), **{**settings, **options}).create_engine_config()


def test_tensor_parallelism(packed: Path):
    with pytest.raises(UnsupportedError, match=r"over 2 ranks .* Use tensor_parallel_size=1"):
        engine_config(packed, tensor_parallel_size=2)


def test_truncated_shard(packed: Path):
    file = packed / "model.safetensors"
    os.truncate(file, file.stat().st_size - 64)
    with pytest.raises(CheckpointError, match=r"ends at byte .* The file is truncated"):
        engine_config(packed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intermediate_size": 512}, r"needs \[512 \+ 512, \d+\] for .*gate_proj, .*up_proj"),
        ({"vocab_size": 100}, r"needs \[100, \d+\] for (model\.embed_tokens|lm_head)"),
        (
            {"num_hidden_layers": 2},
            r"the checkpoint has .*layers\.2; the LlamaForCausalLM .* has no such module",
        ),
        ({"num_hidden_layers": 4}, r"does not have: model\.layers\.3\."),
    ],
)
def test_config_that_disagrees_with_its_tensors(packed: Path, change: dict, message: str):
    file = packed / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises((CheckpointError, UnsupportedError), match=message), engines.engine(packed):
        pass


RUNNING = """
import os, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, answers = sys.argv[1:]
    say = lambda what: print(what, file=open(answers, "a"))
    llm = LLM(folder, quantization="cpu_int4", dtype="bfloat16", max_model_len=64, max_num_seqs=1,
              kv_cache_memory_bytes=16 << 20, enforce_eager=True, skip_tokenizer_init=True)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    run = lambda: llm.generate([{"prompt_token_ids": [5, 7, 9]}], params, use_tqdm=False)
    say(len(run()[0].outputs[0].token_ids))
    os.truncate(folder + "/model.safetensors", 4096)
    try:
        run()
    except Exception as e:
        say(type(e).__name__)
"""


@pytest.mark.timeout(600)
def test_file_that_is_truncated_while_vllm_runs(packed: Path, tmp_path: Path):
    script = tmp_path / "run.py"
    script.write_text(RUNNING)
    answers = tmp_path / "answers"  # three processes write to stdout, into each other's lines
    done = subprocess.run(
        [sys.executable, str(script), str(packed), str(answers)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    said = answers.read_text().split()
    assert said == ["4", "EngineDeadError"], done.stdout[-3000:] + done.stderr[-3000:]
    assert "[weights_lost] The weight file" in done.stdout + done.stderr
