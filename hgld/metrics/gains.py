"""What a grade is worth to a query, from how many items of each grade its gallery has."""

from dataclasses import dataclass

import numpy as np
import torch

from hgld.relevance import RelevanceKind, check_relevance, grade_gains, level_weights


@dataclass(frozen=True)
class Relevance:
    """The relevance that H-AP, H-R@k, H-P@k and wAP use; the formulas are those of :func:`hgld.graded_relevance`.

    Attributes:
        kind: ``population``, ``total``, ``weighted_ap`` or ``exponential``.
        alpha: exponent of ``population`` and ``total``.
        weights: the L weights of ``weighted_ap`` and of the metric wAP, coarsest level first; equal if None.
        count_query: count the query itself among the items of grade L, for ``population`` alone.

    Raises:
        ConfigError: an unknown kind, an alpha below 0, or weights that are negative or all zero.
    """

    kind: RelevanceKind = "population"
    alpha: float = 1.0
    weights: tuple[float, ...] | None = None
    count_query: bool = False

    def __post_init__(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        check_relevance(self.kind, self.alpha, self.weights)

    def level_weights(self, counts: np.ndarray) -> np.ndarray:
        """Weight of every level's AP to every query, (Q, L); see :func:`hgld.relevance.level_weights`."""
        return level_weights(torch.from_numpy(counts), self.weights).numpy()

    def gains(self, counts: np.ndarray) -> np.ndarray:
        """Relevance of every grade to every query, up to a factor of the query's own.

        Args:
            counts: (Q, L + 1) int64 items a grade.

        Returns:
            (Q, L + 1) float64, see ``relative`` of :func:`hgld.relevance.grade_gains`.

        Raises:
            ConfigError: another number of weights than levels.
        """
        options = {"count_query": self.count_query, "relative": True}
        return grade_gains(torch.from_numpy(counts), self.kind, self.alpha, self.weights, **options).numpy().copy()
