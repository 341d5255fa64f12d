"""The tree of similar names, of which the review shows small parts, and sums over all of its nodes at once.

Ward's linkage of the names' rows; more than 2,000 names are first divided into cells of at most so many by spherical
k-means, since only small subtrees are ever shown. Every node is a range of one order of names, so a sum over the
members of all nodes is a difference of two running sums.
"""

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from threadpoolctl import threadpool_limits

from ...groups.clustering import kmeans

MOST_LINKED = 2000
_CELL = 1000


@dataclass(frozen=True)
class NameTree:
    """A binary forest over N names.

    Attributes:
        order: (N,) indices of the names, so that each node is a range of it.
        starts: (M,) first places of the nodes in ``order``; nodes are in an order where a node comes after its parts.
        stops: (M,) the places after their last.
    """

    order: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    @staticmethod
    def of(rows: np.ndarray) -> "NameTree":
        """Build the tree of (N, D) unit rows; the same rows give the same tree."""
        with threadpool_limits(limits=1):
            cells = _cells(rows, np.arange(len(rows)))
            trees = [_ward(rows[cell]) for cell in cells]
        offsets = np.cumsum([0, *(len(cell) for cell in cells)])
        order = np.concatenate([cell[tree.order] for cell, tree in zip(cells, trees, strict=True)])
        starts = np.concatenate([tree.starts + offset for tree, offset in zip(trees, offsets[:-1], strict=True)])
        stops = np.concatenate([tree.stops + offset for tree, offset in zip(trees, offsets[:-1], strict=True)])
        return NameTree(order, starts, stops)

    def up_to(self, size: int) -> "NameTree":
        """Return the tree with the nodes of at most ``size`` names."""
        small = self.stops - self.starts <= size
        return NameTree(self.order, self.starts[small], self.stops[small])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over the members of every node.

        Args:
            values: (N,) or (N, C), in the order of the names.

        Returns:
            (M,) or (M, C) float64.
        """
        running = np.zeros((len(values) + 1, *values.shape[1:]))
        np.cumsum(values[self.order], axis=0, out=running[1:])
        return running[self.stops] - running[self.starts]

    def members(self, node: int) -> np.ndarray:
        """Return the names of a node, in the order of the tree."""
        return self.order[self.starts[node] : self.stops[node]]


def _cells(rows: np.ndarray, members: np.ndarray) -> list[np.ndarray]:
    if len(members) <= MOST_LINKED:
        return [members]
    cells = -(-len(members) // _CELL)
    distinct = len(np.unique(rows[members], axis=0))
    if distinct <= cells:  # nearly all names have the same row: any division will do
        return np.array_split(members, cells)
    weights = np.ones(len(members))
    labels = kmeans(rows[members], min(cells, 64), weights=weights, restarts=1, seed=0)
    parts = [members[labels == label] for label in np.unique(labels)]
    if len(parts) == 1:
        return np.array_split(members, cells)
    return [cell for part in parts for cell in _cells(rows, part)]


def _ward(rows: np.ndarray) -> NameTree:
    n = len(rows)
    if n == 1:
        return NameTree(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))
    joins = linkage(rows.astype(np.float64), "ward")
    order = leaves_list(joins).astype(np.int64)
    starts, stops = np.empty(2 * n - 1, dtype=np.int64), np.empty(2 * n - 1, dtype=np.int64)
    starts[order] = np.arange(n)
    stops[order] = np.arange(n) + 1
    for i, (a, b) in enumerate(joins[:, :2].astype(np.int64)):
        starts[n + i], stops[n + i] = min(starts[a], starts[b]), max(stops[a], stops[b])
    return NameTree(order, starts, stops)
