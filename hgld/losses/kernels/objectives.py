"""Surrogates of the step function, and objectives: together they define a smooth metric.

A rank is a sum of steps H(t) = 1 if t >= 0 else 0; a surrogate replaces H. An objective turns a positive's rank into
the positive's contribution to the metric of its query, and gives the derivatives. The metric is the sum of these
contributions; the loss is 1 - metric. Objectives act on tensors of one shape and do not depend on the order of the
positives, so each implementation may store them in its own order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hgld.errors import ConfigError, check_choice, check_positive

# -- surrogates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sigmoid:
    """``sigmoid(t / tau)`` in place of every H, in the numerator and in the rank (Brown et al., ECCV 2020, Eq. 5).

    Attributes:
        tau: width of the step, in units of the score.

    Raises:
        ConfigError: tau is not positive and finite.
    """

    tau: float = 0.01

    def __post_init__(self) -> None:
        check_positive(tau=self.tau)


@dataclass(frozen=True)
class SupStep:
    """H^- of SupRank, which replaces H for items of a lower grade; for all other items H stays, without a gradient.

    ``sigmoid(t/tau)`` for t < 0, ``sigmoid(t/tau) + 0.5`` for 0 <= t <= delta, ``rho (t - delta) + offset`` above
    (Ramzi et al., "Optimization of Rank Losses for Image Retrieval", Eq. 9). H^- is an upper bound of H everywhere,
    including t = 0, so the losses are upper bounds of 1 - metric. Its gradient does not vanish for items that are
    ranked far too high.

    Attributes:
        tau: width of the sigmoid, in units of the score.
        rho: slope beyond delta.
        delta: score difference above which H^- is a straight line.
        offset: value of the line at delta. None: ``sigmoid(delta/tau) + 0.5``, which makes H^- continuous. The
            authors' published configurations have 1.44, with which H^- falls at delta.

    Raises:
        ConfigError: tau is not positive, rho, delta or offset is negative, or one of them is not finite.
    """

    tau: float = 0.01
    rho: float = 100.0
    delta: float = 0.05
    offset: float | None = None

    def __post_init__(self) -> None:
        check_positive(tau=self.tau)
        for name, value in (("rho", self.rho), ("delta", self.delta)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value}; expected a finite number >= 0.")
        if self.offset is not None and not 0 <= self.offset < math.inf:  # with an offset below 0 a rank could be 0
            raise ConfigError(
                f"offset is {self.offset}; expected a finite number >= 0, or None for the continuous H^-."
            )

    @property
    def line_start(self) -> float:
        """Return the value of the straight line at delta."""
        return 0.5 + 1 / (1 + math.exp(-self.delta / self.tau)) if self.offset is None else self.offset


Surrogate = Sigmoid | SupStep


def pack_surrogate(surrogate: Surrogate) -> list[float]:
    """Return a surrogate as numbers, which fit an operator's schema; :func:`unpack_surrogate` restores it."""
    if isinstance(surrogate, Sigmoid):
        return [surrogate.tau]
    return [surrogate.tau, surrogate.rho, surrogate.delta, surrogate.line_start]


def unpack_surrogate(numbers: list[float]) -> Surrogate:
    """Restore a surrogate that :func:`pack_surrogate` packed."""
    return Sigmoid(*numbers) if len(numbers) == 1 else SupStep(*numbers)


# -- objectives --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Positives:
    """All positives of some queries, in any order; all tensors have the same shape.

    Attributes:
        hrank: float64, the numerator of precision: rank+ or Hrank+, smooth or exact.
        rank: float64, the surrogate of the rank.
        gain: float64, gain of the positive's grade.
        norm: float64, normalizer of the positive's query (each objective defines it), infinite if the query has no
            loss.
        query: int64, index of the positive's query.
    """

    hrank: Tensor
    rank: Tensor
    gain: Tensor
    norm: Tensor
    query: Tensor


@dataclass(frozen=True)
class Terms:
    """The contribution of each positive to the metric, and its derivatives with respect to ``hrank`` and ``rank``."""

    values: Tensor
    by_hrank: Tensor
    by_rank: Tensor


