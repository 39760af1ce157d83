"""What a model file or folder holds, from headers alone: weights are never read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from edge_infer.checkpoint.architectures import architecture, model_type, runs_natively
from edge_infer.checkpoint.gguf_config import ARCHITECTURES
from edge_infer.checkpoint.gguf_header import GgufHeader, is_gguf, read_header
from edge_infer.checkpoint.reader import Checkpoint, read_json_file
from edge_infer.checkpoint.selection import in_tower
from edge_infer.errors import CheckpointError

_PROVENANCE_LIMIT = 16 << 20


class TensorGroup(BaseModel):
    """Tensors of one role and one format."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(description="embedding, head, attention, mlp, experts, norms, towers, other")
    format: str = Field(description='e.g. "4-bit, groups of 32, with minimum", "BF16", "Q4_K"')
    tensors: int = Field(description="matrices and vectors, a packed module counting once")
    parameters: int
    bytes: int
    bits_per_weight: float = Field(description="realised: scales, minimums and padding included")


class SourceFile(BaseModel):
    """A weight file and its size in bytes."""

    model_config = ConfigDict(extra="forbid")

    name: str
    bytes: int


class Inspection(BaseModel):
    """Everything `edge-infer inspect` prints."""

    model_config = ConfigDict(extra="forbid")

    path: str
    kind: str = Field(description="packed, huggingface or gguf")
    architecture: str
    model_type: str
    native: bool = Field(description="whether the native engine has the architecture")
    parameters: int
    bytes: int = Field(description="weights in memory, as stored")
    bits_per_weight: float
    context_length: int | None
    layers: int | None
    hidden_size: int | None
    vocab_size: int | None
    tied: bool | None = Field(description="the head is the embedding; None: there is neither")
    groups: list[TensorGroup]
    files: list[SourceFile]
    quantization: dict[str, Any] | None = Field(description="quantization_config without modules")
    provenance: dict[str, Any] | None


class _Item(NamedTuple):
    name: str
    format: str
    parameters: int
    nbytes: int


def inspect(path: str | Path) -> Inspection:
    """Describes a packed folder, a Hugging Face folder or a GGUF file.

    Raises CheckpointError and UnsupportedError as opening it would.
    """
    path = Path(path)
    if path.is_file():
        return _inspect_gguf(_open_gguf(path))
    return _inspect_folder(Checkpoint.open(path))


def tensor_formats(path: str | Path) -> dict[str, str]:
    """The format of every tensor by name, a packed module counting as one tensor.

    Raises CheckpointError and UnsupportedError as opening it would.
    """
    path = Path(path)
    if path.is_file():
        items = _gguf_items(_open_gguf(path))
    else:
        items = _folder_items(Checkpoint.open(path))
    return {item.name: item.format for item in items}


def _open_gguf(path: Path) -> GgufHeader:
    if not is_gguf(path):
        raise CheckpointError(f"{path} is a file but no GGUF.")
    return read_header(path)


_ROLES: list[tuple[str, re.Pattern[str]]] = [
    ("experts", re.compile(r"(^|\.)experts(\.|$)|_exps(\.|$)")),
    ("head", re.compile(r"(^|\.)lm_head(\.|$)|^output\.")),
    ("embedding", re.compile(r"embed_tokens|token_embd|(^|\.)wte(\.|$)|word_embeddings")),
    ("norms", re.compile(r"norm|(^|\.)ln_")),
    ("attention", re.compile(r"attn|attention")),
    ("mlp", re.compile(r"mlp|ffn|feed_forward|block_sparse_moe")),
]


def role_of(name: str) -> str:
    """The part of the model that a tensor belongs to, by its Hugging Face or GGUF name."""
    if in_tower(name):
        return "towers"
    return next((role for role, pattern in _ROLES if pattern.search(name)), "other")


def _groups(items: Iterable[_Item]) -> list[TensorGroup]:
    sums: dict[tuple[str, str], list[int]] = {}
    for item in items:
        s = sums.setdefault((role_of(item.name), item.format), [0, 0, 0])
        s[0] += 1
        s[1] += item.parameters
        s[2] += item.nbytes
    order = [role for role, _ in _ROLES]
    order = ["embedding", *(r for r in order if r != "embedding"), "towers", "other"]
    ranked = sorted(sums.items(), key=lambda kv: (order.index(kv[0][0]), -kv[1][2]))
    return [
        TensorGroup(
            role=role,
            format=form,
            tensors=count,
            parameters=parameters,
            bytes=nbytes,
            bits_per_weight=_bits(nbytes, parameters),
        )
        for (role, form), (count, parameters, nbytes) in ranked
    ]


