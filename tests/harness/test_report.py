"""Reports: nothing in them that no artifact has, and nothing in an artifact that can break them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from grids import arm, run
from test_schema import artifact
from typer.testing import CliRunner

from edge_infer.cli.main import app
from edge_infer.errors import ConfigError, StorageError
from edge_infer.harness.report.citations import unsupported
from edge_infer.harness.report.collect import Loaded, read_artifact, read_artifacts, retract
from edge_infer.harness.report.figures import digits, figure, metric_figure
from edge_infer.harness.report.markdown import (
    PLOT,
    artifact_text,
    report_text,
    table_text,
    update,
)
from edge_infer.harness.report.tables import ALL, tables
from edge_infer.harness.schema import Artifact, Metric

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "benchmarks/results", ROOT / "docs/edge/results.md"
PEERS_PAGE = ROOT / "docs/edge/comparisons.md"


# The committed page and the committed artifacts.


@pytest.mark.parametrize("page", [PAGE, PEERS_PAGE], ids=lambda p: p.name)
def test_pages_are_made_from_their_artifacts(page: Path) -> None:
    text = page.read_text()
    assert update(text, RESULTS) == text, f"run edge-infer report --page docs/edge/{page.name}"
    for kind in ("report", "plot"):
        assert text.count(f"<!-- {kind}: ") == text.count(f"<!-- end {kind} -->")
    assert "<!-- report: " in text
    for match in PLOT.finditer(text):
        assert page.with_name(match.group("image")).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("page", [PAGE, PEERS_PAGE], ids=lambda p: p.name)
def test_every_number_of_a_page_is_in_the_artifact_that_it_cites(page: Path) -> None:
    assert [str(claim) for claim in unsupported(page.read_text(), RESULTS)] == []


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda p: p.name)
def test_committed_artifacts_are_whole_and_name_no_folder(path: Path) -> None:
    found = read_artifact(path).artifact
    assert artifact_text(found)
    if found.retracted is not None and found.retracted.successor is not None:
        assert (RESULTS / found.retracted.successor).is_file()
    assert not re.search(r'"/(home|root|tmp|work|Users)/', path.read_text())


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not in a git repository")
    return done.stdout


def test_results_are_append_only() -> None:
    """No artifact is deleted, and what was committed first is still there but for a retraction."""
    history = ["log", "--no-renames", "--format=", "--name-only"]
    deleted = git(*history, "--diff-filter=D", "--", "benchmarks/results").split()
    assert [name for name in deleted if not (ROOT / name).exists()] == []
    for path in sorted(RESULTS.glob("*.json")):
        name = str(path.relative_to(ROOT))
        first = git("log", "--diff-filter=A", "--format=%H", "--", name).split()
        if first:  # else it is not committed yet
            then = json.loads(git("show", f"{first[-1]}:{name}"))
            now = json.loads(path.read_text())
            now.pop("retracted", None)
            then.pop("retracted", None)
            assert now == then, f"{name} was changed after it was committed"


# Numbers and their citations.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One artifact: decode of 10, 12, 11 tok/s in two arms, and 2.5 GB free of 10 bytes."""
    (tmp_path / "a.json").write_text(artifact().model_dump_json(indent=2))
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "11.0 tok/s `a.json`",
        "decode 11 tok/s (10.0 to 12.0) in a.json",
        "10 to 12 tok/s a.json",
        "5 bytes were free a.json",
        "the run took 1.5 s, 1,500 ms a.json",
        "10% of the machine was busy a.json",
        "`99` and ``` 98 ``` in code, [page](page-96.md), Gemma 95M, x-94, v93 a.json",
        "1. first\n2. second",
        "# Heading 77\nno number",
    ],
)
def test_numbers_of_the_artifact_pass(text: str, folder: Path) -> None:
    assert unsupported(text, folder) == []


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("11.1 tok/s a.json", ["11.1 tok/s"]),
        ("11.04 tok/s a.json", ["11.04 tok/s"]),
        ("11 tok/s", ["11 tok/s"]),  # cites nothing
        ("11 ms a.json", ["11 ms"]),  # right number, wrong unit
        ("13 to 12 tok/s a.json", ["13"]),
        ("10 to 12 ms a.json", ["10", "12 ms"]),
        ("| 11.0 tok/s | 47.2 tok/s | a.json", ["47.2 tok/s"]),
        ("twice as fast: 2.37 a.json", ["2.37"]),
        ("# A\n11 tok/s a.json\n# B\n11 tok/s", ["11 tok/s"]),  # another section
    ],
)
def test_numbers_from_nowhere_are_found(text: str, claims: list[str], folder: Path) -> None:
    assert [c.text for c in unsupported(text, folder)] == claims


