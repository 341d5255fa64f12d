"""Order statistics of a block of queries, on the CPU or in torch, and the metrics that they make."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from hgld.evaluation.judgements import ClassTree
from hgld.evaluation.metric import GainFunction, Metric
from hgld.evaluation.metric_kinds import METRICS, kind_of
from hgld.evaluation.ranks import rank_rows

# -- the statistics ---------------------------------------------------------------------------------------------------


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
        """Return sums of zero."""
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
        """Return views of some queries' rows of every field, in the order of the fields."""
        return tuple(getattr(self, field.name)[start:stop] for field in fields(self))


def exponential_gains(num_levels: int) -> np.ndarray:
    """Return NDCG's gain of every grade: (L + 1,) float64."""
    return 2.0 ** np.arange(num_levels + 1) - 1


@lru_cache(maxsize=2)  # every block of a gallery asks for the same ones
def discounts(size: int) -> np.ndarray:
    """Return 1 / log2(1 + rank) for the ranks 0..G, (G + 1,) float64; rank 0 does not exist."""
    ranks = np.arange(1, size + 1)
    return np.concatenate([[0.0], 1.0 / np.log2(1.0 + ranks)])


def depths_of(metrics: Sequence[Metric]) -> np.ndarray:
    """Return the different k of the metrics, ascending."""
    return np.array(sorted({m.depth for m in metrics if m.depth is not None}), dtype=np.int64)


def depth_needed(metrics: Sequence[Metric], levels: Sequence[str], counts: np.ndarray) -> int | None:
    """Return the depth to which a block of queries has to be ranked; None for the whole list.

    Args:
        metrics: to compute.
        levels: names of the levels, finest first.
        counts: (q, L + 1) items a grade.
    """
    needed = 1
    for metric in metrics:
        if metric.depth is not None:
            needed = max(needed, metric.depth)
        elif kind_of(metric.kind).first_positives:
            grade = len(levels) - levels.index(str(metric.level)) if metric.binary else 1
            needed = max(needed, int(counts[:, grade:].sum(axis=1).max(initial=0)))
        else:
            return None
    return needed


_ASKED_BY = {"AP#g": "exact_ap", "mAP@R": "precision_r", "ASI": "asi"}


def sums_asked(metrics: Sequence[Metric]) -> frozenset[str]:
    """Return which of the sums that one kind of metric alone reads are needed; those of other packages may read any."""
    if any(metric.kind not in METRICS for metric in metrics):
        return frozenset(_ASKED_BY.values())
    return frozenset(_ASKED_BY[metric.kind] for metric in metrics if metric.kind in _ASKED_BY)


def metric_values(
    metrics: Sequence[Metric],
    levels: Sequence[str],
    found: OrderStatistics,
    counts: np.ndarray,
    gain: GainFunction,
    gains: np.ndarray,
    voters: tuple[np.ndarray, np.ndarray, ClassTree] | None = None,
) -> dict[str, np.ndarray]:
    """Compute every metric of every query.

    Args:
        metrics: as :func:`hgld.evaluation.metric.resolve` returns them.
        levels: names of the levels, finest first.
        found: statistics of the ranking.
        counts: (q, L + 1) items a grade in the whole ranking.
        gain: the function that ``gains`` came from.
        gains: (q, L + 1) gain of every grade.
        voters: arguments of :func:`cast_votes`, with as many items as the metrics of labels ask for; None without such.

    Returns:
        for every metric's name (q,) float64, NaN where it is undefined.
    """
    depths = depths_of(metrics).tolist()
    values, votes = {}, {}
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is what undefined means here
        for metric in metrics:
            grade = len(levels) - levels.index(str(metric.level)) if metric.binary else 1
            at = depths.index(metric.depth) if metric.depth is not None else -1
            if voters is not None and metric.number not in votes and kind_of(metric.kind).of_labels:
                votes[metric.number] = cast_votes(voters[0][:, : metric.number], *voters[1:])
            vote = votes.get(metric.number)
            ranked = RankedQueries(found, counts, gain, gains, grade, metric.number or 1, at, vote)
            values[str(metric)] = kind_of(metric.kind).compute(ranked)
    return values


