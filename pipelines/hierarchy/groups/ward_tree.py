"""Ward's linkage of weighted points, and its cuts at several numbers of groups."""

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import linkage


def ward(means: np.ndarray, weights: np.ndarray, groups: int) -> np.ndarray:
    """Join weighted points into groups by Ward's criterion, the least growth of the squared distances to the means.

    Ward, "Hierarchical grouping to optimize an objective function", JASA 58, 1963, by the nearest-neighbour chain
    (Murtagh, 1983), O(n^2 D) and without an n x n matrix. scipy and scikit-learn start from points of weight 1; these
    are the means of sub-clusters and weigh what their names weigh.

    Args:
        means: (n, D) points.
        weights: (n,) positive weights.
        groups: the wanted number of groups, 1..n.

    Returns:
        (n,) labels 0..groups-1, in the order of their first points.
    """
    return ward_cuts(means, weights, [groups])[:, 0]


def ward_cuts(means: np.ndarray, weights: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """Cut one tree of Ward's at several numbers of groups (:func:`ward`).

    Args:
        means: (n, D) points.
        weights: (n,) positive weights.
        numbers: numbers of groups, ascending, each 1..n.

    Returns:
        (n, len(numbers)) labels, those of each number 0..number-1 in the order of their first points.
    """
    merges = sorted(_ward_merges(means.astype(np.float64), weights.astype(np.float64)), key=lambda merge: merge[0])
    parent = np.arange(len(means))
    labels = np.empty((len(means), len(numbers)), dtype=np.int64)
    joined = 0
    for column in reversed(range(len(numbers))):
        for _, kept, gone in merges[joined : len(means) - numbers[column]]:
            parent[_root(parent, gone)] = _root(parent, kept)
        joined = max(joined, len(means) - numbers[column])
        roots = np.array([_root(parent, i) for i in range(len(means))])
        _, first, found = np.unique(roots, return_index=True, return_inverse=True)
        labels[:, column] = np.argsort(np.argsort(first))[found]
    return labels


def _ward_merges(means: np.ndarray, weights: np.ndarray) -> list[tuple[float, int, int]]:
    """Return the n - 1 merges as (cost, index of one side, index of the other), in the order of discovery."""
    if len(means) > 1 and (weights == weights[0]).all():
        return _scipy_merges(means)
    means, weights = means.copy(), weights.copy()
    squares = (means**2).sum(axis=1)
    alive = np.ones(len(means), dtype=bool)
    merges: list[tuple[float, int, int]] = []
    chain: list[int] = []
    while len(merges) < len(means) - 1:
        if not chain:
            chain.append(int(np.flatnonzero(alive)[0]))
        top = chain[-1]
        distance = np.maximum(squares + squares[top] - 2 * (means @ means[top]), 0)
        cost = np.where(alive, distance * weights * weights[top] / (weights + weights[top]), np.inf)
        cost[top] = np.inf
        nearest = int(cost.argmin())
        if len(chain) > 1 and cost[chain[-2]] <= cost[nearest]:  # at a tie the chain turns back, so that it terminates
            growth = float(cost[chain[-2]])
            a, b = sorted((chain.pop(), chain.pop()))
            merges.append((growth, a, b))
            means[a] = (weights[a] * means[a] + weights[b] * means[b]) / (weights[a] + weights[b])
            weights[a] += weights[b]
            squares[a] = means[a] @ means[a]
            alive[b] = False
        else:
            chain.append(nearest)
    return merges


def _root(parent: np.ndarray, place: int) -> int:
    while parent[place] != place:
        parent[place] = parent[parent[place]]
        place = int(parent[place])
    return place


def _scipy_merges(means: np.ndarray) -> list[tuple[float, int, int]]:
    """Return the merges of points of one weight by scipy, which is some 20 times as fast."""
    first = list(range(len(means)))  # of every cluster, one of its points
    merges: list[tuple[float, int, int]] = []
    for a, b, height, _ in linkage(means, "ward"):
        kept, gone = sorted((first[int(a)], first[int(b)]))
        merges.append((height, kept, gone))
        first.append(kept)
    return merges
