"""torchvision, torchaudio and torchcodec that do not fit torch: each its own failure, in miniature.

Every case runs in a fresh interpreter whose only packages are made here, with the shapes of the
real ones: which module loads native code, and how that fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CUDA_LIBRARY = b"\x7fELF....\0libtorch_cpu.so\0libtorch_cuda.so\0..."
CPU_LIBRARY = b"\x7fELF....\0libtorch_cpu.so\0..."


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def site(tmp_path) -> Path:
    """A folder of packages with torch for the CPU and our hook."""
    site = tmp_path / "site"
    write(site, {"torch/__init__.py": "", "torch/lib/libtorch_cpu.so": CPU_LIBRARY})
    for suffix in (".py", ".pth"):
        shutil.copy(ROOT / "src" / f"edge_infer_companions{suffix}", site)
    return site


def add_torchvision(site: Path, works: bool) -> None:
    describe = "import torchvision.extension as e\nassert e._has_ops(), 'operator does not exist'\n"
    write(
        site,
        {
            "torchvision/__init__.py": "from . import extension\n"
            "from torchvision import _meta_registrations, _autograd_registrations, transforms\n",
            "torchvision/extension.py": f"def _has_ops():\n    return {works}\n",
            "torchvision/_meta_registrations.py": describe + "kept = True\n",
            "torchvision/_autograd_registrations.py": describe + "kept = True\n",
            "torchvision/transforms.py": "def flip(x):\n    return x[::-1]\n",
            "torchvision-0.28.0.dist-info/METADATA": "Name: torchvision\nVersion: 0.28.0\n",
        },
    )


def add_torchaudio(site: Path, works: bool) -> None:
    write(
        site,
        {
            "torchaudio/__init__.py": "from . import _extension\n",
            "torchaudio/_extension/__init__.py": "from .utils import _load_lib\n"
            "AVAILABLE = _load_lib('_torchaudio')\n",
            "torchaudio/_extension/utils.py": "import ctypes\nfrom pathlib import Path\n"
            "def _load_lib(lib):\n"
            "    paths = list((Path(__file__).parent.parent / 'lib').glob(f'{lib}*.so'))\n"
            "    for path in paths:\n        ctypes.CDLL(str(path))\n"
            "    return bool(paths)\n",
            "torchaudio/functional.py": "def gain(x):\n    return 2 * x\n",
            "torchaudio/lib/_torchaudio.so": CUDA_LIBRARY,
        },
    )
    if works:
        import _ctypes

        shutil.copy(_ctypes.__file__, site / "torchaudio/lib/_torchaudio.so")


def add_torchcodec(site: Path, library: bytes) -> None:
    write(
        site,
        {
            "torchcodec/__init__.py": "loaded = True\n",
            "torchcodec/libtorchcodec_core.so": library,
            "torchcodec-0.17.0.dist-info/METADATA": "Name: torchcodec\nVersion: 0.17.0\n",
        },
    )


def run(site: Path, program: str, **environment: str) -> dict:
    """What ``program`` leaves in ``out``, after Python has read the .pth files of ``site``."""
    prelude = (
        f"import json, site, sys\nsite.addsitedir({str(site)!r})\nout = {{}}\n"
        "hook = sys.modules['edge_infer_companions']\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", prelude + program + "\nprint(json.dumps(out))"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_torchvision_without_its_operations_keeps_what_is_python(site) -> None:
    add_torchvision(site, works=False)
    out = run(
        site,
        "import torchvision\nout['flip'] = torchvision.transforms.flip([1, 2])\n"
        "out['kept'] = hasattr(torchvision._meta_registrations, 'kept')\nout['done'] = hook.done",
    )
    assert out["flip"] == [2, 1]
    assert not out["kept"]
    assert list(out["done"]) == ["torchvision"]


def test_without_the_hook_it_fails(site) -> None:
    """The case above is a real failure: switched off by the flag, the import raises."""
    add_torchvision(site, works=False)
    program = (
        "try:\n    import torchvision\nexcept AssertionError as e:\n    out['error'] = str(e)\n"
        "out['installed'] = any(type(f).__name__ == 'Finder' for f in sys.meta_path)"
    )
    out = run(site, program, EDGE_INFER_TORCH_HOOK="0")
    assert out == {"error": "operator does not exist", "installed": False}


def test_torchaudio_without_its_libraries_keeps_what_is_python(site) -> None:
    add_torchaudio(site, works=False)
    out = run(
        site,
        "import torchaudio.functional\nout['gain'] = torchaudio.functional.gain(2)\n"
        "out['available'] = torchaudio._extension.AVAILABLE\nout['done'] = hook.done",
    )
    assert out["gain"] == 4
    assert out["available"] is False
    assert list(out["done"]) == ["torchaudio"]


ABSENT = """
import importlib.metadata as metadata, importlib.util
def version():
    try:
        return metadata.version("torchcodec")
    except metadata.PackageNotFoundError:
        return None