@dataclass(frozen=True)
class RankedQueries:
    """Ranked queries as a metric reads them: the statistics of q queries, and the parts of the metric's name.

    Attributes:
        found: statistics of the ranking.
        counts: (q, L + 1) items a grade in the whole ranking.
        gain: the gain function that ``gains`` came from.
        gains: (q, L + 1) gain of every grade.
        grade: least grade of a positive: that of the level of a binary metric, 1 for graded ones.
        number: the k or g of the name; 1 if it has none.
        at: the column of k in ``found``; -1 where the name has no k.
        votes: of the first k, for metrics of labels.
    """

    found: OrderStatistics
    counts: np.ndarray
    gain: GainFunction
    gains: np.ndarray
    grade: int
    number: int
    at: int
    votes: "Votes | None" = None

    @property
    def positives(self) -> np.ndarray:
        """Number of positives (q,) in the whole ranking."""
        return self.counts[:, self.grade :].sum(axis=1)

    @property
    def hits(self) -> np.ndarray:
        """Number of positives (q,) among the first k."""
        return self.found.hits[:, self.at, self.grade :].sum(axis=1)

    @property
    def total(self) -> np.ndarray:
        """Relevance (q,) of all items together."""
        return (self.gains * self.counts)[:, 1:].sum(axis=1)


# -- metrics ----------------------------------------------------------------------------------------------------------
#
# Each kind is a function of ranked queries, in the order of hgld/evaluation/metric_kinds.py.


def average_precision(ranked: RankedQueries) -> np.ndarray:
    """Return AP."""
    return ranked.found.ap[:, ranked.grade - 1] / ranked.positives


def map_at_r(ranked: RankedQueries) -> np.ndarray:
    """Return mAP@R."""
    return ranked.found.precision_r[:, ranked.grade - 1] / ranked.positives


def recall_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return R@k."""
    return np.where(ranked.positives > 0, (ranked.hits > 0).astype(np.float64), np.nan)


def true_recall_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return TR@k."""
    return ranked.hits / np.minimum(ranked.positives, ranked.number)


def precision_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return P@k."""
    return np.where(ranked.positives > 0, ranked.hits / ranked.number, np.nan)


def map_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return mAP@k."""
    return ranked.found.precision[:, ranked.at, ranked.grade - 1] / np.minimum(ranked.positives, ranked.number)


def hierarchical_ap(ranked: RankedQueries) -> np.ndarray:
    """Return H-AP."""
    return ranked.found.hap / ranked.total


def hierarchical_recall_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return H-R@k."""
    return (ranked.gains[:, 1:] * ranked.found.hits[:, ranked.at, 1:]).sum(axis=1) / ranked.total


def hierarchical_precision_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return H-P@k."""
    found, at = ranked.found, ranked.at
    value = _hierarchical_precision(found.hits[:, at], found.grade_at[:, at], ranked.gains) / ranked.number
    return np.where(ranked.total > 0, value, np.nan)


def ndcg(ranked: RankedQueries) -> np.ndarray:
    """Return NDCG."""
    return ranked.found.dcg / _ideal_dcg(ranked.counts, None)


def ndcg_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return NDCG@k."""
    return ranked.found.dcg_at[:, ranked.at] / _ideal_dcg(ranked.counts, ranked.number)


def set_intersection(ranked: RankedQueries) -> np.ndarray:
    """Return ASI."""
    return ranked.found.asi


def weighted_ap(ranked: RankedQueries) -> np.ndarray:
    """Return wAP."""
    counts, weights = ranked.counts, ranked.gain.level_weights(ranked.counts)
    ap = np.where(weights > 0, ranked.found.ap / np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1], 0.0)
    return np.where(weights.any(axis=1), (weights * ap).sum(axis=1), np.nan)


def ap_of_grade(ranked: RankedQueries) -> np.ndarray:
    """Return AP#g."""
    return ranked.found.exact_ap[:, ranked.number - 1] / ranked.counts[:, ranked.number]


def mistake_severity(ranked: RankedQueries) -> np.ndarray:
    """Return the severity of mistakes (Bertinetto et al., "Making Better Mistakes", CVPR 2020).

    The height of the lowest common ancestor, in levels: L where the first item shares nothing. Defined where the
    gallery has an item of the query's finest class, and the first item is none.
    """
    num_levels = ranked.counts.shape[1] - 1
    grade = ranked.found.grade_at[:, ranked.at]
    is_mistake = (ranked.counts[:, num_levels] > 0) & (grade < num_levels)
    return np.where(is_mistake, num_levels - grade.astype(np.float64), np.nan)


