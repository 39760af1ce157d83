"""The text that fidelity is measured on."""

from __future__ import annotations

import bz2
import sys
import zipfile

import pytest

from edge_infer.errors import CheckpointError, UnsupportedError
from edge_infer.harness import corpus

PAGE = "<page><title>{title}</title><revision><text>{text}</text></revision></page>"  # one article


def test_markup_becomes_prose() -> None:
    markup = (
        "{{Infobox|a={{nested|1}}|b=2}}\n'''Anarchism''' is a [[political philosophy|philosophy]] "
        "of [[society]].<ref name=x>A book</ref><ref name=y/>\n== History ==\n"
        "[[File:Picture.jpg|thumb|a [[link]] inside]]The [https://example.org site] says so.\n"
        "* a list item\n{| class=table\n| cell\n|}\nFish &amp; chips.\n[[Category:Ideas]]\n"
    )
    assert corpus.plain_text(markup) == (
        "Anarchism is a philosophy of society.\nHistory\nThe site says so.\nFish & chips."
    )


def test_articles_alternate_between_the_two_texts(tmp_path, monkeypatch) -> None:
    long = "A sentence that says something. " * 100
    pages = [PAGE.format(title=f"T{i}", text=f"Start {i}. {long}") for i in range(4)]
    pages.append(PAGE.format(title="Stub", text="Short."))
    pages.append(PAGE.format(title="Gone", text=f"#REDIRECT [[T1]] {long}"))
    xml = f'<mediawiki xmlns="http://m/">{"".join(pages)}</mediawiki>'
    monkeypatch.setattr(corpus, "_fetch", lambda folder: xml.encode())
    first = corpus.find_text("wikipedia", tmp_path).read_text()
    second = corpus.find_text("wikipedia-calibration", tmp_path).read_text()
    assert [f"T{i}\n\nStart {i}" in first for i in range(4)] == [True, False, True, False]
    assert [f"T{i}\n\nStart {i}" in second for i in range(4)] == [False, True, False, True]
    assert "Stub" not in first + second
    assert "Gone" not in first + second
    monkeypatch.setattr(corpus, "_fetch", lambda folder: pytest.fail("fetched twice"))
    assert corpus.find_text("wikipedia", tmp_path).read_text() == first


def test_the_wheel_is_fetched_and_read(tmp_path, monkeypatch) -> None:
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    program.write_text("#!/bin/sh\necho no index >&2; exit 1\n")
    program.chmod(0o755)
    with pytest.raises(UnsupportedError, match="no index"):
        corpus._fetch(tmp_path)
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as wheel:
        wheel.writestr(corpus._MEMBER, bz2.compress(b"<xml/>"))
    # the ninth argument is the folder that pip is told to download to
    program.write_text(f'#!/bin/sh\ncp {tmp_path}/made.zip "$9/gensim.whl"\n')
    assert corpus._fetch(tmp_path) == b"<xml/>"


def test_files(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="no text file") as caught:
        corpus.find_text(str(tmp_path / "missing"), tmp_path)
    assert "wikipedia" in caught.value.remedy
    path = tmp_path / "text"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(CheckpointError, match=r"not UTF-8 \(byte 3\)"):
        corpus.read_text(corpus.find_text(str(path), tmp_path))
