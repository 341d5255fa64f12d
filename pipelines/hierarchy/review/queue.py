"""The queue of a review: the next decisions, ordered by the expected number of corrections per action.

A *screen* is a small subtree of similar names. The person moves blocks of the screen or single names into other groups,
and accepts the rest. The expected number of actions is one, plus one per name outside the screen's largest group, or
plus .85 per wrong name if that is less. The expected gain is the number of items (or names) that are now in a wrong
group. Screens are sorted by gain per action.

Some accepted names are asked again, on a screen of their own, because the answers show how often the person errs. The
last screens ask for the classes of groups at the levels above, because moved names may change a group.

The tree is Ward's linkage of the names' embeddings. More than 2,000 names are first split into cells by spherical
k-means, because screens are small subtrees. A node is a range in a fixed order of the names, so a sum over its names is
the difference of two cumulative sums.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from scipy.cluster.hierarchy import leaves_list, linkage
from threadpoolctl import threadpool_limits

from ..groups.cluster import kmeans
from .learner import Estimates

SCREEN = 80  # maximum number of names per screen; 40 need 6% more actions and show as many names in all
TARGETS = 44  # groups per screen: 35 with a digit or letter key, nine that the page's list of groups begins with
NEAR = 5  # groups per name or block: its own, and those that one click moves it into
SCREENS = 12  # maximum number of screens in a queue
TOGETHER = 5  # names to ask again wait until there are this many, or until nothing else is asked
MOST_LINKED = 2000
_CELL = 1000
_EXAMINED = 400  # number of nodes that are estimated exactly; 4,000 give the same measured effort
_MOVES = 0.85  # actions per wrong name, because some are moved together; chosen by benchmarks/review_effort.py
Order = Literal["items", "names"]
Skipped = Collection[tuple[str, str | None]]  # names, each with the label of its estimated group when it was skipped


@dataclass(frozen=True)
class Screen:
    """Similar names, each in its estimated group.

    Attributes:
        names: names in the order of the tree.
        items: expected number of items (or names, if the queue counts names) that one action corrects.
        blocks: (start, stop, groups) of the ranges of ``names`` that are subtrees, the range of the whole screen first,
            with the most probable groups of its names, as indices of ``targets``.
        again: whether the person accepted these names before.
        targets: the most probable groups that the names are not in, the most probable first; empty for classes.
        near: the most probable groups of each name, as indices of ``targets``.
        level: level above the groups, if the page asks for the class of the groups in ``names`` at this level; None:
            ``names`` are names.
    """

    names: tuple[str, ...]
    items: float
    blocks: Sequence[tuple[int, int, Sequence[int]]] = ()
    again: bool = False
    targets: Sequence[str] = ()
    near: Sequence[Sequence[int]] = ()
    level: str | None = None


class Queue:
    """The screens of a build, from estimates.

    Args:
        rows: (N, D) unit rows of the learner's names.
        by: whether to count the items or the names that an action corrects.

    Attributes:
        tree: the nodes that may become screens.
    """

    def __init__(self, rows: np.ndarray, *, by: Order = "items") -> None:
        self._by = by
        self.tree = NameTree.of(rows).up_to(SCREEN)
        size = self.tree.stops - self.tree.starts
        lengths = (self.tree.sums(rows) ** 2).sum(axis=1)
        self._cohesion = (lengths - size) / np.maximum(size * (size - 1), 1)  # mean cosine of two names in a node

    def screens(self, now: Estimates, skipped: Skipped = ()) -> list[Screen]:
        """Return the next screens to decide, the most useful first; no two screens share a name.

        Args:
            now: the estimates.
            skipped: names that a person skipped. They come back when their estimate changes, or when no other names are
                left.
        """
        asked, again = now.undecided, now.again
        if skipped:
            labels = *now.labels, None  # labels[-1], None, is for names without a group
            left = np.array([(n, labels[k]) not in skipped for n, k in zip(now.names, now.standing, strict=True)])
            asked, again = (asked & left, again & left) if (asked & left).any() else (asked, again)
        count, items = asked.astype(np.float64), now.items if self._by == "items" else np.ones(len(now.items))
        sums = np.stack([count, now.errors * items * count, now.errors * count], axis=1)
        size, gain, wrong = self.tree.sums(sums).T
        nodes = np.flatnonzero(size > 0)
        mixed = np.maximum(size - 1, 0) * (1 - self._cohesion)  # a quick estimate of the names outside the main group
        nodes = nodes[np.argsort(-(gain / (1 + mixed))[nodes], kind="stable")[:_EXAMINED]]
        members = [self.tree.members(node) for node in nodes.tolist()]
        undecided = [names[asked[names]] for names in members]
        shares = [now.shares[names] for names in undecided]
        exceptions = np.array([len(part) - float(part.sum(axis=0).max()) for part in shares])
        scores = gain[nodes] / (1 + np.minimum(exceptions, _MOVES * wrong[nodes]))
        chosen = list[Screen]()
        if again.sum() >= (TOGETHER if asked.any() else 1):
            repeated = sorted(np.flatnonzero(again).tolist(), key=lambda i: now.standing[i])[:SCREEN]
            asked_again = tuple(now.names[i] for i in repeated)
            chosen.append(Screen(asked_again, 0.0, again=True, **_targets(now, repeated)))
        is_shown = np.zeros(len(now.names), dtype=bool)
        for i in np.argsort(-scores, kind="stable").tolist():
            if not is_shown[members[i]].any():
                is_shown[members[i]] = True
                chosen.append(self._screen(now, int(nodes[i]), undecided[i], float(scores[i])))
            if len(chosen) == SCREENS:
                break
        return chosen

    def _screen(self, now: Estimates, node: int, names: np.ndarray, score: float) -> Screen:
        place = {int(name): i for i, name in enumerate(names)}
        inside = (self.tree.starts >= self.tree.starts[node]) & (self.tree.stops <= self.tree.stops[node])
        blocks = set()
        for part in np.flatnonzero(inside).tolist():
            found = [place[i] for i in self.tree.members(part).tolist() if i in place]
            if len(found) > 1:
                blocks.add((found[0], found[-1] + 1))
        nested = tuple(sorted(blocks, key=lambda block: (block[0], -block[1])))
        return Screen(tuple(now.names[i] for i in names), round(score, 1), **_targets(now, names, nested))


def _targets(now: Estimates, names: np.ndarray | list[int], blocks: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """Return the most probable groups of names together, of each name and of each block; acceptance needs no group."""
    shares, own = now.shares[names], now.standing[names][:, None]
    moved = np.where(own == np.arange(shares.shape[1]), 0, shares)
    best = np.argsort(-moved.sum(axis=0), kind="stable")[:TARGETS]
    sums = [shares[start:stop].sum(axis=0) for start, stop in blocks]
    near = np.argsort(-np.vstack([shares, *sums])[:, best], axis=1, kind="stable")[:, :NEAR].tolist()
    around = [(*block, groups) for block, groups in zip(blocks, near[len(names) :], strict=True)]
    return {"targets": tuple(now.labels[k] for k in best), "near": near[: len(names)], "blocks": around}


def class_screens(groups: pl.DataFrame, levels: Sequence[str]) -> list[Screen]:
    """Return the screens of groups whose class nobody decided, groups of one class side by side; coarsest level first.

    Args:
        groups: table of :func:`hgld.pipelines.hierarchy.review.review.reviewed_groups`.
        levels: names of the levels above the groups, finest first.
    """
    found = list[Screen]()
    for depth, level in reversed([*enumerate(levels)]):
        is_open = pl.col("classes_by").list.get(depth).is_null()
        labels = groups.filter(is_open).sort(pl.col("classes").list.get(depth), "label")["label"].to_list()
        parts = (tuple(labels[start : start + SCREEN]) for start in range(0, len(labels), SCREEN))
        found += [Screen(part, 0.0, level=level) for part in parts]
    return found


@dataclass(frozen=True)
class NameTree:
    """A binary forest over N names.

    Attributes:
        order: (N,) indices of the names. Each node is a range of this order.
        starts: (M,) start of each node's range; a node comes after its children.
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
        order = np.concatenate([cell[tree.order] for cell, tree in zip(cells, trees, strict=True)])
        offsets = np.cumsum([0, *(len(cell) for cell in cells)])[:-1]
        moved = [(tree.starts + by, tree.stops + by) for tree, by in zip(trees, offsets, strict=True)]
        return NameTree(order, *(np.concatenate(ends) for ends in zip(*moved, strict=True)))

    def up_to(self, size: int) -> "NameTree":
        """Return the tree without nodes of more than ``size`` names."""
        small = self.stops - self.starts <= size
        return NameTree(self.order, self.starts[small], self.stops[small])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of values over the names of every node.

        Args:
            values: (N,) or (N, C) values, in the order of the names.

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
    """Split names into cells of at most ``MOST_LINKED`` names."""
    if len(members) <= MOST_LINKED:
        return [members]
    count = -(-len(members) // _CELL)
    parts = [members]
    if len(np.unique(rows[members], axis=0)) > count:
        labels = kmeans(rows[members], min(count, 64), weights=np.ones(len(members)), restarts=1, seed=0)
        parts = [members[labels == label] for label in np.unique(labels)]
    if len(parts) == 1:  # if the rows are nearly equal, any split is good enough
        return np.array_split(members, count)
    return [cell for part in parts for cell in _cells(rows, part)]


def _ward(rows: np.ndarray) -> NameTree:
    n = len(rows)
    joins = linkage(rows.astype(np.float64), "ward") if n > 1 else np.empty((0, 4))
    order = leaves_list(joins).astype(np.int64) if n > 1 else np.zeros(1, dtype=np.int64)
    starts = np.concatenate([np.argsort(order), np.empty(n - 1, dtype=np.int64)])
    stops = starts + 1
    for i, (a, b) in enumerate(joins[:, :2].astype(np.int64), n):
        starts[i], stops[i] = min(starts[a], starts[b]), max(stops[a], stops[b])
    return NameTree(order, starts, stops)
