"""Conversion of a model to the packed format: streaming, atomic, with provenance.

Memory stays bounded for tensors of any size: rows are read, packed and written in panels of about
two million values. The result appears under its name only when it is complete.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_infer.checkpoint import layout
from edge_infer.checkpoint.allocation import Importance, allocate
from edge_infer.checkpoint.architectures import architecture, runs_natively
from edge_infer.checkpoint.fingerprint import Fingerprints, tool_version
from edge_infer.checkpoint.folder import Progress, require_empty, require_space, write_json
from edge_infer.checkpoint.gguf_header import is_gguf
from edge_infer.checkpoint.quantize import Packed, quantize
from edge_infer.checkpoint.reader import QUANT_METHOD, format_version
from edge_infer.checkpoint.safetensors_io import (
    SafetensorsWriter,
    TensorSpec,
    plan_file,
    storage_error,
)
from edge_infer.checkpoint.selection import Options, Packing, select
from edge_infer.checkpoint.source import Source, SourceTensor, panel_rows
from edge_infer.checkpoint.staging import staged_folder
from edge_infer.errors import CheckpointError, ConfigError


def open_source(path: str | Path) -> Source:
    """A GGUF file or a Hugging Face folder, by what it is."""
    path = Path(path)
    if path.is_file():
        if not is_gguf(path):
            raise CheckpointError(
                f"{path} is a file but no GGUF.",
                remedy="Give a GGUF file, or the folder that holds config.json.",
            )
        from edge_infer.checkpoint.gguf_source import open_gguf

        return open_gguf(path)
    from edge_infer.checkpoint.hf_source import open_folder

    return open_folder(path)


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    bits: int | None = None,
    group_size: int = 32,
    symmetric: bool = True,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    module_bits: Sequence[tuple[str, int]] = (),
    importance: Importance | None = None,
    target_bpw: float | None = None,
    progress: Progress | None = None,
    notes: list[str] | None = None,
    origin: str | None = None,
) -> Path:
    """Converts a GGUF file or an unquantized Hugging Face folder; returns the new folder.

    ``bits`` 4, 6 or 8; None means 4 for a Hugging Face folder, while a GGUF keeps its codes: types
    of 4 bits stay 4-bit, types above become 8-bit. ``bits`` makes what is larger that small too.
    ``symmetric`` False stores a minimum beside each scale of 4 or 6 bits. Codes that are kept keep
    their form and their groups of 32 whatever ``group_size`` says. ``include`` and ``exclude`` are
    patterns of module names (``*.lm_head``): quantize what would be carried over, and the reverse.
    ``module_bits``: (pattern, bits) for modules whose bits differ; of several the last counts.

    ``importance``: the mean square of the input channels of modules, f32 [K] by name (see
    `engine.calibration`); scales are fitted to it. ``target_bpw``: choose bits, group size and
    minimum of every matrix so that the whole model has at most that many bits per weight; then
    ``bits``, ``group_size``, ``symmetric`` and ``module_bits`` must be left alone.

    ``progress(done, total)`` counts bytes of the source. ``notes`` receives sentences for the user.
    ``origin`` names the source in provenance.json (default: its base name).

    Raises CheckpointError, UnsupportedError, ConfigError, and StorageError when there is no space;
    then, and when interrupted, nothing is left at the destination.
    """
    options = Options(
        bits, group_size, symmetric, tuple(include), tuple(exclude), tuple(module_bits)
    )
    options.check()
    destination = Path(destination)
    require_empty(destination)
    src = open_source(source)
    said = list(src.notes)
    given = (bits, group_size, symmetric, options.module_bits)
    if target_bpw is not None and given != (None, 32, True, ()):
        raise ConfigError(
            "target_bpw chooses bits, group_size and symmetric for every matrix.",
            remedy="Leave these out, or target_bpw.",
        )
    job = _Job(src, options, said, importance, target_bpw)
    if not runs_natively(src.config):
        said.append(
            f"The native engine has no architecture {architecture(src.config)!r}: "
            "only vLLM will run this checkpoint."
        )
    require_space(destination, job.size)
    with staged_folder(destination) as folder, Fingerprints(src.files) as fingerprints:
        try:
            job.write_weights(folder / "model.safetensors", progress)
            extras = src.copy_extras(folder)
            write_json(folder / "config.json", job.config())
            write_json(
                folder / "provenance.json",
                {
                    "format": {"quant_method": QUANT_METHOD, "version": job.version},
                    "source": {
                        "kind": src.kind,
                        "name": origin or src.path.resolve().name,
                        "files": fingerprints.result(),
                    },
                    "tool": {"name": "edge-infer", "version": tool_version()},
                    "options": {
                        "bits": bits,
                        "group_size": group_size,
                        "symmetric": symmetric,
                        "include": list(include),
                        "exclude": list(exclude),
                        "module_bits": [list(pair) for pair in module_bits],
                        "calibrated": importance is not None,
                        "target_bpw": target_bpw,
                    },
                    "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                    "extras": sorted(extras),
                    "notes": said,
                },
            )
        except OSError as e:
            raise storage_error(e, folder, job.size) from None
    if notes is not None:
        notes.extend(said)
    return destination


class _Job:
    """The plan of one conversion: what is packed, what is carried, how large it gets."""

    def __init__(
        self,
        source: Source,
        options: Options,
        notes: list[str],
        importance: Importance | None,
        target_bpw: float | None,
    ) -> None:
        self.source, self.options, self.importance = source, options, importance
        self.tied = tie(source, notes)
        self.packings = select(source, options)
        if importance is not None:
            _check_importance(source, self.packings, importance)
        if target_bpw is not None:
            carried = (s for t in source.tensors.values() if t.name not in self.packings
                       for s in self._specs(t))  # fmt: skip
            self.packings = allocate(
                source,
                self.packings,
                target_bpw=target_bpw,
                fixed_bits=8 * sum(s.nbytes for s in carried),
                importance=importance,
            )
        if not self.packings:
            notes.append("No tensor was quantized.")
        kept = [p for p in self.packings.values() if p.keep]
        if kept and (options.group_size != 32 or not options.symmetric):
            notes.append(
                f"{len(kept)} matrices keep the codes of the source, in groups of 32 and in the "
                "form that they have there."
            )
        self.specs = [s for t in source.tensors.values() for s in self._specs(t)]
        self.size = plan_file(self.specs, {"format": "pt"})[2]

    @property
    def version(self) -> int:
        return format_version(p.bits for p in self.packings.values())

    def _specs(self, t: SourceTensor) -> Iterator[TensorSpec]:
        p = self.packings.get(t.name)
        if p is None:
            yield TensorSpec(t.name, t.carried_dtype, t.shape)
            return
        *lead, n, k = t.shape
        scales = (*lead, *layout.scales_shape(n, k, p.group_size))
        codes = (*lead, *layout.codes_shape(n, k, p.bits, p.group_size))
        yield TensorSpec(f"{p.module}.codes", layout.STORED_DTYPE[p.bits], codes)
        yield TensorSpec(f"{p.module}.scales", "F16", scales)
        if not p.symmetric:
            yield TensorSpec(f"{p.module}.minimums", "F16", scales)

    def write_weights(self, path: Path, progress: Progress | None) -> None:
        tensors = self.source.tensors.values()
        done, total = 0, sum(t.nbytes for t in tensors)
        if progress:
            progress(0, total)
        with SafetensorsWriter(path, self.specs, {"format": "pt"}) as writer:
            for t in tensors:
                packing = self.packings.get(t.name)
                pieces = (
                    _carry(t, writer)
                    if packing is None
                    else _pack(t, packing, writer, self.importance)
                )
                for share in pieces:
                    if progress:
                        progress(done + min(int(share * t.nbytes), t.nbytes), total)
                done += t.nbytes
                if progress:
                    progress(done, total)

    def config(self) -> dict[str, Any]:
        """config.json of the result."""
        config = copy.deepcopy(self.source.config)
        if self.tied is not None:
            config["tie_word_embeddings"] = self.tied
            text = config.get("text_config")
            if isinstance(text, dict) and "tie_word_embeddings" in text:
                text["tie_word_embeddings"] = self.tied
        if not self.packings:
            return config  # a plain folder, which any tool reads
        counts = Counter(p.bits for p in self.packings.values())
        most_common = min(counts, key=lambda bits: (-counts[bits], bits))
        modules: dict[str, Any] = {}
        for name, p in self.packings.items():
            *lead, n, k = self.source.tensors[name].shape
            entry = {
                "bits": p.bits,
                "group_size": p.group_size,
                "symmetric": p.symmetric,
                "n": n,
                "k": k,
            }
            if lead:
                entry["experts"] = lead[0]
            modules[p.module] = entry
        config["quantization_config"] = {
            "quant_method": QUANT_METHOD,
            "version": self.version,
            "group_size": self.options.group_size,
            "symmetric": self.options.symmetric,
            "bits": self.options.bits or most_common,
            "modules": modules,
        }
        return config


def _carry(t: SourceTensor, writer: SafetensorsWriter) -> Iterator[float]:
    at = 0
    for piece in t.carried():
        writer.write(t.name, at, piece)
        at += piece.nbytes
        yield at / max(1, t.nbytes)


def _pack(
    t: SourceTensor, p: Packing, writer: SafetensorsWriter, importance: Importance | None
) -> Iterator[float]:
    """Row panels of each expert (or of the one matrix), quantized or repacked, into place."""
    weights = None if importance is None else importance.get(p.module)
    *lead, n, k = t.shape
    step = panel_rows(k)
    at = {"codes": 0, "scales": 0, "minimums": 0}
    for expert in range(lead[0] if lead else 1):
        for start in range(0, n, step):
            first, last = expert * n + start, expert * n + min(start + step, n)
            panel = _keep(t, p, first, last) if p.keep else _quantize(t, p, first, last, weights)
            for kind, array in zip(("codes", "scales", "minimums"), panel, strict=True):
                if array is not None:
                    writer.write(f"{p.module}.{kind}", at[kind], array)
                    at[kind] += array.nbytes
            yield last / max(1, t.rows)


def _quantize(
    t: SourceTensor,
    p: Packing,
    first: int,
    last: int,
    importance: npt.NDArray[np.float32] | None,
) -> Packed:
    values, dtype = t.floats(first, last)
    return quantize(
        values, dtype, bits=p.bits, group_size=p.group_size, symmetric=p.symmetric,
        name=t.name, first_row=first, importance=importance,
    )  # fmt: skip


def _check_importance(source: Source, packings: dict[str, Packing], importance: Importance) -> None:
    """ConfigError unless the importance belongs to this model: its modules and their widths."""
    for name, packing in packings.items():
        found = importance.get(packing.module)
        if found is None:
            raise ConfigError(f"The calibration has no module {packing.module}.")
        if found.shape != (source.tensors[name].k,):
            raise ConfigError(
                f"The calibration has {found.shape} channels for {packing.module}, which has "
                f"{source.tensors[name].k}."
            )


def _keep(t: SourceTensor, p: Packing, first: int, last: int) -> Packed:
    c = t.codes(first, last)
    return Packed(
        layout.pack_codes(c.codes, p.bits, p.group_size, p.symmetric),
        layout.pack_scales(c.scales),
        None if c.minimums is None else layout.pack_scales(c.minimums),
    )


def tie(source: Source, notes: list[str]) -> bool | None:
    """Decides from the tensors whether the head is the embedding, and drops an equal second copy.

    None when the model has no embedding that a head could share.
    """
    tensors = source.tensors
    heads = [n for n in tensors if n.endswith("lm_head.weight")]
    embeddings = [n for n in tensors if n.endswith("embed_tokens.weight")]
    if not embeddings:
        return None
    if not heads:
        return True
    if len(heads) > 1 or len(embeddings) > 1:
        return None  # several language models: their config stands
    head, embedding = tensors[heads[0]], tensors[embeddings[0]]
    if _equal(head, embedding):
        del tensors[heads[0]]
        notes.append(f"{heads[0]} equals {embeddings[0]}: one copy is stored.")
        return True
    if source.config.get("tie_word_embeddings"):
        notes.append(
            f"The config says that {heads[0]} is tied, but it differs from {embeddings[0]}: "
            "both are stored."
        )
    return False


def _equal(a: SourceTensor, b: SourceTensor) -> bool:
    if a.shape != b.shape or a.stored != b.stored or len(a.shape) != 2:
        return False
    step = panel_rows(a.k)
    for start in range(0, a.rows, step):
        stop = min(start + step, a.rows)
        x: npt.NDArray[Any] = a.floats(start, stop)[0]
        if not np.array_equal(x.view(np.uint8), b.floats(start, stop)[0].view(np.uint8)):
            return False
    return True
