"""Which tensors of a model are quantized, and how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from edge_infer.checkpoint.layout import BITS, GROUP_SIZES
from edge_infer.checkpoint.source import Source, SourceTensor
from edge_infer.errors import ConfigError

QUANTIZABLE = {
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K",
}  # fmt: skip
MAX_K = 1 << 20  # a panel has at least 16 rows: this bounds its memory
_TOWERS = re.compile(
    r"(^|\.)(vision|visual|vit|audio|image|speech|video|vocoder|codec|code2wav|token2wav"
    r"|mm_projector|multi_modal_projector|embed_vision|embed_audio|resampler)"
    r"(_?(tower|model|encoder|decoder|embed|embedder|embed_tokens|projector|tokenizer))*(\.|$)"
)
_POSITIONS = re.compile(
    r"(^|[._])(wpe|wtte|pos_embed|pos_emb|position_embedding|position_embeddings|embed_positions"
    r"|position_ids|token_type_embeddings|relative_attention_bias|rotary_emb|inv_freq)([._]|$)"
)
_NORMS = re.compile(r"norm|^ln_|^ln\d*$|^conv")  # of a module's last name
_ROUTERS = {"gate", "router", "classifier", "shared_expert_gate", "wg"}
# transposed 2-D weights ([in, out]) of classes that use Conv1D for linears
_CONV1D_TYPES = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer"}


@dataclass(frozen=True)
class Options:
    """How to convert. bits None: 4 for float sources; GGUF types keep theirs, up to 8."""

    bits: int | None = None
    group_size: int = 32
    symmetric: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    module_bits: tuple[tuple[str, int], ...] = ()  # (pattern, bits); the last match counts

    def check(self) -> None:
        """Raises ConfigError for values that the format does not have."""
        for bits in (self.bits, *(bits for _, bits in self.module_bits)):
            if bits is not None and bits not in BITS:
                raise ConfigError(f"bits is {bits}.", remedy="Choose 4, 6 or 8.")
        if self.group_size not in GROUP_SIZES:
            raise ConfigError(f"group_size is {self.group_size}.", remedy="Choose 32, 64 or 128.")
        if self.bits == 8 and not self.symmetric:
            raise ConfigError(
                "8-bit codes are always symmetric.", remedy="Drop one of bits=8, symmetric=False."
            )


@dataclass(frozen=True)
class Packing:
    """How one matrix is stored. ``keep``: the codes of the source, unchanged."""

    module: str
    bits: int
    group_size: int
    symmetric: bool
    keep: bool


def in_tower(name: str) -> bool:
    """Whether a tensor belongs to a vision, audio or other tower beside the language model."""
    return _TOWERS.search(name) is not None


def module_name(name: str) -> str:
    """A tensor's module: its name without `.weight`."""
    return name.removesuffix(".weight")


def _reason_to_carry(tensor: SourceTensor, model_type: str) -> str | None:
    """Why a tensor is not quantized by default; None when it is."""
    name, shape = tensor.name, tensor.shape
    module = module_name(name)
    stacked = len(shape) == 3 and "experts" in name.split(".")
    if stacked:
        return None
    if len(shape) != 2 or module == name:
        return "no linear"
    if in_tower(name):
        return "a tower"
    if _POSITIONS.search(module):
        return "a position table"
    parts = module.split(".")
    if _NORMS.search(parts[-1]):
        return "a norm or convolution"
    if parts[-1] in _ROUTERS or "router" in parts:
        return "a router"
    if shape[0] < 16 or shape[1] < 32:
        return "too small"
    if model_type in _CONV1D_TYPES and parts[-1].startswith("c_"):
        return "stored transposed"
    return None


def _possible(tensor: SourceTensor) -> bool:
    return (
        len(tensor.shape) in (2, 3)
        and tensor.stored in QUANTIZABLE
        and min(tensor.shape) > 0
        and tensor.k <= MAX_K
    )


def _matches(tensor: SourceTensor, patterns: Sequence[str]) -> set[str]:
    names = (tensor.name, module_name(tensor.name))
    return {p for p in patterns if any(fnmatchcase(n, p) for n in names)}


def select(source: Source, options: Options) -> dict[str, Packing]:
    """The packing of every tensor that is quantized, by tensor name.

    Raises ConfigError for patterns that match nothing or name what cannot be quantized.
    """
    options.check()
    model_type = str(source.config.get("model_type"))
    used: set[str] = set()
    given: set[str] = set()
    out: dict[str, Packing] = {}
    for name, tensor in source.tensors.items():
        included = _matches(tensor, options.include)
        excluded = _matches(tensor, options.exclude)
        own = _matches(tensor, [pattern for pattern, _ in options.module_bits])
        used |= included | excluded
        if excluded:
            continue
        if included and not _possible(tensor):
            raise ConfigError(
                f"the pattern {min(included)!r} includes {name}, which is {tensor.stored} "
                f"{tensor.shape}: only 2-D and stacked 3-D float matrices can be quantized.",
            )
        if _possible(tensor) and (included or _reason_to_carry(tensor, model_type) is None):
            bits = [bits for pattern, bits in options.module_bits if pattern in own]
            chosen = replace(options, bits=bits[-1]) if bits else options
            out[name] = _packing(tensor, source.kind, chosen)
            given |= own
    for pattern, _ in options.module_bits:
        if pattern not in given:
            raise ConfigError(
                f"the pattern {pattern!r} matches no matrix that is quantized.",
                remedy=f"Names look like {', '.join(p.module for p in list(out.values())[:3])}.",
            )
    for pattern in (*options.include, *options.exclude):
        if pattern not in used:
            matrices = [module_name(n) for n, t in source.tensors.items() if len(t.shape) > 1]
            raise ConfigError(
                f"the pattern {pattern!r} matches no tensor.",
                remedy=f"Names look like {', '.join(matrices[:3])}.",
            )
    return out


def _packing(tensor: SourceTensor, kind: str, options: Options) -> Packing:
    module, kept = module_name(tensor.name), tensor.kept
    if kept is not None and kept.bits <= (options.bits or 8):
        return Packing(module, kept.bits, kept.group_size, kept.symmetric, True)
    bits = options.bits or (8 if kind == "gguf" else 4)
    symmetric = options.symmetric or bits == 8
    return Packing(module, bits, options.group_size, symmetric, False)
