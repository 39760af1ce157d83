"""Conversion progress: a bar on a terminal, one line elsewhere, nothing unless it happens."""

from __future__ import annotations

import pytest

from edge_infer.cli.convert import progress_bar


def test_one_line_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("Converting m", True) as progress:
        assert progress is not None
        assert capsys.readouterr().err == ""
        for done in (0, 10, 20):
            progress(done * 10**6, 20 * 10**6)
    assert capsys.readouterr() == ("", "Converting m: 20 MB ...\n")


@pytest.mark.parametrize("converts", [False, True])
def test_a_bar_on_a_terminal_from_the_first_call_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, converts: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress_bar("Converting m", True) as progress:
        assert progress is not None
        if converts:
            progress(0, 20)
            progress(20, 20)
    assert ("Converting m" in capsys.readouterr().err) is converts


def test_nothing_where_it_is_not_wanted() -> None:
    with progress_bar("Converting m", False) as progress:
        assert progress is None
