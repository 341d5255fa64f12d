"""Order statistics of a block of queries, on the CPU or in torch, and the metrics computed from them."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError
from hgld.evaluation.metric import METRICS, Metric
from hgld.evaluation.ranks import Wanted, rank_rows
from hgld.evaluation.scores import Rows, descending_keys, prepare_embeddings
from hgld.labels import Array
from hgld.relevance import GainFunction

# -- the statistics ---------------------------------------------------------------------------------------------------


class OrderStatistics(NamedTuple):
    """Sums over the positives of q queries, from which every metric follows without looking at the ranking again.

    In an axis of length L, entry g - 1 belongs to the items of at least grade g. K is the number of cutoffs k that the
    metrics need. :func:`metric_values` handles undefined quotients, because it knows the number of positives.

    Attributes:
        ap: (q, L) sum of rank+/rank over the items of at least each grade.
        precision_r: (q, L) sum of P(i) over the positives among the first R.
        hap: (q,) sum of Hrank+/rank.
        dcg: (q,) sum of gain/log2(1 + rank).
        asi: (q,) average set intersection.
        hits: (q, K, L + 1) number of items of each grade among the first k (grade 0 is not counted).
        precision: (q, K, L) sum of P(i) over the positives among the first k.
        grade_at: (q, K) grade of the item at rank k; 0 if the ranking has ended.
        dcg_at: (q, K) partial sum of ``dcg`` over the ranks up to k.
    """

    ap: np.ndarray
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
        """Return statistics whose sums are all 0."""
        q, levels, k = num_queries, num_levels, num_depths
        return cls(
            ap=np.zeros((q, levels)),
            precision_r=np.zeros((q, levels)),
            hap=np.zeros(q),
            dcg=np.zeros(q),
            asi=np.zeros(q),
            hits=np.zeros((q, k, levels + 1), np.int64),
            precision=np.zeros((q, k, levels)),
            grade_at=np.zeros((q, k), np.int64),
            dcg_at=np.zeros((q, k)),
        )


def exponential_gains(num_levels: int) -> np.ndarray:
    """Return NDCG's gain of every grade: (L + 1,) float64."""
    return 2.0 ** np.arange(num_levels + 1) - 1


@lru_cache(maxsize=2)  # every block of a gallery needs the same discounts
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
        metrics: metrics to compute.
        levels: names of the levels, finest first.
        counts: (q, L + 1) number of items per grade.
    """
    needed = 1
    for metric in metrics:
        if metric.depth is not None:
            needed = max(needed, metric.depth)
        elif metric.definition.first_positives:
            grade = len(levels) - levels.index(str(metric.level)) if metric.binary else 1
            needed = max(needed, int(counts[:, grade:].sum(axis=1).max(initial=0)))
        else:
            return None
    return needed


def metric_values(
    metrics: Sequence[Metric],
    levels: Sequence[str],
    found: OrderStatistics,
    counts: np.ndarray,
    gain: GainFunction,
    gains: np.ndarray,
) -> dict[str, np.ndarray]:
    """Compute every metric of every query.

    Args:
        metrics: metrics that :func:`hgld.evaluation.metric.resolve` returned.
        levels: names of the levels, finest first.
        found: statistics of the ranking.
        counts: (q, L + 1) number of items per grade in the whole ranking.
        gain: gain function from which ``gains`` was computed.
        gains: (q, L + 1) gain of every grade.

    Returns:
        a dict from metric names to (q,) float64 values; NaN if undefined.
    """
    depths = depths_of(metrics).tolist()
    values = {}
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 gives NaN, which means undefined
        for metric in metrics:
            grade = len(levels) - levels.index(str(metric.level)) if metric.binary else 1
            at = depths.index(metric.depth) if metric.depth is not None else -1
            ranked = RankedQueries(found, counts, gain, gains, grade, metric.number or 1, at)
            values[str(metric)] = metric.definition.compute(ranked)
    return values


@dataclass(frozen=True)
class RankedQueries:
    """Ranked queries as a metric reads them: the statistics of q queries, and the parts of the metric's name.

    Attributes:
        found: statistics of the ranking.
        counts: (q, L + 1) number of items per grade in the whole ranking.
        gain: gain function from which ``gains`` was computed.
        gains: (q, L + 1) gain of every grade.
        grade: lowest grade of a positive: the grade of the metric's level if the metric is binary, 1 if it is graded.
        number: k of the metric's name; 1 if the name has no k.
        at: the column of k in ``found``; -1 if the name has no k.
    """

    found: OrderStatistics
    counts: np.ndarray
    gain: GainFunction
    gains: np.ndarray
    grade: int
    number: int
    at: int

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
# Each function computes a metric of ranked queries; the order is that of :data:`hgld.evaluation.metric.METRICS`.


def average_precision(ranked: RankedQueries) -> np.ndarray:
    """Return the AP of every query: (q,)."""
    return ranked.found.ap[:, ranked.grade - 1] / ranked.positives


def map_at_r(ranked: RankedQueries) -> np.ndarray:
    """Return the mAP@R of every query: (q,)."""
    return ranked.found.precision_r[:, ranked.grade - 1] / ranked.positives


def recall_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the R@k of every query: (q,)."""
    return np.where(ranked.positives > 0, (ranked.hits > 0).astype(np.float64), np.nan)


