"""Plots of several comparisons, on pages and by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_schema import artifact
from typer.testing import CliRunner

from edge_infer.cli.main import app
from edge_infer.errors import ConfigError
from edge_infer.harness.report.collect import Loaded
from edge_infer.harness.report.peers_plot import label, limit, pairs, peers_plot
from edge_infer.harness.schema import Artifact, Metric

UNITS = {"stream_read": "GB/s", "weights_read": "GB/s"}


def comparison(ours: dict[str, list[float]], theirs: dict[str, list[float]], **more) -> Artifact:
    base = artifact()
    (arm,) = base.arms[:1]

    def with_metrics(name: str, values: dict[str, list[float]]):
        found = [Metric.of(k, UNITS.get(k, "tok/s"), "higher", v) for k, v in values.items()]
        return arm.model_copy(update={"name": name, "metrics": found, "checkpoint": None})

    arms = [with_metrics("edge-infer", ours), with_metrics("llama.cpp", theirs)]
    return base.model_copy(update={"kind": "compare", "arms": arms, "comparisons": [], **more})


OURS = {"decode": [20.0], "prefill": [300.0], "stream_read": [25.0], "weights_read": [20.0]}


def test_the_limit_is_the_streaming_read_over_the_bytes_of_a_token() -> None:
    found = comparison(OURS, {"decode": [10.0]})
    # 20 tok/s read 20 GB/s, so a token is 1 GB, and 25 GB/s allow 25 tok/s.
    assert limit(found.arms[0]) == pytest.approx(25.0)
    assert limit(found.arms[1]) is None
    (pair,) = pairs([Loaded("a.json", found)], "decode")
    assert (pair.ours.median, pair.theirs.median, pair.limit) == (20.0, 10.0, pytest.approx(25.0))


def test_only_what_both_sides_have_is_drawn() -> None:
    loaded = [Loaded("a.json", comparison(OURS, {"decode": [10.0]}))]
    assert pairs(loaded, "prefill") == []
    assert peers_plot(loaded).startswith(b"\x89PNG")
    assert peers_plot(loaded) == peers_plot(loaded)
    with pytest.raises(ConfigError, match="compares a speed"):
        peers_plot([Loaded("a.json", comparison({"x": [1.0]}, {"decode": [1.0]}))])
    with pytest.raises(ConfigError, match=r"b\.json is no comparison"):
        pairs([Loaded("b.json", artifact())], "decode")


def test_labels_tell_settings_apart() -> None:
    plain = comparison(OURS, {"decode": [10.0]})
    deep = comparison(OURS, {"decode": [10.0]}, parameters={"context": 2048})
    assert "llama.cpp" in label(plain)
    assert label(deep) != label(plain) and "2048" in label(deep)


def test_a_page_gets_its_plot_and_keeps_it(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for name, speed in (("one-a.json", 10.0), ("one-b.json", 11.0), ("two.json", 12.0)):
        (results / name).write_text(comparison(OURS, {"decode": [speed]}).model_dump_json())
    page = tmp_path / "page.md"
    page.write_text("# T\n\n<!-- plot: p.png one-*.json -->\n<!-- end plot -->\n\nText.\n")
    for _ in range(2):
        done = CliRunner().invoke(app, ["report", str(results), "--page", str(page)])
        assert done.exit_code == 0, done.output
        text = page.read_text()
        assert text.count("![p.png](p.png)") == 1 and text.endswith("Text.\n")
        assert "| 10.0 |" in text and "| 11.0 |" in text and "| 12.0 |" not in text
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    page.write_text("<!-- plot: p.png none-*.json -->\n<!-- end plot -->\n")
    done = CliRunner().invoke(app, ["report", str(results), "--page", str(page)])
    assert done.exit_code == 1
