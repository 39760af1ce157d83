"""How loaded tensors reach a layer: kept by reference, so that the file's map stays the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from edge_infer.errors import CheckpointError, UnsupportedError
from edge_infer.vllm_plugin import flags, mapped_files
from edge_infer.vllm_plugin.paths import WeightPath
from edge_infer.vllm_plugin.segments import Form, Segment


class Parts(dict[int, dict[str, torch.Tensor]]):
    """Loaded tensors by the place of their shard in the layer, and whether the layer has them."""

    taken = False

    def __init__(self) -> None:
        super().__init__()
        self.guards: set[Any] = set()


ATTRIBUTE = "edge_infer_parts"
_QKV = {"q": 0, "k": 1, "v": 2}


def refuse_sharding(layer: torch.nn.Module, name: str) -> None:
    """Raises UnsupportedError when vLLM wants to split the layer over several ranks."""
    ranks = getattr(layer, "tp_size", 1)
    if ranks > 1:
        raise UnsupportedError(
            f"tensor parallelism over {ranks} ranks would cut the packed matrix {name}.",
            remedy="Use tensor_parallel_size=1: one process drives all CPUs of the machine.",
        )


def expect(layer: torch.nn.Module, forms: Sequence[Form]) -> None:
    """Registers empty parameters, one for each kind of tensor, that take what is loaded.

    Their ``weight_loader`` keeps the tensor that vLLM's loader delivers, which is a view of the
    mapped file, instead of copying it (EDGE_INFER_VLLM_MAPPED).
    """
    parts = Parts()
    setattr(layer, ATTRIBUTE, parts)
    for kind in _kinds(forms):

        def keep(
            param: torch.nn.Parameter,
            loaded: torch.Tensor,
            shard: Any = None,
            kind: str = kind,
            **_: Any,
        ) -> None:
            if parts.taken:
                raise UnsupportedError(
                    "packed weights cannot be loaded again into a running model.",
                    remedy="Start vLLM again on the other checkpoint.",
                )
            parts.setdefault(_order(shard), {})[kind] = taken(loaded, parts.guards)

        parameter = torch.nn.Parameter(torch.empty(0, dtype=torch.uint8), requires_grad=False)
        parameter.weight_loader = keep
        # Models that store a fused QKV head by head reorder what is loaded along this one.
        parameter.output_dim = forms[0].output_dim(kind)
        layer.register_parameter(kind, parameter)


def taken(loaded: torch.Tensor, guards: set[Any]) -> torch.Tensor:
    """A loaded tensor as the layer keeps it: itself, or a copy (EDGE_INFER_VLLM_MAPPED=0).

    `guards` gets the guard of the file that it is a view of.
    """
    guard = mapped_files.guard(loaded)
    if guard is not None:
        guards.add(guard)
    if not flags.enabled("EDGE_INFER_VLLM_MAPPED"):
        return loaded.clone()
    return loaded


def _kinds(forms: Sequence[Form]) -> list[str]:
    """The kinds of tensors that these modules have, each once."""
    return list(dict.fromkeys(kind for form in forms for kind in form.kinds))


def _order(shard: Any) -> int:
    """Where a shard lies in its layer: q, k, v; a number; several numbers; or the whole layer."""
    if shard is None:
        return 0
    if isinstance(shard, str):
        return _QKV[shard]
    return int(min(shard)) if isinstance(shard, tuple) else int(shard)


def collect(layer: torch.nn.Module, forms: Sequence[Form]) -> list[Segment] | None:
    """The segments of a loaded layer, checked; None when they were already taken.

    Raises CheckpointError for tensors that are missing or do not fit their module's form.
    """
    parts: Parts | None = getattr(layer, ATTRIBUTE, None)
    if parts is None:
        return None
    found = [parts[order] for order in sorted(parts)]
    if len(found) != len(forms):
        raise CheckpointError(
            f"{len(found)} of {len(forms)} matrices were loaded for "
            f"{', '.join(form.name for form in forms)}."
        )
    for form, tensors in zip(forms, found, strict=True):
        for kind, tensor in tensors.items():
            form.check(kind, tensor)
    delattr(layer, ATTRIBUTE)
    parts.taken = True
    for kind in _kinds(forms):
        if kind in layer._parameters:
            delattr(layer, kind)
    segments = []
    for form, tensors in zip(forms, found, strict=True):
        segments.append(guarded(form.segment(tensors), tensors, parts.guards))
        tensors.clear()
    mapped_files.check(parts.guards)
    return segments


def guarded(segment: Segment, loaded: dict[str, torch.Tensor], guards: set[Any]) -> Segment:
    """`segment` with the guards of its files, where it is a view of them and no copy."""
    mapped = flags.enabled("EDGE_INFER_VLLM_MAPPED")
    views = mapped and any(segment.codes is tensor for tensor in loaded.values())
    return replace(segment, guards=tuple(guards)) if views else segment


def prepare(layer: torch.nn.Module, path: WeightPath, segments: list[Segment]) -> None:
    """Gives the layer to its weight path.

    Raises WeightsLostError when a file could not be read any more while the path repacked it.
    """
    layer.edge_infer_path = path
    path.prepare(layer, segments)
    mapped_files.check(guard for segment in segments for guard in segment.guards)
