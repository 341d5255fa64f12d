"""The order statistics of a block of queries on the CPU, over as many threads as torch has."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from hgld.metrics.kernels import rank_rows
from hgld.metrics.statistics import OrderStatistics, discounts, exponential_gains

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
    exact: bool,
) -> OrderStatistics:
    """Rank every row.

    Args:
        scores: (q, G) float32 on the CPU, finite, or -inf for items out of the ranking.
        grades: (q, G) uint8, 0 for items out of the ranking.
        counts: (q, L + 1) int64 items of every grade.
        relevance: (q, L + 1) float64, H-AP's.
        depths: (K,) int64, the k of the metrics, ascending.
        depth: how much of the list is needed; None for the whole of it.
        exact: whether the AP of every grade alone is needed.

    Returns:
        the sums; those that read the whole list are meaningless where ``depth`` is given.
    """
    num_queries, size = scores.shape
    num_levels = counts.shape[1] - 1
    found = OrderStatistics.zeros(num_queries, num_levels, len(depths))
    by_rank, gains = discounts(size), exponential_gains(num_levels)
    values, grade_rows = scores.numpy(), grades.numpy()

    def rank(part: tuple[int, int]) -> None:
        start, stop = part
        rows = values[start:stop]
        floors = _floors(rows, depth)
        sums = found.rows(start, stop)
        totals, worth = counts[start:stop], relevance[start:stop]
        rank_rows(rows, grade_rows[start:stop], floors, totals, worth, gains, by_rank, depths, exact, sums)

    parts = list(_parts(num_queries, torch.get_num_threads()))
    if len(parts) == 1:
        rank(parts[0])
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(rank, parts))
    return found


def _floors(rows: np.ndarray, depth: int | None) -> np.ndarray:
    """A score at or below that of the item at place ``depth`` of every row, so that no item below it can matter.

    The row is dealt out to more groups than ``depth``. As many groups as ``depth`` have a maximum at or above the
    ``depth``-th greatest maximum, so at least as many items have; of shuffled rows hardly more.
    """
    size = rows.shape[1]
    if depth is None or depth * _WORTH_SELECTING > size:
        return np.full(len(rows), -np.inf, np.float32)
    groups = min(max(_FEWEST_GROUPS, _GROUPS_A_PLACE * depth), size)
    rounds = size // groups
    maxima = rows[:, : rounds * groups].reshape(len(rows), rounds, groups).max(axis=1)
    return np.partition(maxima, groups - depth, axis=1)[:, groups - depth]


def _parts(size: int, num_parts: int) -> Iterator[tuple[int, int]]:
    edges = np.linspace(0, size, min(num_parts, size) + 1).astype(int)
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
