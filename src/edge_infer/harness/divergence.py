"""KL divergence, agreement and perplexity of predictions, defined as in llama-perplexity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edge_infer.errors import ExecutionError

FLOOR = -16.0  # tokens that the reference gives less than e^FLOOR are left out of the divergence


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Log-probabilities of one row of logits [vocabulary]; a new array."""
    best = logits.max()
    if not np.isfinite(best):
        raise ExecutionError("The model gave logits that are not finite.")
    values = logits - best
    values -= np.float32(np.log(np.exp(values).sum(dtype=np.float64)))
    return values


@dataclass
class Scores:
    """One value a scored position."""

    kl: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    reference_nll: list[float] = field(default_factory=list)
    same_top: list[bool] = field(default_factory=list)

    def add(
        self, reference: npt.NDArray[np.float32], model: npt.NDArray[np.float32], following: int
    ) -> None:
        """Log-probabilities [vocabulary] of both, and the token that follows."""
        kept = np.flatnonzero(reference > FLOOR)
        log_p = reference[kept].astype(np.float64)
        self.kl.append(float(np.exp(log_p) @ (log_p - model[kept])))
        self.nll.append(-float(model[following]))
        self.reference_nll.append(-float(reference[following]))
        self.same_top.append(bool(reference.argmax() == model.argmax()))


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    value: float
    error: float

    @classmethod
    def mean(cls, samples: list[float]) -> Estimate:
        """Of samples taken as independent; the error is 0 for a single one."""
        values = np.asarray(samples, np.float64)
        count = len(values)
        return cls(float(values.mean()), float(values.std() / math.sqrt(max(count - 1, 1))))


def perplexity(nll: list[float]) -> Estimate:
    """exp of the mean negative log-likelihood."""
    mean = Estimate.mean(nll)
    value = math.exp(mean.value)
    return Estimate(value, value * mean.error)


def agreement(same: list[bool]) -> Estimate:
    """Share of True."""
    share = sum(same) / len(same)
    return Estimate(share, math.sqrt(share * (1 - share) / max(len(same) - 1, 1)))


def quantile(samples: list[float], share: float) -> float:
    """Linear between neighbouring samples."""
    return float(np.quantile(np.asarray(samples, np.float64), share))
