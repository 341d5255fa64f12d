"""Dividing clusters into sub-clusters, and joining sub-clusters of all clusters into a wanted number of groups.

A cluster is divided by average linkage over cosine distances: two parts stay one sub-cluster while the mean distance
between their names is at most the threshold. For a wanted number of groups the sub-clusters of all clusters (many more
than groups are wanted) are joined by Ward's linkage, which knows how many names each stands for.
"""

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage


class Division:
    """The average-linkage dendrograms of all clusters, to be cut at any threshold.

    Args:
        rows: (N, D) unit rows.
        labels: (N,) their clusters, 0..k-1.
    """

    def __init__(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self._size = len(rows)
        self._members = [np.flatnonzero(labels == cluster) for cluster in range(int(labels.max()) + 1)]
        self._trees = [_average_linkage(rows[members]) for members in self._members]
        self._heights = np.sort(np.concatenate([tree[:, 2] for tree in self._trees]))

    def at(self, threshold: float) -> np.ndarray:
        """(N,) sub-clusters, numbered from 0 over all clusters."""
        labels = np.zeros(self._size, dtype=np.int64)
        start = 0
        for members, tree in zip(self._members, self._trees, strict=True):
            parts = fcluster(tree, threshold, "distance") if len(tree) else np.ones(len(members), dtype=np.int64)
            labels[members] = parts - 1 + start
            start += int(parts.max())
        return labels

    def threshold_for(self, parts: int) -> float:
        """The highest threshold that gives at least so many sub-clusters; below all heights (-1) if none does."""
        joins = self._size - parts  # every join below the threshold makes one part fewer
        if joins >= len(self._heights):
            return float(self._heights[-1]) if len(self._heights) else -1.0
        if joins <= 0:
            return -1.0
        below = self._heights[self._heights < self._heights[joins]]
        return float(below[-1]) if below.size else -1.0


def ward(means: np.ndarray, weights: np.ndarray, groups: int) -> np.ndarray:
    """Join weighted points into groups by Ward's criterion: the least growth of the squared distances to the means.

    Ward, "Hierarchical grouping to optimize an objective function", JASA 58, 1963, by the nearest-neighbour chain
    (Murtagh, 1983), O(n^2 D) and without an n x n matrix. scipy and scikit-learn start from points of weight 1; these
    are the means of sub-clusters and weigh what their names weigh.

    Args:
        means: (n, D) points.
        weights: (n,) positive weights.
        groups: how many are wanted, 1..n.

    Returns:
        (n,) labels 0..groups-1, in the order of their first points.
    """
    merges = sorted(_ward_merges(means.astype(np.float64), weights.astype(np.float64)), key=lambda merge: merge[0])
    parent = np.arange(len(means))
    for _, kept, gone in merges[: len(means) - groups]:
        parent[_root(parent, gone)] = _root(parent, kept)
    roots = np.array([_root(parent, i) for i in range(len(means))])
    _, first, labels = np.unique(roots, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels]


def _ward_merges(means: np.ndarray, weights: np.ndarray) -> list[tuple[float, int, int]]:
    """Every merge as (cost, place of one side, place of the other), n - 1 of them in the order of discovery."""
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
        if len(chain) > 1 and cost[chain[-2]] <= cost[nearest]:  # at a tie the chain turns back, so that it ends
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


def _average_linkage(rows: np.ndarray) -> np.ndarray:
    """The (n - 1, 4) table that scipy makes of the joins by mean cosine distance; of no rows for a single member."""
    if len(rows) < 2:
        return np.empty((0, 4))
    above = np.triu_indices(len(rows), 1)
    return linkage(np.clip(1 - (rows @ rows.T)[above], 0, 2).astype(np.float64), "average")