def hierarchical_distance_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the average hierarchical distance of the first k (Bertinetto et al., CVPR 2020), in levels.

    Defined where the gallery has an item of the query's finest class; a list that ends before k is averaged as it is.
    """
    num_levels = ranked.counts.shape[1] - 1
    places = np.minimum(ranked.number, ranked.counts.sum(axis=1))
    shared = (np.arange(num_levels + 1) * ranked.found.hits[:, ranked.at]).sum(axis=1)
    return np.where(ranked.counts[:, num_levels] > 0, num_levels - shared / places, np.nan)


def knn_precision(ranked: RankedQueries) -> np.ndarray:
    """Return the hierarchical precision of the kNN prediction; see :class:`Votes`."""
    vote = _votes(ranked)
    return np.where(vote.true > 0, _ratio(vote.shared, vote.predicted), np.nan)


def knn_recall(ranked: RankedQueries) -> np.ndarray:
    """Return the hierarchical recall of the kNN prediction; see :class:`Votes`."""
    vote = _votes(ranked)
    return np.where(vote.true > 0, _ratio(vote.shared, vote.true), np.nan)


def knn_f1(ranked: RankedQueries) -> np.ndarray:
    """Return the hierarchical F1 of the kNN prediction; see :class:`Votes`."""
    vote = _votes(ranked)
    return np.where(vote.true > 0, _ratio(2 * vote.shared, vote.predicted + vote.true), np.nan)


def knn_consistency(ranked: RankedQueries) -> np.ndarray:
    """Return 1 where the kNN predictions of all levels lie on one path of the tree, else 0; see :class:`Votes`."""
    vote = _votes(ranked)
    return np.where(vote.voted > 0, vote.consistent.astype(np.float64), np.nan)


def _votes(ranked: RankedQueries) -> "Votes":
    assert (
        ranked.votes is not None
    )  # :func:`hgld.evaluation.evaluate.block_metrics` refuses such metrics of judged lists
    return ranked.votes


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


def _hierarchical_precision(hits: np.ndarray, grade: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Sum over the first k min(r_j, r_k) / r_k; where r_k is 0 its limit, the number of positives."""
    here = np.take_along_axis(gains, grade[:, None], axis=1)
    shares = np.divide(np.minimum(gains, here), here, out=np.ones_like(gains), where=here > 0)
    return (shares[:, 1:] * hits[:, 1:]).sum(axis=1)


def _ideal_dcg(counts: np.ndarray, k: int | None) -> np.ndarray:
    """Return (q,) DCG of the items in descending order of grade, or of the best k of them."""
    num_levels = counts.shape[1] - 1
    gains = exponential_gains(num_levels)
    ends = np.cumsum(counts[:, :0:-1], axis=1)  # of the grades L, L - 1, ..., 1 in an ideal list
    ends = ends if k is None else np.minimum(ends, k)
    summed = np.cumsum(discounts(int(ends.max(initial=0))))
    parts = np.diff(summed[ends], axis=1, prepend=0.0)
    return parts @ gains[:0:-1]


# -- votes of the first items -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Votes:
    """Classes that the first k items of q queries vote for, beside the queries' own.

    For precision, recall and F1 (Kiritchenko et al., "Functional Annotation of Genes Using Hierarchical Text
    Categorization", 2005) every item votes for the finest class that it is known by, and the class with most votes
    is predicted with its ancestors; the query's own finest known class stands with its ancestors too. For consistency
    every level has a vote of its own, among the items whose class there is known. Of classes with equally many votes
    that one is taken whose first item comes first; items of one score and grade come in the order of their labels, so
    that the order of the gallery never matters.

    Attributes:
        predicted: (q,) classes on the path of the predicted class.
        true: (q,) classes on the path of the query's own.
        shared: (q,) classes on both.
        consistent: (q,) whether no class predicted at a level has another ancestor than the one predicted there.
        voted: (q,) levels that have a prediction of their own.
    """

    predicted: np.ndarray
    true: np.ndarray
    shared: np.ndarray
    consistent: np.ndarray
    voted: np.ndarray


