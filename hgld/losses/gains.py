"""What a grade is worth to a query, and a query's best possible sums, from how many items of each grade it has."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hgld.relevance import RelevanceKind, check_relevance, grade_gains


@dataclass(frozen=True)
class GradedGain:
    """Relevance of a grade; the formulas are those of :func:`hgld.relevance.grade_gains`.

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
        check_relevance(self.kind, self.alpha, self.weights)

    def of_counts(self, counts: Tensor) -> Tensor:
        """(Q, L + 1) float64 worth of every grade, up to a factor of the query's own, on which no loss depends.

        Args:
            counts: (Q, L + 1) items a grade.
        """
        return grade_gains(counts, self.kind, self.alpha, self.weights, relative=True)


def grade_counts(grades: Tensor, num_levels: int) -> Tensor:
    """(Q, L + 1) int64: how many items of each grade a row of (Q, G) ``grades`` has."""
    positive = [(grades == grade).sum(dim=1) for grade in range(1, num_levels + 1)]
    counts = torch.stack(positive, dim=1)
    return torch.cat([grades.shape[1] - counts.sum(dim=1, keepdim=True), counts], dim=1)


def ideal_dcg(counts: Tensor, gains: Tensor, gallery_size: int) -> Tensor:
    """(Q,) float64: DCG of the whole gallery in order of descending grade."""
    places = torch.arange(1, gallery_size + 1, dtype=torch.float64, device=counts.device)
    discounts = torch.nn.functional.pad((1 / torch.log2(1 + places)).cumsum(dim=0), (1, 0))
    reached = discounts[counts.flip(1).cumsum(dim=1).flip(1)]  # of the items of grade l or more
    within = reached - torch.nn.functional.pad(reached[:, 1:], (0, 1))
    return (gains[:, 1:] * within[:, 1:]).sum(dim=1)
