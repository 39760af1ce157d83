"""torchvision, torchaudio and torchcodec beside a CPU build of torch, when they are CUDA builds.

PyPI has only CUDA builds of these three. Beside a CPU torch their native parts cannot be loaded,
and importing them fails in ways that transformers and vLLM do not expect. Python loads this module
when it starts (``edge_infer_companions.pth``), because a program may import them long before it
imports anything of ours. It only puts a finder in front of ``sys.meta_path``, which looks closer
when one of the three is about to be imported, and changes nothing of a healthy one:

- torchvision: the modules that describe its native operations to torch are left empty when these
  operations could not be loaded; transforms, models and image functions in Python work;
- torchaudio: its native libraries count as not installed when they cannot be loaded; what is
  written in Python works;
- torchcodec, which is native code throughout, is absent for ``import``, ``find_spec`` and
  ``importlib.metadata`` when it is a CUDA build and torch is not.

EDGE_INFER_TORCH_HOOK=0 switches this off. ``done`` says what was done in this process. Nothing here
imports torch, and nothing beside ``sys`` is imported at start.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would cost more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

FLAG = "EDGE_INFER_TORCH_HOOK"
PACKAGES = ("torchvision", "torchaudio", "torchcodec")
_NATIVE_DESCRIPTIONS = ("torchvision._meta_registrations", "torchvision._autograd_registrations")
_AUDIO_LOADER = "torchaudio._extension.utils"
_CODEC = "torchcodec"

done: dict[str, str] = {}
"""What was done, by package; empty where nothing was needed."""


def torch_folder() -> str | None:
    """Where torch would be imported from. Imports nothing."""
    return _folder("torch")


def is_cuda_torch(folder: str) -> bool:
    """Whether the torch in that folder was built for CUDA."""
    import os

    return os.path.exists(os.path.join(folder, "lib", "libtorch_cuda.so"))


def needs_cuda_torch(folder: str) -> bool:
    """Whether a native library in that folder, or one level below it, links to CUDA's torch."""
    import glob
    import os

    found = []
    for pattern in ("*.so", os.path.join("*", "*.so")):
        found += glob.glob(os.path.join(glob.escape(folder), pattern))
    for path in sorted(found, key=os.path.getsize):
        with open(path, "rb") as file:
            # The name as an entry of the library's table of names.
            if b"\0libtorch_cuda.so\0" in file.read():
                return True
    return False


def mismatched(package: str) -> bool:
    """Whether ``package`` is installed as a CUDA build beside a torch that is none."""
    torch, folder = torch_folder(), _folder(package)
    if torch is None or folder is None or is_cuda_torch(torch):
        return False
    return needs_cuda_torch(folder)


def _folder(package: str) -> str | None:
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return places[0] if places else None


class _Empty:  # with the methods of importlib.abc.Loader, which is not imported for their sake
    """Loads a module with nothing in it."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class _WithoutLibraries:
    """Loads torchaudio's module that loads native libraries, and lets it find none."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        if callable(getattr(module, "_load_lib", None)):
            module._load_lib = lambda lib: False
            done["torchaudio"] = "native libraries left out"


class _PathsWithout:
    """Python's own search of ``sys.path``, for which some packages are not there."""

    def __init__(self, finder: Any, hidden: set[str]) -> None:
        self._finder = finder
        self._hidden = hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self._hidden:
            return None
        return self._finder.find_spec(fullname, path, target)

    def find_distributions(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for found in self._finder.find_distributions(*args, **kwargs):
            name = getattr(found, "_normalized_name", None) or found.metadata["Name"]
            if name.replace("-", "_").lower() not in self._hidden:
                yield found


class Finder:
    """In front of ``sys.meta_path``: finds the replacements, and nothing else."""

    def __init__(self) -> None:
        self._checked = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in _NATIVE_DESCRIPTIONS:
            return self._description(fullname)
        if fullname == _AUDIO_LOADER:
            return self._audio(fullname, path)
        if fullname == _CODEC:
            self._codec()
        return None

    def find_distributions(self, context: Any = None) -> tuple[()]:
        # Asked before the search of sys.path is, which from here on leaves torchcodec out.
        if getattr(context, "name", None) == _CODEC:
            self._codec()
        return ()

    def _description(self, fullname: str) -> ModuleSpec | None:
        extension = sys.modules.get("torchvision.extension")
        has_operations = getattr(extension, "_has_ops", None)
        if has_operations is None or has_operations():
            return None
        from importlib.machinery import ModuleSpec

        done["torchvision"] = "native operations left out"
        loader: Any = _Empty()
        return ModuleSpec(fullname, loader, origin="edge_infer_companions")

    def _audio(self, fullname: str, path: Any) -> ModuleSpec | None:
        import ctypes
        import glob
        import os
        from importlib.machinery import PathFinder

        spec: Any = PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None or spec.origin is None:
            return None
        lib = os.path.join(os.path.dirname(os.path.dirname(spec.origin)), "lib")
        try:
            # torch is loaded by now, and the module's first act is to load the same libraries.
            for name in ("_torchaudio", "libtorchaudio"):
                for library in glob.glob(os.path.join(glob.escape(lib), name + "*.so")):
                    ctypes.CDLL(library)
        except OSError:
            spec.loader = _WithoutLibraries(spec.loader)
            return spec
        return None

    def _codec(self) -> None:
        if self._checked:
            return
        self._checked = True
        if not mismatched(_CODEC):
            return
        from importlib.machinery import PathFinder

        for at, finder in enumerate(sys.meta_path):
            if finder is PathFinder:
                # In place: the search that is under way goes on with the new one.
                sys.meta_path[at] = _PathsWithout(PathFinder, {_CODEC})
                done["torchcodec"] = "reported as absent"


def install() -> None:
    """Puts the finder in front, once, unless the flag says no."""
    import os

    if os.environ.get(FLAG, "1") in ("0", "off", "false", "no"):
        return
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
