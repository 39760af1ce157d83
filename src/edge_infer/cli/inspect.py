"""``edge-infer inspect``: what a model is, from its headers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_infer.cli.common import JsonOption, command, megabytes, print_json

if TYPE_CHECKING:
    from edge_infer.checkpoint.inspect import Inspection


def _count(n: int) -> str:
    return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.1f} M"


def _source(provenance: dict[str, Any] | None) -> str:
    """Where the checkpoint comes from, in one line."""
    if not provenance:
        return "unknown"
    source, tool = provenance.get("source"), provenance.get("tool")
    words = []
    if isinstance(source, dict):
        words += [str(source[key]) for key in ("kind", "name") if source.get(key)]
    if isinstance(tool, dict):
        words.append(f"by {tool.get('name')} {tool.get('version')}")
    if provenance.get("created"):
        words.append(str(provenance["created"]))
    return " ".join(words) or "unknown"


def _print(found: Inspection) -> None:
    engine = "native engine" if found.native else "not in the native engine"
    shape = [
        f"{found.layers} layers",
        f"hidden {found.hidden_size}",
        f"vocabulary {found.vocab_size}",
    ]
    if found.tied is not None:
        shape.append("tied head" if found.tied else "head of its own")
    print(f"Path          {found.path} ({found.kind})")
    print(f"Architecture  {found.architecture} [{found.model_type}], {engine}")
    print(f"Shape         {', '.join(shape)}")
    print(f"Parameters    {_count(found.parameters)}")
    print(f"Weights       {megabytes(found.bytes)}, {found.bits_per_weight:.2f} bits per weight")
    print(f"Context       {found.context_length or 'unknown'}")
    print(f"Source        {_source(found.provenance)}")
    print(f"\n{'group':<12}{'format':<36}{'tensors':>8}{'parameters':>13}{'size':>10}{'bits':>8}")
    for group in found.groups:
        print(
            f"{group.role:<12}{group.format:<36}{group.tensors:>8}{_count(group.parameters):>13}"
            f"{megabytes(group.bytes):>10}{group.bits_per_weight:>8.2f}"
        )


@command
def inspect(
    path: Annotated[Path, typer.Argument(help="A packed or Hugging Face folder, or a GGUF file.")],
    as_json: JsonOption = False,
) -> None:
    """Show architecture, formats, bits per weight and size, without loading weights."""
    from edge_infer.checkpoint.inspect import inspect as inspect_checkpoint

    found = inspect_checkpoint(path)
    if as_json:
        print_json(found)
    else:
        _print(found)