def imported():
    try:
        import torchcodec
        return True
    except ImportError:
        return False
steps = {"version": version, "imported": imported,
         "spec": lambda: importlib.util.find_spec("torchcodec") is not None,
         "listed": lambda: "torchcodec" in [d.metadata["Name"] for d in metadata.distributions()]}
for name in ORDER:
    out[name] = steps[name]()
out["done"] = hook.done
"""


@pytest.mark.parametrize(
    "order",
    [["spec", "version", "imported", "listed"], ["version", "listed", "spec", "imported"],
     ["imported", "version", "spec", "listed"]],
)  # fmt: skip
def test_a_torchcodec_for_cuda_is_absent_in_every_way_of_asking(site, order) -> None:
    add_torchcodec(site, CUDA_LIBRARY)
    out = run(site, f"ORDER = {order}\n{ABSENT}")
    assert list(out.pop("done")) == ["torchcodec"]
    assert not any(out.values()), out


@pytest.mark.parametrize("why", ["for the CPU", "torch for CUDA"])
def test_healthy_packages_are_left_alone(site, why) -> None:
    add_torchvision(site, works=True)
    add_torchaudio(site, works=True)
    add_torchcodec(site, CPU_LIBRARY if why == "for the CPU" else CUDA_LIBRARY)
    if why == "torch for CUDA":
        write(site, {"torch/lib/libtorch_cuda.so": CUDA_LIBRARY})
    out = run(
        site,
        "from importlib.machinery import PathFinder, SourceFileLoader\n"
        "import torchvision, torchaudio, torchcodec\n"
        "out['kept'] = torchvision._meta_registrations.kept\n"
        "out['audio'] = torchaudio._extension.AVAILABLE\nout['codec'] = torchcodec.loaded\n"
        "out['loaders'] = all(type(m.__loader__) is SourceFileLoader for n, m in "
        "sys.modules.items() if n.startswith(hook.PACKAGES))\n"
        "out['paths'] = PathFinder in sys.meta_path\nout['done'] = hook.done",
    )
    assert out["done"] == {}
    assert all(value for name, value in out.items() if name != "done"), out


def test_the_hook_imports_next_to_nothing(site) -> None:
    """At start nothing but itself is imported; other packages are found as always."""
    out = run(
        site,
        "out['added'] = sorted(set(sys.modules) & {'typing', 'glob', 'ctypes', 'importlib.util'})\n"
        "import colorsys\nout['found'] = colorsys.__name__\n"
        "hook.install()\n"
        "out['finders'] = sum(type(f).__name__ == 'Finder' for f in sys.meta_path)",
    )
    assert out == {"added": [], "found": "colorsys", "finders": 1}


def test_absent_packages_stay_absent(site) -> None:
    out = run(
        site,
        "import importlib.util\n"
        "out['specs'] = [importlib.util.find_spec(n) is None for n in hook.PACKAGES]\n"
        "out['done'] = hook.done",
    )
    assert out == {"specs": [True, True, True], "done": {}}


def test_the_installed_copy_is_this_one() -> None:
    """Python loads the copy beside the package, which an installation puts there."""
    found = subprocess.run(
        [sys.executable, "-c",
         "import sys; m = sys.modules.get('edge_infer_companions'); print(m and m.__file__)"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.strip()  # fmt: skip
    if found == "None":
        pytest.fail("edge_infer_companions.pth is not installed: install edge-infer again")
    assert Path(found).read_text() == (ROOT / "src/edge_infer_companions.py").read_text()
