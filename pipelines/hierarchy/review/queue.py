"""The queue of a review: the next decisions, ordered by the expected number of corrections per action.

A *screen* is a small subtree of similar names. The person moves whole blocks of it into a group, moves single names,
and accepts the rest. The expected number of actions is one, plus one per name outside the screen's largest group. The
expected gain is the number of items (or names) that are in a wrong group now. Screens are sorted by gain per action.

The tree is Ward's linkage of the names' embeddings. More than 2,000 names are first split into cells by spherical
k-means, because only small subtrees are shown. A node is a range of one order of the names, so a sum over its names is
the difference of two running sums.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from threadpoolctl import threadpool_limits

from ..groups.cluster import kmeans
from .learner import Estimates

SCREEN = 40  # most names of a screen; with more the measured effort falls only slowly
SCREENS = 12  # screens of a queue
MOST_LINKED = 2000
_CELL = 1000
_EXAMINED = 400  # nodes that get the exact estimate; 4,000 give the same measured effort
Order = Literal["items", "names"]
Skipped = Collection[tuple[str, str | None]]  # skipped names, each with the label of its estimated group at that time


@dataclass(frozen=True)
class Screen:
    """Similar names, each in its estimated group.

    Attributes:
        names: names in the order of the tree.
        wrong: error probability of each name.
        items: expected number of items (or names, if the queue counts names) that one action corrects.
        blocks: (start, stop) ranges of ``names`` that are subtrees, the whole screen first.
    """

    names: tuple[str, ...]
    wrong: tuple[float, ...]
    items: float
    blocks: tuple[tuple[int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the screen as the page receives it."""
        return {
            "items": round(float(self.items), 1),
            "names": list(self.names),
            "wrong": [round(float(wrong), 2) for wrong in self.wrong],
            "blocks": [list(block) for block in self.blocks],
        }


class Queue:
    """The screens of a build, from estimates.

    Args:
        rows: (N, D) unit rows of the names, as the learner has them.
        by: count items or names that an action corrects.

    Attributes:
        tree: the nodes that may become screens.
    """

    def __init__(self, rows: np.ndarray, *, by: Order = "items") -> None:
        self._by = by
        self.tree = NameTree.of(rows).up_to(SCREEN)
        size = self.tree.stops - self.tree.starts
        lengths = (self.tree.sums(rows) ** 2).sum(axis=1)
        self._cohesion = (lengths - size) / np.maximum(size * (size - 1), 1)  # mean cosine of two names of a node

    def screens(self, now: Estimates, skipped: Skipped = ()) -> list[Screen]:
        """Return the next screens to decide, the most useful first; no two screens share a name.

        Args:
            now: the estimates.
            skipped: names that a person skipped; they come back when their estimate changes or nothing else is left.
        """
        asked = now.undecided
        if skipped:
            known, labels = frozenset(skipped), (*now.labels, None)  # labels[-1], None, is for names in no group
            put_off = [(name, labels[k]) in known for name, k in zip(now.names, now.standing.tolist(), strict=True)]
            asked = asked & ~np.array(put_off) if (asked & ~np.array(put_off)).any() else asked
        count, items = asked.astype(np.float64), now.items if self._by == "items" else np.ones(len(now.items))
        sums = np.stack([count, now.errors * items * count, now.errors * count], axis=1)
        size, gain, wrong = self.tree.sums(sums).T
        mixed = np.maximum(size - 1, 0) * (1 - self._cohesion)  # a quick estimate, before the exact one
        likely = gain / (1 + mixed)
        nodes = np.flatnonzero(size > 0)
        nodes = nodes[np.argsort(-likely[nodes], kind="stable")[:_EXAMINED]]
        exceptions = np.array([self._exceptions(node, now, asked) for node in nodes.tolist()])
        scores = gain[nodes] / (1 + np.minimum(exceptions, wrong[nodes]))
        chosen: list[Screen] = []
        shown = np.zeros(len(now.names), dtype=bool)
        for i in np.argsort(-scores, kind="stable").tolist():
            members = self.tree.members(int(nodes[i]))
            if not shown[members].any():
                shown[members] = True
                chosen.append(self._screen(now, int(nodes[i]), members[asked[members]], float(scores[i])))
            if len(chosen) == SCREENS:
                break
        return chosen

    def _exceptions(self, node: int, now: Estimates, asked: np.ndarray) -> float:
        """Return the expected number of undecided names of a node outside its largest group."""
        members = self.tree.members(node)
        shares = now.shares[members[asked[members]]]
        return len(shares) - float(shares.sum(axis=0).max())

    def _screen(self, now: Estimates, node: int, asked: np.ndarray, score: float) -> Screen:
        place = {int(name): i for i, name in enumerate(asked)}
        inside = (self.tree.starts >= self.tree.starts[node]) & (self.tree.stops <= self.tree.stops[node])
        blocks = set()
        for start, stop in zip(self.tree.starts[inside].tolist(), self.tree.stops[inside].tolist(), strict=True):
            found = [place[i] for i in self.tree.order[start:stop].tolist() if i in place]
            if len(found) > 1:
                blocks.add((found[0], found[-1] + 1))
        nested = tuple(sorted(blocks, key=lambda block: (block[0], -block[1])))
        return Screen(tuple(now.names[i] for i in asked), tuple(now.errors[asked].round(4).tolist()), score, nested)


@dataclass(frozen=True)
class NameTree:
    """A binary forest over N names.

    Attributes:
        order: (N,) indices of the names, so that each node is a range of it.
        starts: (M,) start of each node's range of ``order``; a node comes after its children.
        stops: (M,) end of each node's range.
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
    if distinct <= cells:  # nearly all rows are equal: any split will do
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
