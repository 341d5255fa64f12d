"""What a grade is worth to a query, and a query's best possible sums, from how many items of each grade it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from hgld.errors import ConfigError
from hgld.relevance import RelevanceKind


@dataclass(frozen=True)
class GradedGain:
    """Relevance of a grade; the formulas are those of :func:`hgld.graded_relevance`.

    Attributes:
        kind: ``population``, ``total``, ``weighted_ap`` or ``exponential``.
        alpha: exponent of ``population`` and ``total``.
        weights: of ``weighted_ap``, one a level, coarsest level first; equal if None.

    Raises:
        ConfigError: an unknown kind, an alpha below 0, or weights that are negative or all zero.
    """

    kind: RelevanceKind = "population"
    alpha: float = 1.0
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(RelevanceKind):
            expected = ", ".join(get_args(RelevanceKind))
            raise ConfigError(f"relevance kind {self.kind!r} is unknown; expected one of {expected}.")
        if not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"alpha is {self.alpha}; expected a finite number >= 0.")
        given = self.weights
        if given is not None and not (given and min(given) >= 0 and 0 < sum(given) < float("inf")):
            raise ConfigError(f"weights are {given}; expected numbers >= 0 with a positive, finite sum.")

    def of_counts(self, counts: Tensor) -> Tensor:
        """Worth of every grade to every query, up to a factor of the query's own, on which no loss depends.

        The largest grade that the query has is the unit of (l/L)^alpha: a large alpha lets the others vanish, not all.

        Args:
            counts: (Q, L + 1) items a grade.

        Returns:
            (Q, L + 1) float64; grade 0 is worth 0.
        """
        num_levels = counts.shape[1] - 1
        grades = torch.arange(num_levels + 1, dtype=torch.float64, device=counts.device)
        if self.kind == "exponential":
            return (2.0**grades - 1).expand(counts.shape)
        if self.kind == "weighted_ap":
            return self._level_gains(counts)
        largest = torch.where(counts > 0, grades, 0.0).amax(dim=1, keepdim=True).clamp(min=1)
        steps = torch.where((counts > 0) & (grades > 0), grades / largest, 0.0)
        total = torch.where(steps > 0, steps**self.alpha, 0.0)
        return total if self.kind == "total" else total / counts.clamp(min=1)

    def _level_gains(self, counts: Tensor) -> Tensor:
        num_levels = counts.shape[1] - 1
        given: Sequence[float] = self.weights if self.weights is not None else (1.0 / num_levels,) * num_levels
        if len(given) != num_levels:
            raise ConfigError(f"there are {len(given)} weights for {num_levels} levels; expected one each.")
        at_least = at_least_counts(counts)[:, 1:]
        weight = torch.tensor(given, dtype=torch.float64, device=counts.device) / sum(given)
        gains = (weight * (at_least > 0) / at_least.clamp(min=1)).cumsum(dim=1)
        return torch.nn.functional.pad(gains, (1, 0))


def grade_counts(grades: Tensor, num_levels: int) -> Tensor:
    """(Q, L + 1) int64: how many items of each grade a row of (Q, G) ``grades`` has."""
    positive = [(grades == grade).sum(dim=1) for grade in range(1, num_levels + 1)]
    counts = torch.stack(positive, dim=1)
    return torch.cat([grades.shape[1] - counts.sum(dim=1, keepdim=True), counts], dim=1)


def at_least_counts(counts: Tensor) -> Tensor:
    """(Q, L + 1): items of grade l or more, from (Q, L + 1) items of grade l."""
    return counts.flip(1).cumsum(dim=1).flip(1)


def ideal_dcg(counts: Tensor, gains: Tensor, gallery_size: int) -> Tensor:
    """(Q,) float64: DCG of the whole gallery in order of descending grade."""
    places = torch.arange(1, gallery_size + 1, dtype=torch.float64, device=counts.device)
    discounts = torch.nn.functional.pad((1 / torch.log2(1 + places)).cumsum(dim=0), (1, 0))
    reached = discounts[at_least_counts(counts)]
    within = reached - torch.nn.functional.pad(reached[:, 1:], (0, 1))
    return (gains[:, 1:] * within[:, 1:]).sum(dim=1)
