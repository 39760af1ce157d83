"""Weight paths: the ways in which packed matrices are multiplied inside vLLM.

A path is chosen once a process: the flag EDGE_INFER_WEIGHT_PATH, else ``weight_path`` of the
checkpoint's quantization_config, else ``native``. A path that this machine cannot run is refused at
start. A matrix that the chosen path cannot take (6 or 8 bits, for most) goes to ``native``, which
takes them all; so do the others of its layer. The log says so once a reason.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from edge_infer.errors import ConfigError, DeviceError
from edge_infer.vllm_plugin import flags

if TYPE_CHECKING:
    import torch

    from edge_infer.vllm_plugin.segments import Segment

_logger = logging.getLogger("vllm.edge_infer")  # below vLLM's own, so its handlers print it

FLAG = "EDGE_INFER_WEIGHT_PATH"
DEFAULT = "native"
# name -> module with a class `Path`
MODULES = {
    name: f"edge_infer.vllm_plugin.paths.{name}" for name in ("native", "tinygemm", "w4a8", "wna16")
}


class WeightPath(ABC):
    """One way to multiply. Instances hold no weights: those live on the layer."""

    name: str

    def unavailable(self) -> str | None:
        """Why this machine (or this vLLM build) cannot run the path; None when it can."""
        return None

    @property
    def graph(self) -> str:
        """What compiled graphs depend on: the name, and settings that change the tensors kept."""
        return self.name

    @abstractmethod
    def refusal(self, segments: Sequence[Segment]) -> str | None:
        """Why the path cannot take these matrices; None when it can."""

    @abstractmethod
    def prepare(self, layer: torch.nn.Module, segments: list[Segment]) -> None:
        """Registers on `layer` what `apply` reads; repacks in blocks, where the path repacks.

        The segments' tensors are views of the mapped file: a path that keeps them keeps the map,
        one that repacks drops them.
        """

    @abstractmethod
    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """x [..., K] bf16, f16 or f32 -> [..., sum of n], in the dtype of x; bias [sum of n].

        Runs inside torch.compile: only tensor operations and custom operations with fake kernels.
        """

    def embedding(
        self, layer: torch.nn.Module, ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """Rows `ids` (int64, any shape) of the layer's one matrix, as dtype [..., K].

        Called only on layers whose matrices `refusal_as_embedding` let pass.
        """
        raise NotImplementedError

    def refusal_as_embedding(self, segments: Sequence[Segment]) -> str | None:
        """Like `refusal`, for a vocabulary embedding (whose head may be tied to it)."""
        if type(self).embedding is WeightPath.embedding:
            return f"{self.name} has no row lookup"
        return self.refusal(segments)


def create(name: str) -> WeightPath:
    """The path by its name; ConfigError when there is none of that name."""
    if not isinstance(name, str) or name not in MODULES:
        raise ConfigError(
            f"there is no weight path {str(name)[:60]!r}.", remedy=f"Known: {', '.join(MODULES)}."
        )
    path: WeightPath = import_module(MODULES[name]).Path()
    return path


class Choice:
    """The process's weight path, and what did not fit it."""

    def __init__(self, configured: str | None = None) -> None:
        """`configured`: ``weight_path`` of the quantization_config, which the flag overrides.

        Raises ConfigError for an unknown name, DeviceError for a path that cannot run here.
        """
        name = flags.text(FLAG) or configured or DEFAULT
        self.path = create(name)
        self._native = self.path if name == DEFAULT else create(DEFAULT)
        self._said: set[str] = set()
        reason = self.path.unavailable()
        if reason is not None:
            raise DeviceError(
                f"the weight path {name!r} cannot run here: {reason}.",
                remedy=f"Unset {FLAG}, or set it to {DEFAULT}.",
            )

    def __call__(self, segments: Sequence[Segment], *, embedding: bool = False) -> WeightPath:
        """The path for the matrices of one layer."""
        refusal: Callable[[Sequence[Segment]], str | None] = (
            self.path.refusal_as_embedding if embedding else self.path.refusal
        )
        reason = refusal(segments)
        if reason is None:
            return self.path
        return self.native(" with ".join(segment.name for segment in segments), reason)

    def native(self, what: str, reason: str) -> WeightPath:
        """The native path for matrices that the chosen one cannot take; says so once a reason."""
        if self.path is not self._native and reason not in self._said:
            self._said.add(reason)
            _logger.warning(
                "edge-infer: %s and matrices like it run on weight path %s, because %s cannot "
                "take %s",
                what,
                self._native.name,
                self.path.name,
                reason,
            )
        return self._native