@dataclass(frozen=True)
class PrecisionMean:
    """AP and H-AP: ``hrank / rank / norm``; the norm is the sum of the query's gains."""

    def terms(self, k: Positives) -> Terms:
        by_hrank = 1 / (k.rank * k.norm)
        values = k.hrank * by_hrank
        return Terms(values, by_hrank, -values / k.rank)


@dataclass(frozen=True)
class RecallMean:
    """TR@K averaged over cutoffs K: ``sigmoid((K - rank) / temperature) / min(K, norm)``; norm: number of positives.

    Attributes:
        k: the cutoffs.
        temperatures: widths of the step at the cutoff, in ranks, one per cutoff.
        clip: whether to clip a query's sum of sigmoids at K; a clipped sum has no gradient.

    Raises:
        ConfigError: there is no cutoff, a cutoff is below 1, or there is not one positive temperature per cutoff.
    """

    k: tuple[int, ...] = (1, 2, 4, 8, 16)
    temperatures: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)
    clip: bool = False

    def __post_init__(self) -> None:
        if not self.k or any(cutoff < 1 or cutoff != int(cutoff) for cutoff in self.k):
            raise ConfigError(f"k is {self.k}; expected one or more whole numbers >= 1.")
        if len(self.temperatures) != len(self.k) or not all(0 < t < math.inf for t in self.temperatures):
            raise ConfigError(
                f"temperature is {self.temperatures} for the cutoffs {self.k}; expected a finite number > 0, or one "
                "per cutoff."
            )

    @classmethod
    def of(cls, k: Sequence[int], temperature: float | Sequence[float] = 1.0, *, clip: bool = False) -> "RecallMean":
        """Make the objective from the arguments of a loss; a single ``temperature`` applies to all cutoffs."""
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
    """Return, for every positive, the sum of ``values`` over all positives of its query."""
    rows = query.flatten()
    # len(rows) bins are enough: every query has an element, so query indices are below the number of elements.
    sums = values.new_zeros(len(rows)).index_add(0, rows, values.flatten())
    return sums[rows].view_as(values)


@dataclass(frozen=True)
class DiscountedGain:
    """NDCG: ``gain / log2(1 + rank) / norm``; the norm is the ideal DCG."""

    def terms(self, k: Positives) -> Terms:
        discount = torch.log2(1 + k.rank)
        values = k.gain / (discount * k.norm)
        return Terms(values, torch.zeros_like(values), -values / (discount * (1 + k.rank) * math.log(2)))


PenaltyVariant = Literal["O", "Iu", "Ib", "Ds", "Dq"]


@dataclass(frozen=True)
class NegativesPenalty:
    """PNP: ``-f(R) / norm``; R = rank - hrank counts negatives before the positive; norm: number of positives.

    All gains must be 1, so that hrank counts positives. :class:`hgld.losses.PNP` lists the formulas of f.

    Attributes:
        variant: name of f.
        b: parameter of ``Ib``.
        alpha: parameter of ``Dq``.

    Raises:
        ConfigError: the variant is unknown, or ``b`` or ``alpha`` is not positive.
    """

    variant: PenaltyVariant = "Dq"
    b: float = 4.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, get_args(PenaltyVariant))
        check_positive(b=self.b, alpha=self.alpha)

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


def pack_objective(objective: Objective) -> tuple[str, list[float]]:
    """Return an objective as a name and numbers for an operator's schema; :func:`unpack_objective` restores it."""
    if isinstance(objective, NegativesPenalty):
        return f"pnp-{objective.variant}", [objective.b, objective.alpha]
    kind = next(name for name, known in _KINDS.items() if isinstance(objective, known))
    if isinstance(objective, RecallMean):
        return kind, [float(objective.clip), *objective.k, *objective.temperatures]
    return kind, []


def unpack_objective(kind: str, numbers: list[float]) -> Objective:
    """Restore an objective that :func:`pack_objective` packed."""
    if kind == "recall":
        middle = len(numbers) // 2 + 1
        return RecallMean(tuple(int(k) for k in numbers[1:middle]), tuple(numbers[middle:]), bool(numbers[0]))
    if kind.startswith("pnp-"):
        variant = next(known for known in get_args(PenaltyVariant) if kind == f"pnp-{known}")
        return NegativesPenalty(variant, *numbers)
    return _KINDS[kind]()
