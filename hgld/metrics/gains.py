"""What a grade is worth to a query, from how many items of each grade its gallery has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from hgld.errors import ConfigError
from hgld.relevance import RelevanceKind


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
        if self.kind not in get_args(RelevanceKind):
            expected = ", ".join(get_args(RelevanceKind))
            raise ConfigError(f"relevance kind {self.kind!r} is unknown; expected one of {expected}.")
        if not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"alpha is {self.alpha}; expected a finite number >= 0.")
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
            if not self.weights or not min(self.weights) >= 0 or not 0 < sum(self.weights) < float("inf"):
                raise ConfigError(f"weights are {self.weights}; expected numbers >= 0 with a positive, finite sum.")

    def level_weights(self, counts: np.ndarray) -> np.ndarray:
        """Weight of every level's AP to every query: zero where the query has no positive there, sum 1.

        Args:
            counts: (Q, L + 1) items a grade.

        Returns:
            (Q, L) float64, coarsest level first; a row of zeros where no level that has positives has weight.

        Raises:
            ConfigError: another number of weights than levels.
        """
        num_levels = counts.shape[1] - 1
        given: Sequence[float] = self.weights if self.weights is not None else (1.0 / num_levels,) * num_levels
        if len(given) != num_levels:
            raise ConfigError(f"there are {len(given)} weights for {num_levels} levels; expected one each.")
        weights = np.array(given) * (_at_least(counts) > 0)
        total = weights.sum(axis=1, keepdims=True)
        return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)

    def gains(self, counts: np.ndarray) -> np.ndarray:
        """Relevance of every grade to every query, up to a factor of the query's own.

        H-AP, H-R@k and H-P@k do not change when a query's relevances are all multiplied by one number. Here the
        largest grade that the query has is the unit of (l/L)^alpha, so that a large alpha, which lets the others
        vanish, does not let all of them vanish.

        Args:
            counts: (Q, L + 1) items a grade.

        Returns:
            (Q, L + 1) float64; grade 0 is worth 0.
        """
        num_levels = counts.shape[1] - 1
        if self.kind == "exponential":
            return np.broadcast_to(2.0 ** np.arange(num_levels + 1) - 1, counts.shape).copy()
        if self.kind == "weighted_ap":
            values = np.cumsum(self.level_weights(counts) / np.maximum(_at_least(counts), 1), axis=1)
            return np.pad(values, ((0, 0), (1, 0)))
        grades = np.arange(num_levels + 1)
        largest = np.where(counts[:, 1:] > 0, grades[1:], 1).max(axis=1, keepdims=True)
        steps = np.where((counts > 0) & (grades > 0), grades / largest, 0.0)
        values = np.where(steps > 0, steps**self.alpha, 0.0)
        if self.kind == "total":
            return values
        sizes = counts.astype(np.float64)
        sizes[:, num_levels] += self.count_query
        return values / np.maximum(sizes, 1)


def _at_least(counts: np.ndarray) -> np.ndarray:
    """(Q, L) items of grade 1 or more, 2 or more, ..., L."""
    return np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1]