def cast_votes(items: np.ndarray, query: np.ndarray, tree: ClassTree) -> Votes:
    """Let the first items vote.

    Args:
        items: (q, k) gallery indices, best first, -1 where the ranking has ended.
        query: (q, L) numbers of the queries' classes.
        tree: of all classes.
    """
    labels = np.where(items[:, :, None] >= 0, tree.gallery.T[items], -1)  # (q, k, L)
    by_level = np.stack([_majority(labels[:, :, level]) for level in range(labels.shape[2])], axis=1)
    offsets = np.cumsum([0, *(len(table) for table in tree.ancestors)])
    paths = np.concatenate([*tree.ancestors, np.full((1, labels.shape[2]), -1)])  # the last: of no class
    path = paths[_majority(_finest(labels, offsets))]
    own = paths[_finest(query, offsets)]
    consistent = np.ones(len(items), bool)
    for level, table in enumerate(tree.ancestors):
        above = np.concatenate([table, np.full((1, table.shape[1]), -1)])[by_level[:, level]]
        consistent &= ~((above >= 0) & (by_level >= 0) & (above != by_level)).any(axis=1)
    return Votes(
        predicted=(path >= 0).sum(axis=1),
        true=(own >= 0).sum(axis=1),
        shared=((path >= 0) & (path == own)).sum(axis=1),
        consistent=consistent,
        voted=(by_level >= 0).sum(axis=1),
    )


def _finest(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the finest known class of (..., L) labels, numbered through all levels; -1 where none is known."""
    level = (labels >= 0).argmax(axis=-1)
    label = np.take_along_axis(labels, level[..., None], axis=-1)[..., 0]
    return np.where(label >= 0, label + offsets[level], -1)


def _majority(votes: np.ndarray) -> np.ndarray:
    """Return the most frequent of (q, k) votes, the first of equally frequent ones; -1 is no vote."""
    counts = np.zeros(votes.shape, np.int64)
    for place in range(votes.shape[1]):
        counts += votes == votes[:, place, None]
    counts[votes < 0] = 0
    best = counts.argmax(axis=1)[:, None] if votes.shape[1] else np.zeros((len(votes), 0), np.int64)
    return np.take_along_axis(votes, best, axis=1)[:, 0]


def first_items(
    scores: Tensor, grades: Tensor, depth: int, order: np.ndarray | None = None, items: np.ndarray | None = None
) -> np.ndarray:
    """Return (q, min(depth, G)) gallery indices of the highest scores, equal ones by ascending grade, then order.

    Args:
        scores: (q, G) floating, -inf for items out of the ranking.
        grades: (q, G) uint8.
        depth: how many.
        order: integers by which the gallery's items of one score and grade are ordered; None: by their index.
        items: (q, G) gallery indices of the columns, ascending where scores are equal; None: the columns themselves.

    Returns:
        int64; -1 where the ranking has ended.
    """
    depth = min(depth, scores.shape[1])
    best, place = scores.topk(min(depth + 1, scores.shape[1]), dim=1)
    grade = grades.gather(1, place).cpu().numpy()
    best, place = best.cpu().numpy(), place.cpu().numpy()
    named = place if items is None else np.take_along_axis(items, place, axis=1).astype(np.int64)
    keys = (named, named if order is None else order[named], grade, -best)
    sorted_ = np.lexsort(keys, axis=1)[:, :depth]
    found = np.take_along_axis(named, sorted_, axis=1)
    if 0 < depth < best.shape[1]:
        tied = np.flatnonzero(best[:, depth - 1] == best[:, depth])  # of equal scores topk takes any
        for row, equal, level in _equal_to(scores, grades, tied, best[tied, depth - 1]):
            higher = int((best[row] > best[row, depth - 1]).sum())
            equal = equal if items is None else items[row, equal]
            chosen = np.lexsort((equal if order is None else order[equal], level))[: depth - higher]
            found[row, higher:] = equal[chosen]
    found[np.take_along_axis(best, sorted_, axis=1) == -np.inf] = -1
    return found


def _equal_to(
    scores: Tensor, grades: Tensor, rows: np.ndarray, wanted: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield some rows, the columns where their scores are those wanted, and the grades there; waits for all at once."""
    if not len(rows):
        return
    chosen, score = (torch.from_numpy(part).to(scores.device) for part in (rows, wanted))
    number, column = torch.nonzero(scores[chosen] == score[:, None], as_tuple=True)
    grade = grades[chosen[number], column].cpu().numpy()
    ends = np.searchsorted(number.cpu().numpy(), np.arange(1, len(rows)))
    yield from zip(rows.tolist(), np.split(column.cpu().numpy(), ends), np.split(grade, ends), strict=True)


# -- order statistics on the CPU --------------------------------------------------------------------------------------
#
# Over as many threads as torch has.

_WORTH_SELECTING = 8  # the top 1/8 of a row or less: finding a floor under it first is cheaper than ordering the row
_FEWEST_GROUPS = 256  # long enough for the processor to take maxima of many groups at a time
_GROUPS_A_PLACE = 2


def order_statistics(
    scores: Tensor,
    grades: Tensor,
    counts: np.ndarray,
    relevance: np.ndarray,
    depths: np.ndarray,
    depth: int | None,
    asked: frozenset[str],
) -> OrderStatistics:
    """Rank every row.

    Args:
        scores: (q, G) float32 on the CPU, finite, or -inf for items out of the ranking.
        grades: (q, G) uint8, 0 for items out of the ranking.
        counts: (q, L + 1) int64 items of every grade.
        relevance: (q, L + 1) float64, H-AP's.
        depths: (K,) int64, the k of the metrics, ascending.
        depth: how much of the list is needed; None for the whole of it.
        asked: see :func:`sums_asked`.

    Returns:
        the sums; those that read the whole list are meaningless where ``depth`` is given, and those that nobody asks
        for may be 0.
    """
    num_queries, size = scores.shape
    num_levels = counts.shape[1] - 1
    found = OrderStatistics.zeros(num_queries, num_levels, len(depths))
    by_rank, gains = discounts(size), exponential_gains(num_levels)
    values, grade_rows = scores.numpy(), grades.numpy()
    wanted = ("exact_ap" in asked, "precision_r" in asked, "asi" in asked)

    def rank(part: tuple[int, int]) -> None:
        start, stop = part
        rows = values[start:stop]
        floors = _floors(rows, depth)
        sums = found.rows(start, stop)
        totals, gain = counts[start:stop], relevance[start:stop]
        rank_rows(rows, grade_rows[start:stop], floors, totals, gain, gains, by_rank, depths, wanted, sums)

    parts = list(_parts(num_queries, torch.get_num_threads()))
    if len(parts) == 1:
        rank(parts[0])
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(rank, parts))
    return found


