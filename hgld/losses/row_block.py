"""Rows of scores and grades as the compiled kernels take them, and what is known of each row before any work."""

from dataclasses import dataclass

import numpy as np

from hgld.losses.compiled import compiled


@dataclass(frozen=True)
class RowBlock:
    """A block of queries.

    Attributes:
        scores: (q, G) float32 or float64, -inf where an item is not ranked.
        grades: (q, G) uint8 in 0..L.
        gains: (q, L + 1) float64, worth of every grade.
        norms: (q,) float64, the objective's normalizers.
    """

    scores: np.ndarray
    grades: np.ndarray
    gains: np.ndarray
    norms: np.ndarray

    def rows(self, index: np.ndarray) -> "RowBlock":
        """Some of the rows; views where they follow one another."""
        some = slice(index[0], index[-1] + 1) if index[-1] - index[0] + 1 == len(index) else index
        return RowBlock(self.scores[some], self.grades[some], self.gains[some], self.norms[some])


@dataclass(frozen=True)
class Survey:
    """Facts of rows.

    Attributes:
        num_positives: (q,) int64 items of grade > 0.
        spans: (q,) float64 highest minus lowest score of the ranked items, 0 where there are none.
        finite: (q,) bool: no NaN or +inf.
        highest_grade: of all rows.
    """

    num_positives: np.ndarray
    spans: np.ndarray
    finite: np.ndarray
    highest_grade: int

    def rows(self, index: np.ndarray) -> "Survey":
        return Survey(self.num_positives[index], self.spans[index], self.finite[index], self.highest_grade)

    @classmethod
    def of(cls, scores: np.ndarray, grades: np.ndarray) -> "Survey":
        """Survey (q, G) ``scores`` and ``grades``."""
        num_positives, finite = np.empty(len(scores), np.int64), np.empty(len(scores), np.bool_)
        extremes = np.empty((2, len(scores)), scores.dtype)
        highest = _survey(scores, grades, num_positives, finite, extremes)
        low, high = extremes.astype(np.float64)
        return cls(num_positives, np.where(high >= low, high - low, 0.0), finite, int(highest))


@compiled
def _survey(
    scores: np.ndarray, grades: np.ndarray, num_positives: np.ndarray, finite: np.ndarray, extremes: np.ndarray
) -> np.int64:
    """Fill what :class:`Survey` holds; ``extremes`` (2, q) with the lowest and highest score. Returns the top grade."""
    top = np.uint8(0)
    for row in range(scores.shape[0]):
        positives, strange = np.int64(0), np.int64(0)
        low, high = scores.dtype.type(np.inf), scores.dtype.type(-np.inf)
        for j in range(scores.shape[1]):
            score = scores[row, j]
            positives += grades[row, j] > 0
            top = max(top, grades[row, j])
            strange += not score < np.inf  # NaN compares false
            low = score if -np.inf < score < low else low
            high = max(high, score)
        num_positives[row], finite[row] = positives, strange == 0
        extremes[0, row], extremes[1, row] = low, high
    return np.int64(top)
