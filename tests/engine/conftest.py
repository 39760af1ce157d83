"""A tiny packed model, its LLM, and a service on it that must be empty at the end of a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from byte_model import write_model

from edge_infer import LLM
from edge_infer.checkpoint.convert import convert
from edge_infer.engine.serving import ServingEngine


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("serving")
    return convert(write_model(root / "hf"), root / "packed", bits=4)


@pytest.fixture(scope="module")
def llm(model) -> LLM:
    return LLM(model, threads=2)


@pytest.fixture
def engine(llm):
    # The rows of a step are those that fit, however slow a busy machine makes them (test_pace.py).
    engine = ServingEngine(llm, stream_gap=None)
    engine.start()
    yield engine
    engine.close()
    assert not llm.scheduler.busy and llm.runner.blocks.used_blocks() == 0
    assert engine.stats().waiting == engine.stats().running == 0
