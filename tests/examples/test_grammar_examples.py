"""The examples whose answers follow a grammar, run as their readers run them on the demo model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_server import serving

pytest.importorskip("llguidance", reason="extra [serve] is not installed")
pytest.importorskip("openai", reason="extra [test] is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def url(demo_model) -> Iterator[str]:
    """A base model: a built-in template gives it chat and tools."""
    with serving(demo_model, "--chat-template", "gemma") as (_, url):
        yield url


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_schema(url) -> None:
    out = run("schema.py", "Ada Lovelace was born in 1815.", "--url", f"{url}/v1")
    person = json.loads(out)
    assert set(person) == {"name", "born", "field"}
    assert 0 <= person["born"] <= 2100


def test_tools(url) -> None:
    out = run("tools.py", "Turn on the lamp in the kitchen.", "--url", f"{url}/v1")
    assert out.startswith("set_lamp({'room': ")