def true_recall_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the TR@k of every query: (q,)."""
    return ranked.hits / np.minimum(ranked.positives, ranked.number)


def precision_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the P@k of every query: (q,)."""
    return np.where(ranked.positives > 0, ranked.hits / ranked.number, np.nan)


def map_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the mAP@k of every query: (q,)."""
    return ranked.found.precision[:, ranked.at, ranked.grade - 1] / np.minimum(ranked.positives, ranked.number)


def hierarchical_ap(ranked: RankedQueries) -> np.ndarray:
    """Return the H-AP of every query: (q,)."""
    return ranked.found.hap / ranked.total


def hierarchical_recall_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the H-R@k of every query: (q,)."""
    return (ranked.gains[:, 1:] * ranked.found.hits[:, ranked.at, 1:]).sum(axis=1) / ranked.total


def hierarchical_precision_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the H-P@k of every query: (q,)."""
    gains = ranked.gains
    here = np.take_along_axis(gains, ranked.found.grade_at[:, ranked.at, None], axis=1)
    # If the gain at rank k is 0, the shares are 1, their limit, so that the sum is the number of positives.
    shares = np.divide(np.minimum(gains, here), here, out=np.ones_like(gains), where=here > 0)
    value = (shares * ranked.found.hits[:, ranked.at])[:, 1:].sum(axis=1) / ranked.number
    return np.where(ranked.total > 0, value, np.nan)


def ndcg(ranked: RankedQueries) -> np.ndarray:
    """Return the NDCG of every query: (q,)."""
    return ranked.found.dcg / _ideal_dcg(ranked.counts, None)


def ndcg_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the NDCG@k of every query: (q,)."""
    return ranked.found.dcg_at[:, ranked.at] / _ideal_dcg(ranked.counts, ranked.number)


def set_intersection(ranked: RankedQueries) -> np.ndarray:
    """Return the ASI of every query: (q,)."""
    return ranked.found.asi


def weighted_ap(ranked: RankedQueries) -> np.ndarray:
    """Return the wAP of every query: (q,)."""
    counts, weights = ranked.counts, ranked.gain.level_weights(torch.from_numpy(ranked.counts)).numpy()
    ap = np.where(weights > 0, ranked.found.ap / np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1], 0.0)
    return np.where(weights.any(axis=1), (weights * ap).sum(axis=1), np.nan)


def mistake_severity(ranked: RankedQueries) -> np.ndarray:
    """Return the severity of mistakes (Bertinetto et al., "Making Better Mistakes", CVPR 2020).

    The severity is the height, in levels, of the lowest common ancestor of the query and the first item; L if they
    share no class. The severity is defined if the gallery has an item of the query's finest class, but the first item
    is not of this class.
    """
    num_levels = ranked.counts.shape[1] - 1
    grade = ranked.found.grade_at[:, ranked.at]
    is_mistake = (ranked.counts[:, num_levels] > 0) & (grade < num_levels)
    return np.where(is_mistake, num_levels - grade.astype(np.float64), np.nan)