def test_claim_says_its_line(folder: Path) -> None:
    (claim,) = unsupported("# A\n\na.json\n\n47 tok/s\n", folder)
    assert str(claim) == "line 5: 47 tok/s is not in what its section cites (a.json)"


def test_cited_artifact_must_be_there(folder: Path) -> None:
    with pytest.raises(StorageError, match=r"b\.json"):
        unsupported("11 tok/s b.json", folder)


def test_generated_part_follows_its_artifact(folder: Path) -> None:
    page = "Before 1\n<!-- report: a.json metrics -->\nold 47\n<!-- end report -->\nafter\n"
    made = update(page, folder)
    assert made.startswith("Before 1\n") and made.endswith("<!-- end report -->\nafter\n")
    assert "| decode | 11.0 tok/s (10.0 to 12.0, n=3) | 11.0 tok/s (10.0 to 12.0, n=3) |" in made
    assert "old 47" not in made and update(made, folder) == made
    with pytest.raises(ConfigError, match="no table 'speeds'"):
        update(page.replace("metrics", "speeds"), folder)


# Retraction.


def test_retracted_artifact_stays_but_counts_no_more(folder: Path) -> None:
    new, old = folder / "new.json", folder / "a.json"
    new.write_text(artifact(duration_seconds=3).model_dump_json(indent=2))
    before = json.loads(old.read_text())
    retract(old, "the head was not quantized", "new.json")
    after = json.loads(old.read_text())
    mark = after.pop("retracted")
    before.pop("retracted")
    assert after == before
    assert mark == {"reason": "the head was not quantized", "successor": "new.json"}
    text = report_text(read_artifacts([folder]))
    assert "## a.json" not in text and "## new.json" in text
    assert "- a.json: the head was not quantized Replaced by new.json." in text
    with pytest.raises(ConfigError, match="is retracted: the head") as caught:
        update("<!-- report: a.json -->\n<!-- end report -->", folder)
    assert "new.json" in caught.value.remedy


def test_senseless_retractions_are_refused(folder: Path) -> None:
    for reason, successor in ((" ", None), ("wrong", "a.json"), ("wrong", "absent.json")):
        with pytest.raises((ConfigError, StorageError)):
            retract(folder / "a.json", reason, successor)
    assert read_artifact(folder / "a.json").artifact.retracted is None
    retract(folder / "a.json", "wrong")
    with pytest.raises(ConfigError, match="retracted already"):
        retract(folder / "a.json", "wrong again")


# What reports show.


def test_labels_of_a_grid_are_shown(tmp_path: Path) -> None:
    noisy = "import random; print('{\"speed\": %f}' % random.uniform(5, 15))"
    arms = [arm("a", noisy), arm("b", noisy), arm("c", "raise SystemExit(3)")]
    found = run(tmp_path, arms, passes=3)
    text = artifact_text(found)
    assert "c (NOT A RESULT)" in text
    assert "c: not a result: 0 good passes; 3 are needed" in text
    assert "pass 1: exit status 3" in text
    (comparison,) = found.comparisons
    shown = "NOT A RANKING" if comparison.verdict == "inside the spread" else comparison.verdict
    assert f"| {shown} |" in text


