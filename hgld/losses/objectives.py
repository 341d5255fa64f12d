"""What a positive adds to its query's metric, as a function of its rank; the derivatives along with it.

An objective is a sum over the positives k of a query; the loss is 1 - that sum. All of them act elementwise on tensors
of one shape, so that the paths may lay out the positives as suits them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hgld.errors import ConfigError


@dataclass(frozen=True)
class Positives:
    """What an objective knows of the positives; all tensors are float64 and of one shape.

    Attributes:
        hrank: the numerator of precision: rank+ or Hrank+, smooth or exact.
        rank: the surrogate of the rank.
        gain: worth of the positive's grade.
        norm: its query's normalizer (see the objectives), infinite where the query has no loss.
    """

    hrank: Tensor
    rank: Tensor
    gain: Tensor
    norm: Tensor


@dataclass(frozen=True)
class Terms:
    """What each positive adds to the loss's metric, and the metric's derivatives by its ``hrank`` and ``rank``."""

    values: Tensor
    by_hrank: Tensor
    by_rank: Tensor


@dataclass(frozen=True)
class PrecisionMean:
    """AP and H-AP: ``hrank / rank / norm`` with the sum of the query's gains as norm."""

    def terms(self, k: Positives) -> Terms:
        by_hrank = 1 / (k.rank * k.norm)
        values = k.hrank * by_hrank
        return Terms(values, by_hrank, -values / k.rank)


@dataclass(frozen=True)
class RecallMean:
    """TR@K averaged over cutoffs K: ``sigmoid((K - rank) / temperature) / min(K, norm)`` with R positives as norm.

    Attributes:
        k: the cutoffs.
        temperature: width of the second step, in ranks.

    Raises:
        ConfigError: no cutoff, one below 1, or a temperature that is not positive.
    """

    k: tuple[int, ...] = (1, 2, 4, 8, 16)
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.k or any(cutoff < 1 or cutoff != int(cutoff) for cutoff in self.k):
            raise ConfigError(f"k is {self.k}; expected whole numbers >= 1, at least one.")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}; expected a finite number > 0.")

    def terms(self, k: Positives) -> Terms:
        values, by_rank = torch.zeros_like(k.rank), torch.zeros_like(k.rank)
        for cutoff in self.k:
            within = torch.sigmoid((cutoff - k.rank) / self.temperature)
            share = (k.norm < math.inf) / (k.norm.clamp(max=cutoff) * len(self.k))
            values += within * share
            by_rank -= within * (1 - within) * share / self.temperature
        return Terms(values, torch.zeros_like(values), by_rank)


@dataclass(frozen=True)
class DiscountedGain:
    """NDCG: ``gain / log2(1 + rank) / norm`` with the ideal DCG as norm."""

    def terms(self, k: Positives) -> Terms:
        discount = torch.log2(1 + k.rank)
        values = k.gain / (discount * k.norm)
        return Terms(values, torch.zeros_like(values), -values / (discount * (1 + k.rank) * math.log(2)))


Objective = PrecisionMean | RecallMean | DiscountedGain

_KINDS: dict[str, type[Objective]] = {"precision": PrecisionMean, "recall": RecallMean, "ndcg": DiscountedGain}


def pack(objective: Objective) -> tuple[str, list[float]]:
    """An objective as an operator's schema can carry it; :func:`unpack` reads it back."""
    kind = next(name for name, known in _KINDS.items() if isinstance(objective, known))
    return kind, [objective.temperature, *objective.k] if isinstance(objective, RecallMean) else []


def unpack(kind: str, numbers: list[float]) -> Objective:
    """What :func:`pack` packed."""
    if kind == "recall":
        return RecallMean(tuple(int(k) for k in numbers[1:]), numbers[0])
    return _KINDS[kind]()
