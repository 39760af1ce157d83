"""What a benchmark says about how weights are kept is what the kernel counts."""

from __future__ import annotations

from pathlib import Path

import byte_model
import pytest

from edge_infer.checkpoint.convert import convert
from edge_infer.errors import EdgeInferError
from edge_infer.harness.bench import BenchOptions, run_speed


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("weights")
    return convert(byte_model.write_model(root / "hf"), root / "tiny", bits=4)


@pytest.mark.parametrize("mode", ["mapped", "resident", "locked"])
def test_locked_bytes_are_those_of_locked_weights(tiny: Path, mode: str) -> None:
    options = BenchOptions(
        model=str(tiny), prompt_tokens=4, generate_tokens=0, repeat=1, threads=1, weights=mode
    )
    try:
        run = run_speed(options)
    except EdgeInferError as error:
        if mode == "locked" and "RLIMIT_MEMLOCK" in error.message:
            pytest.skip(error.message)
        raise
    settings = run.info["settings"]
    assert settings["weight_bytes"] > 0
    assert (settings["locked_bytes"] >= settings["weight_bytes"]) == (mode == "locked")
    assert mode == "locked" or settings["locked_bytes"] == 0