def test_arms_inside_the_spread_are_no_ranking(tmp_path: Path) -> None:
    # The same value in the same pass in turn above and below: no arm is faster.
    code = """
import os
count = {state!r}
n = os.path.getsize(count) if os.path.exists(count) else 0
open(count, "a").write("x")
print('{{"speed": %d}}' % (10 + {step} * (n % 2)))
"""
    arms = [
        arm(name, code.format(state=str(tmp_path / name), step=step))
        for name, step in (("a", 2), ("b", 0))
    ]
    found = run(tmp_path, arms, passes=6)
    assert found.comparisons[0].verdict == "inside the spread"
    assert "| NOT A RANKING |" in artifact_text(found)


def hostile() -> Artifact:
    found = artifact()
    bad = found.arms[0].model_copy(update={"name": "<script>alert(1)</script> | x\ny"})
    return found.model_copy(update={"arms": [bad]})


def test_text_of_an_artifact_is_text() -> None:
    from edge_infer.harness.report.page import report_page

    pytest.importorskip("matplotlib")
    page = report_page([Loaded("<b>.json", hostile())])
    assert "<script>" not in page and "<b>" not in page
    # The arm's name holds a bar and a line break, and is still one cell.
    (table,) = tables(hostile(), ["metrics"])
    lines = table_text(table).splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]
    assert "<script>" not in artifact_text(hostile())


def test_page_needs_nothing_from_elsewhere(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    output = folder / "page.html"
    done = CliRunner().invoke(app, ["report", str(folder / "a.json"), "--html", str(output)])
    assert done.exit_code == 0, done.output
    page = output.read_text()
    assert "11.0 tok/s (10.0 to 12.0, n=3)" in page
    assert page.count('src="data:image/png;base64,') == 1
    assert not re.search(r'(src|href)="(?!data:|#)', page)


def test_command_writes_markdown_and_plots(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    markdown, plots = folder / "r.md", folder / "plots"
    words = ["report", str(folder), "--markdown", str(markdown), "--plots", str(plots), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["artifacts"] == ["a.json"]
    assert "## a.json" in markdown.read_text()
    (image,) = plots.iterdir()
    assert image.name == "a-decode.png"
    assert image.read_bytes().startswith(b"\x89PNG")


def test_command_checks_a_page(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("<!-- report: a.json metrics -->\n<!-- end report -->\nand 47.5 tok/s\n")
    done = CliRunner().invoke(app, ["report", str(folder), "--page", str(page)])
    assert done.exit_code == 1
    assert "47.5 tok/s is not in what its section cites (a.json)" in " ".join(done.stderr.split())
    assert "11.0 tok/s" in page.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', "nonsense"])
def test_what_is_no_artifact(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json is no artifact"):
        read_artifacts([tmp_path])
    with pytest.raises(ConfigError, match="no artifacts"):
        read_artifacts([])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (91.06, "91.1"),
        (3112.4, "3112"),
        (0.02134, "0.0213"),
        (0, "0"),
        (9.996, "10.0"),
        (-2, "-2.00"),
    ],
)
def test_digits(value: float, text: str) -> None:
    assert digits(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (290_701_443, "bytes", "291 MB"),
        (2.5e9, "bytes", "2.50 GB"),
        (4096, "bytes", "4.10 kB"),
        (12, "bytes", "12 bytes"),
        (0.0123, "s", "12.3 ms"),
        (1.83, "s", "1.83 s"),
        (1.234, "ratio", "1.23"),
        (5.0, "tok/s", "5.00 tok/s"),
    ],
)
def test_figures(value: float, unit: str, text: str) -> None:
    assert figure(value, unit) == text


def test_range_keeps_units_that_differ() -> None:
    samples = [0.9, 1.1, 1.3]
    assert metric_figure(Metric.of("x", "s", "lower", samples)) == (
        "1.10 s (900 ms to 1.30 s, n=3)"
    )


def test_every_table_has_rows_as_wide_as_its_head(tmp_path: Path) -> None:
    for found in (artifact(), run(tmp_path, [arm("a"), arm("b")])):
        for table in tables(found, tuple(ALL)):
            assert {len(row) for row in table.rows} == {len(table.columns)}
