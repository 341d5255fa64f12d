"""Objectives: the part of a positive in its query's metric as a function of its rank, with its derivatives.

An objective is a sum over the positives k of a query; the loss is 1 - that sum. All of them act on tensors of one shape
and read no order from them, so that the paths may lay out the positives as suits them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hgld.errors import ConfigError


@dataclass(frozen=True)
class Positives:
    """The positives that an objective reads: all of a query's, in any order; all tensors are of one shape.

    Attributes:
        hrank: float64, the numerator of precision: rank+ or Hrank+, smooth or exact.
        rank: float64, the surrogate of the rank.
        gain: float64, gain of the positive's grade.
        norm: float64, its query's normalizer (see the objectives), infinite where the query has no loss.
        query: int64, the number of its query.
    """

    hrank: Tensor
    rank: Tensor
    gain: Tensor
    norm: Tensor
    query: Tensor


@dataclass(frozen=True)
class Terms:
    """The part of each positive in the metric, and the metric's derivatives by its ``hrank`` and ``rank``."""

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
        temperatures: widths of the second step, in ranks, one a cutoff.
        clip: a query's sum of sigmoids counts as K where it is more, without a gradient.

    Raises:
        ConfigError: no cutoff, one below 1, or temperatures that are not positive or not one a cutoff.
    """

    k: tuple[int, ...] = (1, 2, 4, 8, 16)
    temperatures: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)
    clip: bool = False

    def __post_init__(self) -> None:
        if not self.k or any(cutoff < 1 or cutoff != int(cutoff) for cutoff in self.k):
            raise ConfigError(f"k is {self.k}; expected whole numbers >= 1, at least one.")
        if len(self.temperatures) != len(self.k) or not all(0 < t < math.inf for t in self.temperatures):
            raise ConfigError(
                f"temperature is {self.temperatures} for the cutoffs {self.k}; expected a finite number > 0, or one "
                "a cutoff."
            )

    @classmethod
    def of(cls, k: Sequence[int], temperature: float | Sequence[float] = 1.0, *, clip: bool = False) -> "RecallMean":
        """Make one from the losses' arguments: ``temperature`` may be one for all cutoffs."""
        each = (temperature,) * len(k) if isinstance(temperature, int | float) else tuple(temperature)
        return cls(tuple(k), each, clip)

    def terms(self, k: Positives) -> Terms:
        values, by_rank = torch.zeros_like(k.rank), torch.zeros_like(k.rank)
        for cutoff, temperature in zip(self.k, self.temperatures, strict=True):
            within = torch.sigmoid((cutoff - k.rank) / temperature)
            share = (k.norm < math.inf) / (k.norm.clamp(max=cutoff) * len(self.k))
            slope = within * (1 - within) * share / temperature
            if self.clip:
                excess = _query_sums(within * (k.norm < math.inf), k.query) / cutoff
                within, slope = within / excess.clamp(min=1), torch.where(excess > 1, 0.0, slope)
            values += within * share
            by_rank -= slope
        return Terms(values, torch.zeros_like(values), by_rank)


def _query_sums(values: Tensor, query: Tensor) -> Tensor:
    """Return for every positive the sum over its query's positives."""
    rows = query.flatten()
    sums = values.new_zeros(len(rows)).index_add(0, rows, values.flatten())  # there are as many positives as queries
    return sums[rows].view_as(values)


@dataclass(frozen=True)
class DiscountedGain:
    """NDCG: ``gain / log2(1 + rank) / norm`` with the ideal DCG as norm."""

    def terms(self, k: Positives) -> Terms:
        discount = torch.log2(1 + k.rank)
        values = k.gain / (discount * k.norm)
        return Terms(values, torch.zeros_like(values), -values / (discount * (1 + k.rank) * math.log(2)))


PenaltyVariant = Literal["O", "Iu", "Ib", "Ds", "Dq"]


@dataclass(frozen=True)
class NegativesPenalty:
    """PNP: ``-f(R) / norm`` with R positives as norm, R the negatives before the positive: what rank has beyond hrank.

    All gains must be 1, so that hrank counts positives. The formulas of f are those of :class:`hgld.losses.PNP`.

    Attributes:
        variant: name of f.
        b: parameter of ``Ib``.
        alpha: parameter of ``Dq``.

    Raises:
        ConfigError: an unknown variant, or numbers that are not positive.
    """

    variant: PenaltyVariant = "Dq"
    b: float = 4.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.variant not in get_args(PenaltyVariant):
            expected = ", ".join(get_args(PenaltyVariant))
            raise ConfigError(f"variant {self.variant!r} is unknown; expected one of {expected}.")
        for name, value in (("b", self.b), ("alpha", self.alpha)):
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; expected a finite number > 0.")

    def terms(self, k: Positives) -> Terms:
        values, slope = self._penalty((k.rank - k.hrank).clamp(min=0))
        return Terms(-values / k.norm, slope / k.norm, -slope / k.norm)

    def _penalty(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(R) and f'(R)."""
        b, alpha = self.b, self.alpha
        match self.variant:
            case "O":
                return r, torch.ones_like(r)
            case "Iu":
                return (1 + r) * torch.log1p(r), 1 + torch.log1p(r)
            case "Ib":
                return (b * r - torch.log1p(b * r)) / b**2, r / (1 + b * r)
            case "Ds":
                return torch.log1p(r), 1 / (1 + r)
            case "Dq":
                return -torch.expm1(-alpha * torch.log1p(r)), alpha * torch.exp(-(alpha + 1) * torch.log1p(r))


Objective = PrecisionMean | RecallMean | DiscountedGain | NegativesPenalty

_KINDS: dict[str, type[Objective]] = {
    "precision": PrecisionMean,
    "recall": RecallMean,
    "ndcg": DiscountedGain,
    **{f"pnp-{variant}": NegativesPenalty for variant in get_args(PenaltyVariant)},
}


def pack(objective: Objective) -> tuple[str, list[float]]:
    """Return an objective as an operator's schema can carry it; :func:`unpack` reads it back."""
    if isinstance(objective, NegativesPenalty):
        return f"pnp-{objective.variant}", [objective.b, objective.alpha]
    kind = next(name for name, known in _KINDS.items() if isinstance(objective, known))
    if isinstance(objective, RecallMean):
        return kind, [float(objective.clip), *objective.k, *objective.temperatures]
    return kind, []


def unpack(kind: str, numbers: list[float]) -> Objective:
    """Restore an objective that :func:`pack` packed."""
    if kind == "recall":
        middle = len(numbers) // 2 + 1
        return RecallMean(tuple(int(k) for k in numbers[1:middle]), tuple(numbers[middle:]), bool(numbers[0]))
    if kind.startswith("pnp-"):
        variant = next(known for known in get_args(PenaltyVariant) if kind == f"pnp-{known}")
        return NegativesPenalty(variant, *numbers)
    return _KINDS[kind]()
