"""The order statistics of a block of queries, and the metrics that they make."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hgld.metrics.gains import Relevance
from hgld.metrics.names import Metric


@dataclass(frozen=True)
class OrderStatistics:
    """Sums over the positives of q queries, from which every metric follows without looking at the ranking again.

    A column of L stands for the grades 1..L, or for "at least" these; K are the depths k that metrics ask for.
    Undefined quotients are left to :func:`metric_values`, which knows the number of positives.

    Attributes:
        ap: (q, L) sum of rank+/rank over the items of at least each grade.
        exact_ap: (q, L) the same over the items of each grade alone, the other grades above 0 left out.
        precision_r: (q, L) sum of P(i) over the positives among the first R.
        hap: (q,) sum of Hrank+/rank.
        dcg: (q,) sum of gain/log2(1 + rank).
        asi: (q,) average set intersection.
        hits: (q, K, L + 1) items of each grade among the first k (grade 0 is not counted).
        precision: (q, K, L) sum of P(i) over the positives among the first k.
        grade_at: (q, K) grade of the item at place k; 0 where the ranking has ended.
        dcg_at: (q, K) the part of ``dcg`` with rank <= k.
    """

    ap: np.ndarray
    exact_ap: np.ndarray
    precision_r: np.ndarray
    hap: np.ndarray
    dcg: np.ndarray
    asi: np.ndarray
    hits: np.ndarray
    precision: np.ndarray
    grade_at: np.ndarray
    dcg_at: np.ndarray

    @classmethod
    def zeros(cls, num_queries: int, num_levels: int, num_depths: int) -> "OrderStatistics":
        """Sums of nothing."""
        q, levels, k = num_queries, num_levels, num_depths
        return cls(
            ap=np.zeros((q, levels)),
            exact_ap=np.zeros((q, levels)),
            precision_r=np.zeros((q, levels)),
            hap=np.zeros(q),
            dcg=np.zeros(q),
            asi=np.zeros(q),
            hits=np.zeros((q, k, levels + 1), np.int64),
            precision=np.zeros((q, k, levels)),
            grade_at=np.zeros((q, k), np.int64),
            dcg_at=np.zeros((q, k)),
        )

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Views of some queries' rows of every field, in the order of the fields."""
        return tuple(getattr(self, field.name)[start:stop] for field in fields(self))


def exponential_gains(num_levels: int) -> np.ndarray:
    """(L + 1,) float64: NDCG's gain of every grade."""
    return 2.0 ** np.arange(num_levels + 1) - 1


def discounts(size: int) -> np.ndarray:
    """(G + 1,) float64: 1 / log2(1 + rank); rank 0 does not exist."""
    ranks = np.arange(1, size + 1)
    return np.concatenate([[0.0], 1.0 / np.log2(1.0 + ranks)])


def depths_of(metrics: Sequence[Metric]) -> np.ndarray:
    """The different k of the metrics, ascending."""
    return np.array(sorted({m.depth for m in metrics if m.depth is not None}), dtype=np.int64)


def depth_needed(metrics: Sequence[Metric], levels: Sequence[str], counts: np.ndarray) -> int | None:
    """How much of the list a block of queries has to be ranked for; None for the whole of it.

    Args:
        metrics: what is computed.
        levels: names of the levels, finest first.
        counts: (q, L + 1) items a grade.
    """
    needed = 1
    for metric in metrics:
        if metric.depth is not None:
            needed = max(needed, metric.depth)
        elif metric.kind == "mAP@R":
            grade = len(levels) - levels.index(str(metric.level))
            needed = max(needed, int(counts[:, grade:].sum(axis=1).max(initial=0)))
        elif metric.kind == "ASI":
            needed = max(needed, int(counts[:, 1:].sum(axis=1).max(initial=0)))
        else:
            return None
    return needed