def hierarchical_distance_at_k(ranked: RankedQueries) -> np.ndarray:
    """Return the average hierarchical distance of the first k (Bertinetto et al., CVPR 2020), in levels.

    The distance is defined if the gallery has an item of the query's finest class. A list of fewer than k items is
    averaged over its items.
    """
    num_levels = ranked.counts.shape[1] - 1
    places = np.minimum(ranked.number, ranked.counts.sum(axis=1))
    shared = (np.arange(num_levels + 1) * ranked.found.hits[:, ranked.at]).sum(axis=1)
    return np.where(ranked.counts[:, num_levels] > 0, num_levels - shared / places, np.nan)


def _ideal_dcg(counts: np.ndarray, k: int | None) -> np.ndarray:
    """Return (q,) DCG of all items in descending order of grade, or of the first k items in this order."""
    num_levels = counts.shape[1] - 1
    gains = exponential_gains(num_levels)
    ends = np.cumsum(counts[:, :0:-1], axis=1)  # last ranks of the grades L, L - 1, ..., 1 in an ideal list
    ends = ends if k is None else np.minimum(ends, k)
    summed = np.cumsum(discounts(int(ends.max(initial=0))))
    parts = np.diff(summed[ends], axis=1, prepend=0.0)
    return parts @ gains[:0:-1]


# -- metrics of the whole set -----------------------------------------------------------------------------------------

_ROWS_AT_ONCE = 8192
_MOST_NUMBERS = 1 << 26  # 256 MB of float32
_MOST_PRODUCTS = 1 << 40  # k-means takes some 50 passes, an hour on two cores at this limit
_MOST_PRODUCTS_IN_PASSES = 1 << 43  # two passes, ten minutes on two cores at this limit


@dataclass(frozen=True)
class ClassDistances:
    """Mean cosine distances (1 - cosine, half the squared Euclidean distance of unit vectors) in and between classes.

    Attributes:
        intra: mean distance between two items of a class, averaged over the classes of two or more items; NaN if there
            are no such classes.
        inter: mean distance between the normalised centres of two classes; NaN if there is only one class.
    """

    intra: float
    inter: float


