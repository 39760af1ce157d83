"""What `edge-infer bench` times, and when it looks at memory."""

from __future__ import annotations

import pytest
from byte_model import write_model

from edge_infer import LLM
from edge_infer.harness import bench_child
from edge_infer.harness.bench import BenchOptions, weights_read_shares

CONTEXT, TOKENS = 90, 5


class Events:
    """Takes events as the parent does, and looks at the model when they arrive."""

    def __init__(self) -> None:
        self.llm: LLM | None = None
        self.seen: list[tuple[str, dict, int]] = []

    def send(self, event: str, **fields) -> None:
        running = self.llm.kv_use().running if self.llm else 0
        self.seen.append((event, fields, running))


@pytest.mark.parametrize("sequences", [1, 3])
def test_decoding_sequences_have_their_cache_when_memory_is_looked_at(
    sequences, tmp_path, monkeypatch
) -> None:
    options = BenchOptions(
        str(write_model(tmp_path / "model")),
        prompt_tokens=20,
        generate_tokens=TOKENS,
        repeat=2,
        context=CONTEXT,
        sequences=sequences,
        threads=1,
    )
    events = Events()
    opened = bench_child._open

    def open_and_keep(document: dict) -> LLM:
        events.llm = opened(document)
        return events.llm

    monkeypatch.setattr(bench_child, "_open", open_and_keep)
    monkeypatch.setattr("edge_infer.harness.ceilings.stream_buffer_bytes", lambda: 1 << 20)
    bench_child.speed(options.child("speed"), events)

    decodes = {name: (fields, n) for name, fields, n in events.seen if name.startswith("decode")}
    assert {name: n for name, (_, n) in decodes.items()} == (
        {"decode": 1} if sequences == 1 else {"decode": 1, "decode.together": sequences}
    )
    for fields, _ in decodes.values():
        assert len(fields["seconds"]) == 2 and min(fields["seconds"]) > 0
    (turns,) = (fields for name, fields, _ in events.seen if name == "stream_read")
    assert turns["bytes"] == 1 << 20 and turns["steps"] == TOKENS
    assert len(turns["decode_seconds"]) == bench_child.TURNS == len(turns["seconds"]) - 1
    assert min(turns["decode_seconds"]) > 0 < min(turns["seconds"])
    assert events.llm and events.llm.kv_use().running == 0


def test_a_turn_is_held_against_the_reads_around_it() -> None:
    turns = {"bytes": 60, "seconds": [1.0, 3.0, 2.0], "steps": 2, "decode_seconds": [4.0, 10.0]}
    shares = weights_read_shares(turns, weight_bytes=40)
    assert shares == [20 / 30, 8 / (60 / 2.5)]
