"""Our server as `edge-infer bench --url` sees it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from edge_infer.harness.load.options import LoadOptions
from edge_infer.harness.load.run import load


@pytest.mark.parametrize("chat", [False, True])
def test_bench_of_our_own_server(chat: bool, server: Any) -> None:
    options = LoadOptions(
        url=server.url,
        clients=(2,),
        seconds=1.0,
        prompt_tokens=100,
        generate_tokens=6,
        chat=chat,
        pid=os.getpid(),
    )
    (arm,) = load(options).arms
    assert (arm.engine.name, arm.settings["model"]) == ("edge-infer", "tiny")
    assert arm.load is not None
    assert arm.load.errors == {}
    assert arm.load.finished > 0
    assert arm.load.generated_tokens >= 6 * arm.load.finished
    # The model counts bytes, and words differ in length.
    assert arm.load.prompt_tokens is not None
    assert all(70 <= n <= 140 for n in arm.load.prompt_tokens)
