"""Servers on a tiny random model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import byte_model
import pytest

pytest.importorskip("fastapi", reason="extra [serve] is not installed")

from http_server import RunningServer, running

from edge_infer.checkpoint.convert import convert
from edge_infer.server.config import ServerConfig


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random layers with a byte-level tokenizer and a chat template; 512 tokens of context."""
    root = tmp_path_factory.mktemp("served")
    return convert(byte_model.write_model(root / "hf"), root / "tiny", bits=4)


@pytest.fixture(scope="session")
def server(tiny_model: Path) -> Iterator[RunningServer]:
    """A server with default settings that tests share; the model's name is ``tiny``."""
    with running(tiny_model) as it:
        yield it


@pytest.fixture
def start_server(tiny_model: Path) -> Callable[..., Any]:
    """``with start_server(config, **options) as server``: one with settings of its own, or another
    ``model``."""

    def start(
        config: ServerConfig | None = None, *, model: Path = tiny_model, **options: Any
    ) -> Any:
        return running(model, config, **options)

    return start
