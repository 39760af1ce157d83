"""The examples that talk to a server, run as their readers run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import byte_model
import pytest
from child_server import serving

pytest.importorskip("fastapi", reason="extra [serve] is not installed")
pytest.importorskip("openai", reason="extra [test] is not installed")

from edge_infer.checkpoint.convert import convert

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("examples")
    model = convert(byte_model.write_model(root / "hf"), root / "tiny", bits=4)
    with serving(model) as (_, url):
        yield url


def run(name: str, *arguments: str, stdin: str = "") -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="replace")


def test_chat(url) -> None:
    arguments = ("--url", f"{url}/v1", "--system", "Be brief.", "--max-tokens", "8")
    out = run("chat.py", *arguments, stdin="Hello\nAnd now?\n")
    assert out.count("> ") >= 3  # two questions, and the end


def test_a_stream_is_cancelled(url) -> None:
    out = run("stream_cancel.py", "--url", url, "--after", "3", "The sea")
    assert "-- stopped" in out
    assert "nothing left to do" in out


def test_examples_are_short() -> None:
    lengths = {p.name: len(p.read_text().splitlines()) for p in EXAMPLES.glob("*.py")}
    assert "chat.py" in lengths
    assert max(lengths.values()) < 60, lengths