def class_distances(embeddings: Array | Rows, labels: Array) -> ClassDistances:
    """Compute the mean intra-class and inter-class distance, exact over all pairs in O(N D).

    PNP (Li et al., "Rethinking the Optimization of Average Precision", AAAI 2022) prints these distances as Roth et al.
    define them ("Revisiting Training Strategies and Generalization Performance in Deep Metric Learning", ICML 2020).
    The code of Roth et al. gives a class of one item the largest intra-class distance; here such a class has no
    intra-class distance.

    Args:
        embeddings: (N, D) of any floating dtype; this function normalises them.
        labels: (N,) integers; items with negative labels are excluded.

    Returns:
        the mean distance within classes and the mean distance between classes.

    Raises:
        InputError: embeddings or labels have the wrong shape or dtype, embeddings hold NaN, Inf or zero vectors, or no
            item has a label.
    """
    known, classes = _labelled(embeddings, labels)
    counts = np.bincount(classes)
    sums = np.zeros((len(counts), embeddings.shape[1]))
    for start in range(0, len(known), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        np.add.at(sums, classes[part], _unit(embeddings, known[part]).astype(np.float64))
    lengths = np.linalg.norm(sums, axis=1)
    several = counts > 1
    alike = (lengths**2 - counts)[several] / (counts * (counts - 1))[several]  # mean cosine of two items of a class
    centers = sums / np.where(lengths > 0, lengths, 1.0)[:, None]
    num_pairs = len(counts) * (len(counts) - 1)
    between = (centers.sum(axis=0) ** 2).sum() - (centers**2).sum()
    return ClassDistances(
        intra=float(1 - alike.mean()) if len(alike) else float("nan"),
        inter=float(1 - between / num_pairs) if num_pairs else float("nan"),
    )


def intra_class_distance(embeddings: Array | Rows, labels: Array) -> float:
    """Compute ``dists@intra``, the mean distance within classes (:func:`class_distances`)."""
    return class_distances(embeddings, labels).intra


def inter_class_distance(embeddings: Array | Rows, labels: Array) -> float:
    """Compute ``dists@inter``, the mean distance between classes (:func:`class_distances`)."""
    return class_distances(embeddings, labels).inter


_KMEANS, _MINI_BATCH, _SKIPPED = "k-means", "mini-batch k-means, two passes", "skipped: too many items and classes"


def clustering_of(num_items: int, dim: int, num_classes: int) -> str:
    """Return the method by which :func:`clustering_nmi` clusters: its cost grows with items x dimensions x classes."""
    products = num_items * dim * num_classes
    if products <= _MOST_PRODUCTS and num_items * dim <= _MOST_NUMBERS:
        return _KMEANS
    return _MINI_BATCH if products <= _MOST_PRODUCTS_IN_PASSES else _SKIPPED


def clustering_nmi(embeddings: Array | Rows, labels: Array, *, seed: int = 0) -> float:
    """Compute the normalised mutual information of a k-means clustering with the classes: 2 I / (H_1 + H_2).

    Large tables are clustered by mini-batch k-means: one pass over blocks of random items moves the centres, a second
    pass assigns the items. Still larger ones, which would take hours on a CPU, are skipped.

    Args:
        embeddings: (N, D) of any floating dtype; this function normalises them.
        labels: (N,) integers; items with negative labels are excluded. There are as many clusters as classes.
        seed: seed of k-means++ and of the blocks.

    Returns:
        0 (independent) to 1 (the same partition); NaN if the table is skipped (``clustering_of``).

    Raises:
        InputError: embeddings or labels have the wrong shape or dtype, embeddings hold NaN, Inf or zero vectors, or no
            item has a label.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans  # slow to import, and no other metric needs it
    from sklearn.metrics import normalized_mutual_info_score

    known, classes = _labelled(embeddings, labels)
    count = int(classes.max()) + 1
    method = clustering_of(len(known), embeddings.shape[1], count)
    if method == _SKIPPED:
        return float("nan")
    if method == _KMEANS:
        found = KMeans(count, n_init="auto", random_state=seed).fit_predict(_unit(embeddings, known))
    else:
        clusters = MiniBatchKMeans(count, random_state=seed)
        order, block = np.random.default_rng(seed).permutation(len(known)), max(_ROWS_AT_ONCE, 2 * count)
        # A last block of fewer items than clusters could not start the clustering, so it joins the one before it.
        blocks = [np.sort(part) for part in np.array_split(order, max(1, len(order) // block))]
        for part in blocks:
            clusters.partial_fit(_unit(embeddings, known[part]))
        found = np.empty(len(known), np.int32)
        for part in blocks:
            found[part] = clusters.predict(_unit(embeddings, known[part]))
    return float(normalized_mutual_info_score(classes, found))


def _labelled(embeddings: Array | Rows, labels: Array) -> tuple[np.ndarray, np.ndarray]:
    """Check embeddings and labels; return the positions of the items with labels, and their classes as 0, 1, ..."""
    num_items = len(embeddings if isinstance(embeddings, Rows) else Rows(embeddings, "item"))
    column = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if column.shape != (num_items,) or not np.issubdtype(column.dtype, np.integer):
        raise InputError(
            f"labels have shape {column.shape} and dtype {column.dtype}; expected ({num_items},) integers: one level."
        )
    if not (column >= 0).any():
        raise InputError("no item has a known label; expected labels from 0.")
    return np.flatnonzero(column >= 0), np.unique(column[column >= 0], return_inverse=True)[1]


def _unit(embeddings: Array | Rows, items: np.ndarray) -> np.ndarray:
    """Return float32 unit rows of some items."""
    rows = embeddings[torch.from_numpy(items)] if isinstance(embeddings, Tensor | Rows) else embeddings[items]
    return prepare_embeddings(rows, "item").numpy()


# -- order statistics -------------------------------------------------------------------------------------------------


def order_statistics(
    scores: Tensor,
    grades: Tensor,
    counts: np.ndarray,
    relevance: np.ndarray,
    depths: np.ndarray,
    depth: int | None,
    kinds: Collection[str],
) -> OrderStatistics:
    """Rank every row on the CPU, on as many threads as torch uses.

    Args:
        scores: (q, G) float32 on the CPU, finite, or -inf for items that are not ranked.
        grades: (q, G) uint8, 0 for items that are not ranked.
        counts: (q, L + 1) int64, number of items of each grade.
        relevance: (q, L + 1) float64, relevance of each grade in H-AP.
        depths: (K,) int64, the k of the metrics, ascending.
        depth: number of first items that are needed; None: all items.
        kinds: ``Metric.kind`` of the metrics: names with ``k`` for the cutoff and without the level, such as ``R@k``.

    Returns:
        the sums. If ``depth`` is given, sums over the whole list may be meaningless. Sums that no metric of ``kinds``
        reads may be 0.
    """
    (num_queries, size), num_levels = scores.shape, counts.shape[1] - 1
    sums = OrderStatistics.zeros(num_queries, num_levels, len(depths))
    by_others = any(kind not in METRICS for kind in kinds)  # metrics of other packages may read every sum
    asked = (by_others or "mAP@R" in kinds, by_others or "ASI" in kinds)
    wanted = Wanted(exponential_gains(num_levels), discounts(size), depths, *asked)

    def rank(start: int, stop: int) -> None:
        rows = OrderStatistics(*(table[start:stop] for table in sums))
        part = slice(start, stop)
        rank_rows(scores.numpy()[part], grades.numpy()[part], counts[part], relevance[part], wanted, rows)

    edges = np.linspace(0, num_queries, min(torch.get_num_threads(), num_queries) + 1).astype(int).tolist()
    with ThreadPoolExecutor(len(edges)) as pool:
        for task in [pool.submit(rank, *part) for part in pairwise(edges)]:
            task.result()
    return sums


def order_statistics_torch(
    scores: Tensor,
    grades: Tensor,
    counts: np.ndarray,
    relevance: np.ndarray,
    depths: np.ndarray,
    depth: int | None,
    kinds: Collection[str],
) -> OrderStatistics:
    """Rank every row on any torch device; arguments and result are the same as in :func:`order_statistics`."""
    device, size = scores.device, scores.shape[1]
    sums = OrderStatistics.zeros(len(scores), counts.shape[1] - 1, len(depths))
    # One tensor holds all sums, so that the host waits for a GPU once per block.
    packed = torch.zeros(sum(table.size for table in sums), dtype=torch.float64, device=device)
    views: list[Any] = _unpack(packed, sums)
    found: Any = OrderStatistics(*views)  # Any: here the fields are tensors, not arrays
    listed, ends = _ordered(scores, grades, None if depth is None or depth + 1 >= size else depth + 1)
    totals = torch.from_numpy(counts).to(device)
    _fill_formula(found, listed, ends, torch.from_numpy(relevance).to(device), depths)
    _fill_list(found, listed, totals, depths)
    found.asi[:] = _set_intersection(listed, totals, int(counts[:, 1:].sum(axis=1).max(initial=0)))
    tables = zip(_unpack(packed.cpu(), sums), sums, strict=True)
    return OrderStatistics(*(part.numpy().astype(table.dtype, copy=False) for part, table in tables))


def _unpack(packed: Tensor, sums: OrderStatistics) -> list[Tensor]:
    """Return views of ``packed`` in the shapes of ``sums``."""
    parts = packed.split([table.size for table in sums])
    return [part.view(table.shape) for part, table in zip(parts, sums, strict=True)]


def _ordered(scores: Tensor, grades: Tensor, length: int | None) -> tuple[Tensor, Tensor]:
    """Return (q, M) uint8 grades in list order, and for every index the last index with the same score."""
    keys = (descending_keys(scores) << 8) | grades
    keys = keys.sort(dim=1).values if length is None else keys.topk(length, dim=1, largest=False).values
    listed = (keys & 255).to(torch.uint8)
    score = keys >> 8
    num = keys.shape[1]
    place = torch.arange(num, device=keys.device)
    last = torch.ones_like(listed, dtype=torch.bool)
    last[:, :-1] = score[:, 1:] != score[:, :-1]
    ends = torch.where(last, place, num).flip(1).cummin(1).values.flip(1)
    return listed, ends


_INDEX_BITS = 24


def first_items(scores: Tensor, grades: Tensor, depth: int) -> np.ndarray:
    """Return (q, min(depth, G)) indices of the highest scores; equal scores by ascending grade, then index.

    Args:
        scores: (q, G) float32, G below 2^24.
        grades: (q, G) uint8.
        depth: number of first items.
    """

    def keys(scores: Tensor, grades: Tensor, items: Tensor) -> Tensor:
        return (descending_keys(scores) << 8 | grades) << _INDEX_BITS | items

    depth = min(depth, scores.shape[1])
    best, items = scores.topk(min(depth + 1, scores.shape[1]), dim=1)  # many times faster than sorting all keys
    first = keys(best[:, :depth], grades.gather(1, items[:, :depth]), items[:, :depth]).sort(dim=1).values
    tied = torch.nonzero(best[:, depth - 1] == best[:, -1])[:, 0] if best.shape[1] > depth else items[0, :0]
    if len(tied):  # ties with the last item must be known, so these rows need the keys of all items
        every = keys(scores[tied], grades[tied], torch.arange(scores.shape[1], device=scores.device))
        first[tied] = every.topk(depth, dim=1, largest=False).values
    return (first & ((1 << _INDEX_BITS) - 1)).cpu().numpy()


def _fill_formula(found: Any, listed: Tensor, ends: Tensor, relevance: Tensor, depths: np.ndarray) -> None:
    num_levels = found.ap.shape[1]
    device = listed.device
    share = 1.0 / (ends + 1).double()
    gain = relevance.gather(1, listed.long())
    at_least = torch.zeros_like(ends)
    for grade in range(num_levels, 0, -1):
        counted = (listed == grade).cumsum(1).gather(1, ends)
        at_least += counted
        found.ap[:, grade - 1] = (at_least * share * (listed >= grade)).sum(1)
        found.hap[:] += (torch.minimum(gain, relevance[:, grade, None]) * counted * share * (listed > 0)).sum(1)
    gains = torch.from_numpy(exponential_gains(num_levels)).to(device)
    by_rank = torch.from_numpy(discounts(listed.shape[1])).to(device)
    dcg = gains[listed.long()] * by_rank[ends + 1]
    found.dcg[:] = dcg.sum(1)
    for number, k in enumerate(depths.tolist()):
        found.dcg_at[:, number] = (dcg * (ends < k)).sum(1)


def _fill_list(found: Any, listed: Tensor, totals: Tensor, depths: np.ndarray) -> None:
    num_levels = found.ap.shape[1]
    num = listed.shape[1]
    place = torch.arange(1, num + 1, device=listed.device)
    for grade in range(1, num_levels + 1):
        chosen = listed >= grade
        terms = (chosen.cumsum(1) * chosen) / place.double()
        positives = totals[:, grade:].sum(1, keepdim=True)
        found.precision_r[:, grade - 1] = (terms * (place <= positives)).sum(1)
        for number, k in enumerate(depths.tolist()):
            found.precision[:, number, grade - 1] = terms[:, :k].sum(1)
            found.hits[:, number, grade] = (listed[:, :k] == grade).sum(1)
    for number, k in enumerate(depths.tolist()):
        if k <= num:
            found.grade_at[:, number] = listed[:, k - 1]


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