def _floors(rows: np.ndarray, depth: int | None) -> np.ndarray:
    """Return a score at or below that of the item at place ``depth`` of every row, so that no item below it matters.

    The row is dealt out to more groups than ``depth``. As many groups as ``depth`` have a maximum at or above the
    ``depth``-th greatest maximum, so at least as many items have; of shuffled rows hardly more.
    """
    size = rows.shape[1]
    if depth is None or depth * _WORTH_SELECTING > size:
        return np.full(len(rows), -np.inf, np.float32)
    groups = min(max(_FEWEST_GROUPS, _GROUPS_A_PLACE * depth), size)
    rounds = size // groups
    maxima = rows[:, : rounds * groups].reshape(len(rows), rounds, groups).max(axis=1)
    return np.ascontiguousarray(np.partition(maxima, groups - depth, axis=1)[:, groups - depth])


def _parts(size: int, num_parts: int) -> Iterator[tuple[int, int]]:
    edges = np.linspace(0, size, min(num_parts, size) + 1).astype(int)
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


# -- order statistics on any torch device -----------------------------------------------------------------------------
#
# In whole-block operations.


def order_statistics_torch(
    scores: Tensor,
    grades: Tensor,
    counts: np.ndarray,
    relevance: np.ndarray,
    depths: np.ndarray,
    depth: int | None,
    asked: frozenset[str],
) -> OrderStatistics:
    """Rank every row; arguments and result are those of :func:`hgld.evaluation.statistics.order_statistics`.

    The host waits for the device once, when the sums are whole.
    """
    device = scores.device
    num_queries, size = scores.shape
    num_levels = counts.shape[1] - 1
    whole = OrderStatistics.zeros(num_queries, num_levels, len(depths))
    found = {
        field.name: torch.zeros(getattr(whole, field.name).shape, dtype=torch.float64, device=device)
        for field in fields(whole)
    }
    listed, ends = _ordered(scores, grades, None if depth is None or depth + 1 >= size else depth + 1)
    totals = torch.from_numpy(counts).to(device)
    _fill_formula(found, listed, ends, torch.from_numpy(relevance).to(device), depths, "exact_ap" in asked)
    _fill_list(found, listed, totals, depths)
    found["asi"][:] = _set_intersection(listed, totals, int(counts[:, 1:].sum(axis=1).max(initial=0)))
    widths = [math.prod(sums.shape[1:]) for sums in found.values()]
    table = torch.cat([s.reshape(num_queries, w) for s, w in zip(found.values(), widths, strict=True)], dim=1)
    for name, part in zip(found, np.split(table.cpu().numpy(), np.cumsum(widths)[:-1], axis=1), strict=True):
        field = getattr(whole, name)
        field[:] = part.reshape(field.shape)
    return whole


