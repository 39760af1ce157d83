"""Checkpoint folders: configuration, tensors and packed matrices, validated from headers alone.

Opens folders in the packed layout and plain Hugging Face folders alike. Weights are never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_infer.checkpoint import layout
from edge_infer.checkpoint.safetensors_io import ALIGNMENT, TensorInfo, parse_json, read_header
from edge_infer.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Self

QUANT_METHOD = "cpu_int4"
VERSIONS = {1: (4, 8), 2: (4, 6, 8)}  # of the format, and the bits that it knows
CONFIG_LIMIT = 16 << 20
INDEX_LIMIT = 100_000_000
DIMENSION_LIMIT = 1 << 31
EXPERTS_LIMIT = 1 << 16


@dataclass(frozen=True)
class PackedMatrix:
    """One module in the packed layout: logical [n, k], or [experts, n, k] when stacked."""

    name: str
    n: int
    k: int
    bits: int
    group_size: int
    codes: TensorInfo
    scales: TensorInfo
    minimums: TensorInfo | None
    experts: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and minimums."""
        extra = self.minimums.nbytes if self.minimums else 0
        return self.codes.nbytes + self.scales.nbytes + extra


@dataclass(frozen=True)
class Checkpoint:
    """An opened model folder.

    ``tensors`` has every tensor of the folder by name; ``matrices`` every packed module by module
    name (empty for an unquantized folder); ``files`` the safetensors files.
    """

    path: Path
    config: dict[str, Any]
    files: list[Path]
    tensors: dict[str, TensorInfo]
    matrices: dict[str, PackedMatrix]

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Validates headers and shapes of a folder.

        Raises CheckpointError for anything missing, damaged or inconsistent, UnsupportedError for a
        quantization that this build does not read.
        """
        folder = Path(path)
        config = read_config(folder)
        files, tensors = open_tensors(folder)
        return cls(folder, config, files, tensors, _matrices(config, tensors, folder))


def read_json_file(path: Path, limit: int) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes."""
    try:
        with open(path, "rb") as f:
            raw = f.read(limit + 1)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}.") from None
    if len(raw) > limit:
        raise CheckpointError(f"{path} is larger than {limit} bytes: not a genuine file.")
    value = parse_json(raw, str(path))
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object.")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise CheckpointError(
            f"{folder} {what}.",
            remedy="Give a folder with config.json and safetensors, or a GGUF file.",
        )
    path = folder / "config.json"
    ggufs = [] if path.exists() else sorted(p.name for p in folder.glob("*.gguf"))
    if ggufs:
        raise CheckpointError(
            f"{folder} has no config.json, but {len(ggufs)} GGUF files.",
            remedy=f"Give the path of one, such as {folder / ggufs[0]}.",
        )
    if not path.exists():
        raise CheckpointError(
            f"{folder.absolute()} has no config.json: it is not a model folder.",
            remedy="Give a folder with config.json and safetensors, or a GGUF file.",
        )
    return read_json_file(path, CONFIG_LIMIT)


def open_tensors(folder: Path) -> tuple[list[Path], dict[str, TensorInfo]]:
    """The safetensors files of a folder and all their tensors, one file or sharded."""
    single = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if single.exists() or not index.exists():
        files = [single] if single.exists() else _loose_files(folder)
        tensors: dict[str, TensorInfo] = {}
        for file in files:
            for name, info in read_header(file)[0].items():
                if name in tensors:
                    raise CheckpointError(
                        f"tensor {name!r} is in both {tensors[name].file.name} and {file.name}."
                    )
                tensors[name] = info
        return files, tensors
    weight_map = read_json_file(index, INDEX_LIMIT).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map.")
    names: list[str] = sorted({str(v) for v in weight_map.values()})
    for shard in names:
        if shard in ("", ".", "..") or "/" in shard or "\\" in shard or "\0" in shard:
            raise CheckpointError(f"{index} points outside the folder: {shard[:120]!r}.")
    missing = [s for s in names if not (folder / s).is_file()]
    if missing:
        listed = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise CheckpointError(
            f"{len(missing)} of {len(names)} shards of {folder} are missing: {listed}.",
            remedy="Fetch the missing files.",
        )
    headers = {shard: read_header(folder / shard)[0] for shard in names}
    tensors = {}
    for name, shard in weight_map.items():
        if name not in headers[shard]:
            raise CheckpointError(f"tensor {name!r} is not in {shard}, where the index puts it.")
        tensors[name] = headers[shard][name]
    return [folder / s for s in names], tensors


def _loose_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    # "consolidated" files repeat the model under other names
    files = [f for f in files if not f.name.startswith("consolidated")] or files
    if not files:
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        hint = f" (it has {pickled[0]}, which is not read: pickle can run code)" if pickled else ""
        raise CheckpointError(
            f"{folder} has no safetensors files{hint}.",
            remedy="Save the model with safe_serialization=True.",
        )
    return files