def _bits(nbytes: int, parameters: int) -> float:
    return round(8 * nbytes / parameters, 4) if parameters else 0.0


def _positive(config: dict[str, Any], *keys: str) -> int | None:
    """The first of some keys that holds a count, in the config or its text part."""
    for place in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(place, dict):
            for key in keys:
                value = place.get(key)
                if type(value) is int and value > 0:
                    return value
    return None


def _tied(names: Iterable[str]) -> bool | None:
    roles = {role_of(n) for n in names}
    return None if "embedding" not in roles else "head" not in roles


def _folder_items(c: Checkpoint) -> list[_Item]:
    items, parts = [], set()
    for m in c.matrices.values():
        form = f"{m.bits}-bit, groups of {m.group_size}"
        if m.minimums:
            form += ", with minimum"
            parts.add(m.minimums.name)
        parts |= {m.codes.name, m.scales.name}
        items.append(_Item(m.name, form, (m.experts or 1) * m.n * m.k, m.nbytes))
    items += [
        _Item(t.name, t.dtype, math.prod(t.shape), t.nbytes)
        for t in c.tensors.values()
        if t.name not in parts
    ]
    return items


def _inspect_folder(c: Checkpoint) -> Inspection:
    quantization = c.config.get("quantization_config")
    if isinstance(quantization, dict):
        quantization = {k: v for k, v in quantization.items() if k != "modules"}
    provenance = c.path / "provenance.json"
    return _result(
        path=c.path,
        kind="packed" if quantization else "huggingface",
        config=c.config,
        items=_folder_items(c),
        files=c.files,
        quantization=quantization,
        provenance=read_json_file(provenance, _PROVENANCE_LIMIT) if provenance.exists() else None,
    )


def _gguf_items(h: GgufHeader) -> list[_Item]:
    return [_Item(t.name, t.type, math.prod(t.shape), t.nbytes) for t in h.tensors.values()]


def _inspect_gguf(h: GgufHeader) -> Inspection:
    arch = str(h.fields.get("general.architecture", "unknown"))
    known = ARCHITECTURES.get(arch)
    embedding = h.tensors.get("token_embd.weight")
    config = {
        "architectures": [known[1] if known else arch],
        "model_type": known[0] if known else arch,
        "max_position_embeddings": h.fields.get(f"{arch}.context_length"),
        "num_hidden_layers": h.fields.get(f"{arch}.block_count"),
        "hidden_size": h.fields.get(f"{arch}.embedding_length"),
        "vocab_size": embedding.shape[0] if embedding else None,
    }
    origin = {
        k.removeprefix("general."): v
        for k, v in h.fields.items()
        if k.startswith("general.") and isinstance(v, (str, int, float))
    }
    return _result(
        path=h.path,
        kind="gguf",
        config=config,
        items=_gguf_items(h),
        files=[h.path],
        quantization=None,
        provenance={"format": {"gguf_version": h.version}, "source": origin},
    )


def _result(
    *,
    path: Path,
    kind: str,
    config: dict[str, Any],
    items: list[_Item],
    files: list[Path],
    quantization: dict[str, Any] | None,
    provenance: dict[str, Any] | None,
) -> Inspection:
    parameters, nbytes = sum(i.parameters for i in items), sum(i.nbytes for i in items)
    return Inspection(
        path=str(path),
        kind=kind,
        architecture=architecture(config),
        model_type=model_type(config),
        native=runs_natively(config),
        parameters=parameters,
        bytes=nbytes,
        bits_per_weight=_bits(nbytes, parameters),
        context_length=_positive(config, "max_position_embeddings", "n_positions", "n_ctx"),
        layers=_positive(config, "num_hidden_layers", "n_layer", "num_layers"),
        hidden_size=_positive(config, "hidden_size", "n_embd", "d_model"),
        vocab_size=_positive(config, "vocab_size"),
        tied=_tied(i.name for i in items),
        groups=_groups(items),
        files=[SourceFile(name=f.name, bytes=f.stat().st_size) for f in files],
        quantization=quantization,
        provenance=provenance,
    )
