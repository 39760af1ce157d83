"""The artifact schema: round trip, and what it refuses."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from edge_infer.harness.schema import (
    SCHEMA_VERSION,
    Arm,
    Artifact,
    Comparison,
    EngineBuild,
    Machine,
    MachineLoad,
    Metric,
    Provenance,
)


def artifact(**changes: object) -> Artifact:
    build = EngineBuild(name="edge-infer", version="0")
    load = MachineLoad(seconds=1, load_average=(0.1, 0.2, 0.3), busy=0.1, steal=0, iowait=0)
    machine = Machine(
        cpu="a CPU",
        isa_levels=["scalar"],
        physical_cores=1,
        affinity=[0],
        quota_cpus=None,
        memory_total=10,
        memory_available=5,
        kernel="Linux",
        governor=None,
        transparent_huge_pages=None,
        load=load,
    )

    def arm(name: str) -> Arm:
        metric = Metric.of("decode", "tok/s", "higher", [10.0, 12.0, 11.0])
        return Arm(name=name, engine=build, command=["x"], threads=1, metrics=[metric])

    fields: dict[str, object] = {
        "kind": "bench",
        "command": ["edge-infer", "bench"],
        "started_at": "2026-01-01T00:00:00+00:00",
        "duration_seconds": 1.5,
        "provenance": Provenance(edge_infer=build, python="3", machine=machine),
        "arms": [arm("ours"), arm("theirs")],
        **changes,
    }
    return Artifact(**fields)


def test_round_trip() -> None:
    ratio = Metric.of("decode", "ratio", "higher", [1.1, 1.2, 1.3])
    first = artifact(
        comparisons=[
            Comparison(
                metric="decode", arm="ours", baseline="theirs", ratio=ratio, verdict="better"
            )
        ]
    )
    text = first.model_dump_json()
    assert Artifact.model_validate_json(text) == first
    assert json.loads(text)["schema_version"] == SCHEMA_VERSION


def test_summary_is_that_of_the_samples() -> None:
    metric = Metric.of("prefill", "tok/s", "higher", [3.0, 1.0, 2.0])
    assert (metric.median, metric.min, metric.max) == (2.0, 1.0, 3.0)


def test_edited_numbers_are_refused() -> None:
    document = json.loads(artifact().model_dump_json())
    document["arms"][0]["metrics"][0]["median"] = 20.0
    with pytest.raises(ValidationError, match="samples give 11"):
        Artifact.model_validate(document)


def test_unknown_fields_and_versions_are_refused() -> None:
    document = json.loads(artifact().model_dump_json())
    with pytest.raises(ValidationError, match="tok_per_s"):
        Artifact.model_validate({**document, "tok_per_s": 1})
    with pytest.raises(ValidationError, match="schema_version"):
        Artifact.model_validate({**document, "schema_version": SCHEMA_VERSION + 1})


@pytest.mark.parametrize("samples", [[], [math.inf], [math.nan]])
def test_metric_without_a_finite_sample_is_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError):
        Metric.of("decode", "tok/s", "higher", samples)


def test_comparison_must_name_arms() -> None:
    ratio = Metric.of("decode", "ratio", "higher", [1.0])
    comparison = Comparison(
        metric="decode", arm="ours", baseline="nobody", ratio=ratio, verdict="inside the spread"
    )
    with pytest.raises(ValidationError, match="nobody"):
        artifact(comparisons=[comparison])


def test_arms_have_different_names() -> None:
    twice = [artifact().arms[0]] * 2
    with pytest.raises(ValidationError, match="share a name"):
        artifact(arms=twice)