def quantization_of(config: dict[str, Any]) -> dict[str, Any] | None:
    """The quantization_config of a folder, when it is ours; None when there is none.

    Raises UnsupportedError for another method or a newer version.
    """
    q = config.get("quantization_config")
    if q is None:
        return None
    if not isinstance(q, dict):
        raise CheckpointError("quantization_config of config.json is not an object.")
    method, version = q.get("quant_method"), q.get("version")
    if method != QUANT_METHOD:
        raise UnsupportedError(
            f"the checkpoint is quantized with quant_method {str(method)[:60]!r}.",
            remedy=f"This build reads {QUANT_METHOD!r} and unquantized folders; "
            "convert from the unquantized original or a GGUF.",
        )
    if type(version) is not int or version not in VERSIONS:
        raise UnsupportedError(
            f"the checkpoint has {QUANT_METHOD} version {str(version)[:40]}; "
            f"this build reads versions up to {max(VERSIONS)}.",
            remedy="Convert it again, or update edge-infer.",
        )
    return q


def format_version(bits: Iterable[int]) -> int:
    """The oldest version of the format that knows these bits: older builds read all they can."""
    used = set(bits)
    return min(version for version, known in VERSIONS.items() if used <= set(known))


def _matrices(
    config: dict[str, Any], tensors: dict[str, TensorInfo], folder: Path
) -> dict[str, PackedMatrix]:
    q = quantization_of(config)
    if q is None:
        return {}
    modules = q.get("modules")
    if not isinstance(modules, dict):
        raise CheckpointError(f"quantization_config of {folder} has no modules.")
    out = {n: _matrix(n, entry, tensors) for n, entry in modules.items()}
    for matrix in out.values():
        if matrix.bits not in VERSIONS[q["version"]]:
            raise CheckpointError(
                f"module {matrix.name[:120]!r} has {matrix.bits} bits, which version "
                f"{q['version']} of {QUANT_METHOD} does not have."
            )
    for name in tensors:
        module, _, kind = name.rpartition(".")
        if kind in ("codes", "scales", "minimums") and module not in out:
            raise CheckpointError(
                f"tensor {name!r} belongs to a module that quantization_config does not list."
            )
    return out


@dataclass(frozen=True)
class StoredForm:
    """How a packed module is stored: an entry of ``quantization_config.modules``, validated."""

    name: str
    n: int
    k: int
    bits: int
    group_size: int
    symmetric: bool
    experts: int | None = None

    @classmethod
    def of(cls, name: str, entry: Any) -> Self:
        """Raises CheckpointError for an entry that makes no sense."""
        where = f"module {name[:120]!r} of quantization_config"
        if not isinstance(entry, dict):
            raise CheckpointError(f"{where} is not an object.")
        bits, group, symmetric = entry.get("bits"), entry.get("group_size"), entry.get("symmetric")
        n, k, experts = entry.get("n"), entry.get("k"), entry.get("experts")
        if bits not in layout.BITS or type(bits) is not int:
            raise CheckpointError(f"{where} has bits {str(bits)[:40]}; known: 4, 6, 8.")
        if group not in layout.GROUP_SIZES or type(group) is not int:
            raise CheckpointError(f"{where} has group_size {str(group)[:40]}; known: 32, 64, 128.")
        if type(symmetric) is not bool:
            raise CheckpointError(f"{where} has symmetric {str(symmetric)[:40]}; true or false.")
        for label, value, limit in (("n", n, DIMENSION_LIMIT), ("k", k, DIMENSION_LIMIT)):
            if type(value) is not int or not 0 < value < limit:
                raise CheckpointError(f"{where} has {label} {str(value)[:40]}.")
        if experts is not None and (type(experts) is not int or not 0 < experts < EXPERTS_LIMIT):
            raise CheckpointError(f"{where} has experts {str(experts)[:40]}.")
        assert isinstance(n, int) and isinstance(k, int)
        return cls(name, n, k, bits, group, symmetric, experts)


def _matrix(name: str, entry: Any, tensors: dict[str, TensorInfo]) -> PackedMatrix:
    form = StoredForm.of(name, entry)
    n, k, bits, group = form.n, form.k, form.bits, form.group_size
    lead = () if form.experts is None else (form.experts,)
    scales_shape = lead + layout.scales_shape(n, k, group)
    codes_shape = lead + layout.codes_shape(n, k, bits, group)
    codes = _part(name, "codes", layout.STORED_DTYPE[bits], codes_shape, ALIGNMENT, tensors)
    scales = _part(name, "scales", "F16", scales_shape, 32, tensors)
    minimums = None
    if not form.symmetric:
        minimums = _part(name, "minimums", "F16", scales_shape, 32, tensors)
    elif f"{name}.minimums" in tensors:
        raise CheckpointError(f"module {name[:120]!r} is symmetric, yet {name}.minimums exists.")
    return PackedMatrix(name, n, k, bits, group, codes, scales, minimums, form.experts)


def _part(
    module: str,
    kind: str,
    dtype: str,
    shape: tuple[int, ...],
    alignment: int,
    tensors: dict[str, TensorInfo],
) -> TensorInfo:
    info = tensors.get(f"{module}.{kind}")
    if info is None:
        raise CheckpointError(f"tensor {module}.{kind} is missing.")
    if info.dtype != dtype or info.shape != shape:
        raise CheckpointError(
            f"tensor {info.name} is {info.dtype} {info.shape}; its module needs {dtype} {shape}."
        )
    if info.offset % alignment:
        raise CheckpointError(
            f"tensor {info.name} starts at byte {info.offset}, not a multiple of {alignment}.",
            remedy="The file was rewritten by another tool; convert the model again.",
        )
    return info
