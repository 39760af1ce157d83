"""Small grids for tests: arms are Python one-liners, and the machine may be as busy as it likes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from edge_infer.harness.grid.run import run_grid
from edge_infer.harness.grid.spec import GridSpec
from edge_infer.harness.schema import Artifact

ANY_LOAD = {"busy": 1, "steal": 1, "seconds": 0.01}
SPEED = {"name": "speed", "unit": "tok/s", "better": "higher", "json": "speed"}
MB = 1 << 20


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def arm(name: str, code: str = "print('{\"speed\": 10}')", **fields: Any) -> dict[str, Any]:
    if "probes" not in fields:
        fields.setdefault("no_probe", "a test without a setting")
    return {"name": name, "command": python(code), **fields}


def spec(arms: list[dict[str, Any]], **fields: Any) -> GridSpec:
    document = {
        "name": "test",
        "arms": arms,
        "metrics": [SPEED],
        "passes": 3,
        "warmup": 0,
        "preflight": ANY_LOAD,
        "timeout": 60,
        **fields,
    }
    return GridSpec.model_validate(document)


def run(tmp_path: Path, arms: list[dict[str, Any]], **fields: Any) -> Artifact:
    """Runs it and reads the artifact back from the file."""
    output = tmp_path / "artifact.json"
    run_grid(spec(arms, **fields), output)
    return Artifact.model_validate_json(output.read_text())