def _ordered(scores: Tensor, grades: Tensor, length: int | None) -> tuple[Tensor, Tensor]:
    """Return grades in list order, (q, M) uint8, and for every place the last one (from 0) of its tie group.

    The keys order by descending score, then ascending grade, so that one sort of integers is exact about ties.
    """
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # + 0.0: -0.0 becomes the 0.0 that it equals
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (~ascending << 8) | grades
    keys = keys.sort(dim=1).values if length is None else keys.topk(length, dim=1, largest=False).values
    listed = (keys & 255).to(torch.uint8)
    score = keys >> 8
    num = keys.shape[1]
    place = torch.arange(num, device=keys.device)
    last = torch.ones_like(listed, dtype=torch.bool)
    last[:, :-1] = score[:, 1:] != score[:, :-1]
    ends = torch.where(last, place, num).flip(1).cummin(1).values.flip(1)
    return listed, ends


def _fill_formula(
    found: dict[str, Tensor], listed: Tensor, ends: Tensor, relevance: Tensor, depths: np.ndarray, exact: bool
) -> None:
    num_levels = found["ap"].shape[1]
    device = listed.device
    share = 1.0 / (ends + 1).double()
    hap = torch.zeros(len(listed), dtype=torch.float64, device=device)
    gain = relevance.gather(1, listed.long())
    negatives = (listed == 0).cumsum(1).gather(1, ends)
    at_least = torch.zeros_like(ends)
    for grade in range(num_levels, 0, -1):
        counted = (listed == grade).cumsum(1).gather(1, ends)
        at_least += counted
        found["ap"][:, grade - 1] = (at_least * share * (listed >= grade)).sum(1)
        hap += (torch.minimum(gain, relevance[:, grade, None]) * counted * share * (listed > 0)).sum(1)
        if exact:
            precision = counted.double() / (counted + negatives).clamp(min=1)
            found["exact_ap"][:, grade - 1] = (precision * (listed == grade)).sum(1)
    found["hap"][:] = hap
    gains = torch.from_numpy(exponential_gains(num_levels)).to(device)
    by_rank = torch.from_numpy(discounts(listed.shape[1])).to(device)
    dcg = gains[listed.long()] * by_rank[ends + 1]
    found["dcg"][:] = dcg.sum(1)
    for number, k in enumerate(depths.tolist()):
        found["dcg_at"][:, number] = (dcg * (ends < k)).sum(1)


def _fill_list(found: dict[str, Tensor], listed: Tensor, totals: Tensor, depths: np.ndarray) -> None:
    num_levels = found["ap"].shape[1]
    num = listed.shape[1]
    place = torch.arange(1, num + 1, device=listed.device)
    for grade in range(1, num_levels + 1):
        chosen = listed >= grade
        terms = (chosen.cumsum(1) * chosen) / place.double()
        positives = totals[:, grade:].sum(1, keepdim=True)
        found["precision_r"][:, grade - 1] = (terms * (place <= positives)).sum(1)
        for number, k in enumerate(depths.tolist()):
            found["precision"][:, number, grade - 1] = terms[:, :k].sum(1)
            found["hits"][:, number, grade] = (listed[:, :k] == grade).sum(1)
    for number, k in enumerate(depths.tolist()):
        if k <= num:
            found["grade_at"][:, number] = listed[:, k - 1]


def _set_intersection(listed: Tensor, totals: Tensor, most: int) -> Tensor:
    num_levels = totals.shape[1] - 1
    positives = totals[:, 1:].sum(1, keepdim=True)
    head = listed[:, :most]
    place = torch.arange(1, head.shape[1] + 1, device=listed.device)
    shared = torch.zeros(head.shape, dtype=torch.int64, device=listed.device)
    before = torch.zeros_like(positives)
    for grade in range(num_levels, 0, -1):
        total = totals[:, grade, None]
        ideal = torch.minimum((place - before).clamp(min=0), total)
        shared += torch.minimum((head == grade).cumsum(1), ideal)
        before = before + total
    return (shared / place.double() * (place <= positives)).sum(1) / positives.squeeze(1)
