"""Profiles: the parts add up, and bytes and arithmetic are those of the steps that ran."""

from __future__ import annotations

import pytest
from byte_model import write_model
from pydantic import ValidationError

from edge_infer import LLM
from edge_infer.errors import ConfigError
from edge_infer.harness import profile
from edge_infer.harness.profile import ProfileOptions, profile_steps, step_profile
from edge_infer.harness.schema_profile import ProfilePart, StepProfile
from edge_infer.models.traffic import StepShape, traffic

CHUNK = 16


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    llm = LLM(
        write_model(tmp_path_factory.mktemp("profile") / "model"),
        max_model_len=200,
        max_num_seqs=1,
        chunk_size=CHUNK,
        threads=2,
    )
    options = ProfileOptions("m", context=20, prompt_tokens=40, steps=24)
    prefill, decode = profile_steps(llm, options)
    assert llm.kv_use().running == 0
    return llm, prefill, decode


def test_parts_add_up_to_the_step(recordings) -> None:
    _, prefill, decode = recordings
    for phase, recording in (("prefill", prefill), ("decode", decode)):
        found = step_profile(phase, recording)
        assert sum(p.seconds for p in found.parts) == pytest.approx(found.seconds, rel=0.001)
        assert all(p.seconds >= 0 for p in found.parts)
        names = {p.name for p in found.parts}
        assert {profile.WAIT, profile.SAMPLING, profile.SCHEDULER, profile.PREPARE} <= names
        assert {"attention", "rope", "embed", "gather", profile.INPUT} <= names


def test_native_clock_lies_inside_the_calls(recordings) -> None:
    for recording in recordings[1:]:
        # Each clock is read inside the next one, so nothing is counted twice.
        assert 0 < recording.native_seconds <= recording.call_seconds
        assert recording.call_seconds <= recording.run_seconds
        assert recording.run_seconds + recording.sampling_seconds <= sum(recording.walls)


def test_steps_are_the_ones_asked_for(recordings) -> None:
    _, prefill, decode = recordings
    assert prefill.rows == [CHUNK, CHUNK, 8]  # after 32 tokens: 20 in whole chunks
    assert decode.rows == [1] * 24
    assert (prefill.context, decode.context) == (32, 22)


def test_sequences_that_decode_together(tmp_path) -> None:
    options = ProfileOptions("m", context=40, prompt_tokens=5, steps=6, sequences=3)
    llm = LLM(
        write_model(tmp_path / "model"),
        max_model_len=profile.room(options, CHUNK),
        max_num_seqs=3,
        chunk_size=CHUNK,
        threads=2,
    )
    _, decode = profile_steps(llm, options)
    assert decode.rows == [3] * 6
    found = step_profile("decode", decode)
    assert sum(p.seconds for p in found.parts) == pytest.approx(found.seconds, rel=0.001)
    # The first sequences had more steps: each reads a cache of its own length, all the weights once
    assert decode.context > 42
    alone = traffic(llm.runner.builder, StepShape(60))
    assert sum(p.operations for p in found.parts if p.name.startswith("linear")) == 3 * sum(
        t.operations for t in alone if t.kind == "linear"
    )
    assert sum(p.weight_bytes for p in found.parts if p.name.startswith("linear")) == sum(
        t.weight_bytes for t in alone if t.kind == "linear"
    )
    assert llm.kv_use().running == 0


def test_traffic_is_that_of_the_recorded_steps(recordings) -> None:
    llm, prefill, decode = recordings
    parts = {p.name: p for p in step_profile("prefill", prefill).parts}
    shapes = [StepShape(32, CHUNK, 0), StepShape(48, CHUNK, 0), StepShape(64, 8, 1)]
    steps = [traffic(llm.runner.builder, shape) for shape in shapes]
    for kind in ("attention", "kv_store", "rope"):
        want = sum(
            t.activation_bytes + t.kv_bytes for step in steps for t in step if t.kind == kind
        )
        assert parts[kind].kv_bytes + parts[kind].activation_bytes == pytest.approx(want / 3, abs=1)
    done = sum(t.operations for step in steps for t in step)
    assert sum(p.operations for p in parts.values()) == pytest.approx(done / 3, abs=len(parts))
    layers = sum(t.kind == "attention" for t in steps[0])
    assert parts["attention"].calls == layers
    one = traffic(llm.runner.builder, StepShape(30))
    read = sum(p.weight_bytes for p in step_profile("decode", decode).parts)
    assert read == sum(t.weight_bytes for t in one)


def test_engine_is_as_before(recordings) -> None:
    llm, *_ = recordings
    assert llm.scheduler.runner is llm.runner
    assert type(llm.runner.program).__name__ == "Program"
    before = llm.runner.program.op_times
    llm.generate([{"prompt_token_ids": [1, 2, 3]}])
    assert llm.runner.program.op_times == before  # no longer timed


def test_a_profile_that_does_not_add_up_is_refused() -> None:
    part = ProfilePart(name="x", seconds=0.9, calls=1)
    with pytest.raises(ValidationError, match="parts of a step"):
        StepProfile(phase="decode", context=0, rows=1, steps=[1.0], parts=[part])


@pytest.mark.parametrize(
    "changes", [{"steps": 0}, {"context": -1}, {"prompt_tokens": 0}, {"sequences": 0}]
)
def test_senseless_options(changes) -> None:
    with pytest.raises(ConfigError):
        ProfileOptions("m", **changes)