def metric_values(
    metrics: Sequence[Metric],
    levels: Sequence[str],
    found: OrderStatistics,
    counts: np.ndarray,
    relevance: Relevance,
    gains: np.ndarray,
) -> dict[str, np.ndarray]:
    """Every metric of every query.

    Args:
        metrics: as :func:`hgld.metrics.names.resolve` returns them.
        levels: names of the levels, finest first.
        found: what the ranking gave.
        counts: (q, L + 1) items a grade in the whole ranking.
        relevance: the relevance that ``gains`` came from.
        gains: (q, L + 1) relevance of every grade.

    Returns:
        for every metric's name (q,) float64, NaN where it is undefined.
    """
    depths = depths_of(metrics).tolist()
    values = {}
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is what undefined means here
        for metric in metrics:
            at = depths.index(metric.depth) if metric.depth is not None else -1
            if metric.binary:
                grade = len(levels) - levels.index(str(metric.level))
                values[str(metric)] = _binary(metric, found, counts[:, grade:].sum(axis=1), grade, at)
            else:
                values[str(metric)] = _graded(metric, found, counts, relevance, gains, at)
    return values


def _binary(metric: Metric, found: OrderStatistics, positives: np.ndarray, grade: int, at: int) -> np.ndarray:
    if metric.kind == "AP":
        return found.ap[:, grade - 1] / positives
    if metric.kind == "mAP@R":
        return found.precision_r[:, grade - 1] / positives
    k = metric.number or 1
    if metric.kind == "mAP@k":
        return found.precision[:, at, grade - 1] / np.minimum(positives, k)
    hits = found.hits[:, at, grade:].sum(axis=1)
    if metric.kind == "TR@k":
        return hits / np.minimum(positives, k)
    value = hits / k if metric.kind == "P@k" else (hits > 0).astype(np.float64)
    return np.where(positives > 0, value, np.nan)


def _graded(
    metric: Metric, found: OrderStatistics, counts: np.ndarray, relevance: Relevance, gains: np.ndarray, at: int
) -> np.ndarray:
    number = metric.number or 1
    if metric.kind == "ASI":
        return found.asi
    if metric.kind == "AP#g":
        return found.exact_ap[:, number - 1] / counts[:, number]
    if metric.kind == "wAP":
        weights = relevance.level_weights(counts)
        ap = np.where(weights > 0, found.ap / np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1], 0.0)
        return np.where(weights.any(axis=1), (weights * ap).sum(axis=1), np.nan)
    if metric.kind == "NDCG":
        return found.dcg / _ideal_dcg(counts, None)
    if metric.kind == "NDCG@k":
        return found.dcg_at[:, at] / _ideal_dcg(counts, number)
    total = (gains * counts)[:, 1:].sum(axis=1)
    if metric.kind == "H-AP":
        return found.hap / total
    if metric.kind == "H-R@k":
        return (gains[:, 1:] * found.hits[:, at, 1:]).sum(axis=1) / total
    value = _hierarchical_precision(found.hits[:, at], found.grade_at[:, at], gains) / number
    return np.where(total > 0, value, np.nan)


def _hierarchical_precision(hits: np.ndarray, grade: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Sum over the first k of min(r_j, r_k) / r_k; where r_k is 0 its limit, the number of positives."""
    here = np.take_along_axis(gains, grade[:, None], axis=1)
    shares = np.divide(np.minimum(gains, here), here, out=np.ones_like(gains), where=here > 0)
    return (shares[:, 1:] * hits[:, 1:]).sum(axis=1)


def _ideal_dcg(counts: np.ndarray, k: int | None) -> np.ndarray:
    """(q,) DCG of the items in descending order of grade, or of the best k of them."""
    num_levels = counts.shape[1] - 1
    gains = exponential_gains(num_levels)
    ends = np.cumsum(counts[:, :0:-1], axis=1)  # of the grades L, L - 1, ..., 1 in an ideal list
    ends = ends if k is None else np.minimum(ends, k)
    summed = np.cumsum(discounts(int(ends.max(initial=0))))
    parts = np.diff(summed[ends], axis=1, prepend=0.0)
    return parts @ gains[:0:-1]
