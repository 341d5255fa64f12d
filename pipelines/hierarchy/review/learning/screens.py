"""The queue of the review: what to decide next, ordered by the items that an action is expected to put right.

A *screen* is a small part of the tree of similar names. The person puts whole blocks of it into a group, moves single
names, and accepts the rest as it stands. Its actions are expected to be one, and one for each name that does not belong
to the screen's largest group; what they put right is the expected number of items that stand wrong now.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...groups.given import NONE
from ..decisions.grouping import GroupId
from .name_tree import NameTree
from .votes import NARROWNESS, Coefficients, Estimates

SCREEN = 40  # names that a person takes in at once; the measured effort falls slowly up to here and beyond
QUEUE = 12  # proposals of a kind
_EXAMINED = 400  # nodes whose exceptions are estimated; with 4,000 the measured effort is the same
_SAMPLED = 2000  # undecided names from whose votes merges are proposed
_LIKELY = 0.5
_CLEAR = 0.6  # probability of being a group of its own from which one is proposed
_LEAST_NEW = 3  # names of a proposed group
_MOSTLY = 0.8  # share of names that stand in one group from which they are split off it
Kind = Literal["sort", "accept", "place", "merge", "new", "split", "rename"]


@dataclass(frozen=True)
class Proposal:
    """One thing to decide.

    Attributes:
        kind: ``sort`` (a screen of similar names, each in its estimated group), ``accept`` (the undecided names of a
            group look right), ``place`` (names that learning put elsewhere than the build did look as if they belonged
            to the group), ``merge`` (two groups look like one), ``new`` (names of several groups, or of none, look like
            a group of their own), ``split`` (names of one group do), ``rename`` (another label says better what a group
            holds).
        group: label of the group proposed; for ``new`` and ``split`` that of the new group, empty until one is found;
            the most frequent group for ``sort``.
        names: its names; of a screen in the order of the tree, otherwise the most certain first.
        wrong: for each name the probability that it stands wrong.
        items: items (or names, if the queue is ordered by them) that deciding is expected to put right, an action.
        other: the second group of a merge, the group that a split takes names from, the proposed label of a rename.
        blocks: (start, stop) ranges of ``names`` that are subtrees, the whole screen first.
    """

    kind: Kind
    group: str
    names: tuple[str, ...]
    wrong: tuple[float, ...]
    items: float
    other: str | None = None
    blocks: tuple[tuple[int, int], ...] = ()


class Queue:
    """The proposals of a build, from estimates.

    Args:
        rows: (N, D) unit rows of the names, the teacher's.
        first: (N,) labels of the groups in which the build put the names; None for no group.
        fitted: coefficients.
        merges: whether groups may be proposed to be one, or to be two; not where a person gave them.
        by: what an action should put right most of, items or names.

    Attributes:
        tree: the nodes that may become screens.
    """

    def __init__(
        self,
        rows: np.ndarray,
        first: Sequence[str | None],
        fitted: Coefficients,
        *,
        merges: bool = True,
        by: Literal["items", "names"] = "items",
    ) -> None:
        self._first, self._fitted, self._may_merge, self._by = tuple(first), fitted, merges, by
        self.tree = NameTree.of(rows).up_to(SCREEN)
        pairs = np.maximum((self.tree.stops - self.tree.starts) * (self.tree.stops - self.tree.starts - 1), 1)
        lengths = (self.tree.sums(rows) ** 2).sum(axis=1)
        self._cohesion = (lengths - (self.tree.stops - self.tree.starts)) / pairs  # mean cosine of two of its names
        self._own = _own_votes(self._cohesion, self.tree.stops - self.tree.starts)

    def proposals(
        self,
        now: Estimates,
        skipped: frozenset[tuple[str, str | None]] = frozenset(),
        apart: Collection[frozenset[GroupId]] = (),
        together: Collection[str] = (),
    ) -> list[Proposal]:
        """Return what to decide next, the most useful first.

        Args:
            now: the estimates.
            skipped: (name, label of its estimated group) that a person looked at and left; they are not shown in a
                screen again before their estimate changes, unless nothing else is left.
            apart: pairs of groups that a person said are not one.
            together: names of which a person said that a group of their own, once proposed, is none.
        """
        if self._by == "names":
            now = replace(now, items=np.ones(len(now.items), dtype=np.int64))
        asked = now.undecided & ~self._is_skipped(now, skipped)
        screens = self._screens(now, asked if asked.any() else now.undecided)
        wholes = [*self._accepts(now), *self._places(now), *self._merges(now, apart), *self._new(now, together)]
        return sorted([*screens, *wholes], key=lambda p: -p.items)

    def _is_skipped(self, now: Estimates, skipped: frozenset[tuple[str, str | None]]) -> np.ndarray:
        if not skipped:
            return np.zeros(len(now.names), dtype=bool)
        standing = now.standing.tolist()
        return np.array(
            [(n, now.labels[g] if g >= 0 else None) in skipped for n, g in zip(now.names, standing, strict=True)]
        )

    # -- screens --------------------------------------------------------------------------------------------------

    def _screens(self, now: Estimates, asked: np.ndarray) -> list[Proposal]:
        """Return the best screens, no two of which share a name."""
        count = asked.astype(np.float64)
        size, gain, wrong = self.tree.sums(
            np.stack([count, now.errors * now.items * count, now.errors * count], axis=1)
        ).T
        mixed = np.maximum(size - 1, 0) * (1 - self._cohesion)  # costs little; the exceptions' model costs more
        likely = gain / (1 + mixed)
        nodes = np.flatnonzero(size > 0)
        nodes = nodes[np.argsort(-likely[nodes], kind="stable")[:_EXAMINED]]
        scores = gain[nodes] / (1 + np.minimum(self._exceptions(nodes, now, asked), wrong[nodes]))
        chosen: list[Proposal] = []
        shown = np.zeros(len(now.names), dtype=bool)
        for i in np.argsort(-scores, kind="stable").tolist():
            members = self.tree.members(int(nodes[i]))
            if not shown[members].any():
                shown[members] = True
                chosen.append(self._screen(now, int(nodes[i]), members[asked[members]], float(scores[i])))
            if len(chosen) == QUEUE:
                break
        return chosen

    def _exceptions(self, nodes: np.ndarray, now: Estimates, asked: np.ndarray) -> np.ndarray:
        """Return for some nodes the expected number of their names that do not belong to their largest group."""
        features = self.features(nodes, now, asked)
        *slopes, constant = self._fitted.exceptions
        return (np.exp(features[:, 1]) - 1) / (1 + np.exp(-(features @ np.array(slopes) + constant)))

    def features(self, nodes: np.ndarray, now: Estimates, asked: np.ndarray) -> np.ndarray:
        """Return what the exceptions of nodes are estimated by, (n, 5).

        Cohesion, log of the size, agreement of the votes, share of the leading group, mean share of votes against.

        Args:
            nodes: (n,) nodes of the tree that have an asked name.
            now: the estimates.
            asked: (N,) bool, the names that are counted.
        """
        found = np.empty((len(nodes), 5))
        for row, node in enumerate(nodes.tolist()):
            members = self.tree.members(node)
            shares = now.shares(members[asked[members]])
            size, total = len(shares), shares.sum(axis=0)
            agreement = (float(total @ total) - float((shares**2).sum())) / max(size * (size - 1), 1)
            against = 1 - float(shares.max(axis=1).mean())
            found[row] = self._cohesion[node], np.log(size), agreement, float(total.max()) / size, against
        return found

    def _screen(self, now: Estimates, node: int, asked: np.ndarray, score: float) -> Proposal:
        place = {int(name): i for i, name in enumerate(asked)}
        standing = now.standing[asked]
        groups, counts = np.unique(standing[standing >= 0], return_counts=True)
        label = now.labels[groups[counts.argmax()]] if len(groups) else ""
        inside = (self.tree.starts >= self.tree.starts[node]) & (self.tree.stops <= self.tree.stops[node])
        blocks = set()
        for start, stop in zip(self.tree.starts[inside].tolist(), self.tree.stops[inside].tolist(), strict=True):
            found = [place[i] for i in self.tree.order[start:stop].tolist() if i in place]
            if len(found) > 1:
                blocks.add((found[0], found[-1] + 1))
        return Proposal(
            "sort",
            label,
            tuple(now.names[i] for i in asked),
            tuple(now.errors[asked].round(4).tolist()),
            score,
            blocks=tuple(sorted(blocks, key=lambda block: (block[0], -block[1]))),
        )

    # -- groups as wholes -----------------------------------------------------------------------------------------

    def _accepts(self, now: Estimates) -> list[Proposal]:
        """Return groups whose undecided names all look right."""
        found = []
        for k, members in self._undecided_members(now):
            wrong = now.errors[members]
            if wrong.max() < _LIKELY and len(members) > 1:
                gain = float(wrong @ now.items[members]) / (1 + float(wrong.sum()))
                found.append(self._listed("accept", now, k, members, gain))
        return _best(found)

    def _places(self, now: Estimates) -> list[Proposal]:
        """Return names that learning put elsewhere than the build, by the group where they stand now."""
        found = []
        for k, members in self._undecided_members(now):
            moved = np.array([i for i in members if self._first[i] != now.labels[k]], dtype=np.int64)
            moved = moved[now.errors[moved] < _LIKELY]
            if len(moved) > 1:
                wrong = now.errors[moved]
                found.append(self._listed("place", now, k, moved, float(wrong @ now.items[moved]) / (1 + wrong.sum())))
        return _best(found)

    def _undecided_members(self, now: Estimates) -> list[tuple[int, np.ndarray]]:
        members = [np.flatnonzero(now.undecided & (now.standing == k)) for k in range(len(now.groups))]
        return [(k, found) for k, found in enumerate(members) if len(found)]

    def _listed(self, kind: Kind, now: Estimates, k: int, members: np.ndarray, gain: float) -> Proposal:
        ordered = members[np.argsort(now.errors[members], kind="stable")]
        names, wrong = tuple(now.names[i] for i in ordered), tuple(now.errors[ordered].round(4).tolist())
        return Proposal(kind, now.labels[k], names, wrong, gain)

    def _merges(self, now: Estimates, apart: Collection[frozenset[GroupId]]) -> list[Proposal]:
        """Return pairs of groups where the names of the smaller could as well stand in the other."""
        if not self._may_merge:
            return []
        open_ = np.flatnonzero(now.undecided & (now.standing >= 0))
        sizes = np.bincount(now.standing[now.standing >= 0], minlength=len(now.groups))
        sample = open_[np.unique(np.linspace(0, len(open_) - 1, min(len(open_), _SAMPLED)).astype(np.int64))]
        torn = np.zeros((len(now.groups), len(now.groups)))
        np.add.at(torn, now.standing[sample], now.shares(sample))
        found = []
        for a in np.flatnonzero(torn.any(axis=1)).tolist():
            own, others = torn[a, a], np.where(sizes > 0, torn[a], 0.0)
            others[a] = 0
            b = int(others.argmax())
            is_open = frozenset((now.groups[a], now.groups[b])) not in apart
            if is_open and sizes[b] and others[b] >= _LIKELY * own and (sizes[a], a) <= (sizes[b], b):
                members = np.flatnonzero(now.undecided & (now.standing == a))
                likely = float(others[b] / (others[b] + own))
                gain = likely * float(now.items[members] @ now.errors[members])
                found.append(replace(self._listed("merge", now, b, members, gain), other=now.labels[a]))
        return _best(found)

    def _new(self, now: Estimates, together: Collection[str]) -> list[Proposal]:
        """Return undecided names that lie so close together, and so far from all groups, that they look like one.

        The odds are those of the squared votes: of the names' own centre, each name left out of it, against those of
        the groups where they stand; times the size, in groups of the mean size.
        """
        free = now.undecided & ~np.isin(np.array(now.names, dtype=object), list(together))
        best = now.votes[np.arange(len(now.votes)), now.standing]  # -1: the last column, for no group
        size, against, wrong = self.tree.sums(
            np.stack([free, np.where(free, best**2, 0.0), np.where(free, now.errors * now.items, 0.0)], axis=1)
        ).T
        usual = len(now.names) / max(len(np.unique(now.standing[now.standing >= 0])), 1)
        members = self.tree.stops - self.tree.starts
        odds = np.where(size > 0, (self._own * size) ** 2 / np.maximum(against * size, 1e-12), 0.0) * size / usual
        likely = odds / (1 + odds)
        nodes = np.flatnonzero((likely >= _CLEAR) & (size >= np.maximum(_LEAST_NEW, _MOSTLY * members)))
        nodes = nodes[np.argsort(-(likely * wrong)[nodes], kind="stable")[: 4 * QUEUE]]
        if not len(nodes):
            return []
        scores = (likely * wrong)[nodes] / (1 + self._exceptions(nodes, now, free))
        shown = np.zeros(len(now.names), dtype=bool)
        found: list[Proposal] = []
        for i in np.argsort(-scores, kind="stable").tolist():
            asked = self.tree.members(int(nodes[i]))
            asked = asked[free[asked]]
            if not shown[asked].any() and (one := self._group_of(now, asked, float(scores[i]))) is not None:
                shown[asked] = True
                found.append(one)
        return found[:QUEUE]

    def _group_of(self, now: Estimates, members: np.ndarray, gain: float) -> Proposal | None:
        """Return the proposal that some names are a group; None where they are most of a group already."""
        standing = now.standing[members]
        groups, counts = np.unique(standing, return_counts=True)
        group, count = int(groups[counts.argmax()]), int(counts.max())
        kind: Kind = "new"
        if group >= 0 and now.labels[group] != NONE and count >= _MOSTLY * len(members):
            if not self._may_merge or 2 * count > int((now.standing == group).sum()):
                return None
            kind = "split"
        elif not self._may_merge and any(now.labels[g] != NONE for g in groups[groups >= 0].tolist()):
            return None  # a person gave these groups: only names that fit none may need another
        ordered = members[np.argsort(now.errors[members], kind="stable")]
        names, wrong = tuple(now.names[i] for i in ordered), tuple(now.errors[ordered].round(4).tolist())
        return Proposal(kind, "", names, wrong, gain, other=now.labels[group] if kind == "split" else None)


def _own_votes(cohesion: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return the vote that the centre of a node's other names has, in the mean, for a name of it.

    With m names of mean cosine c, the cosine with the centre of the others is c sqrt((m - 1) / (1 + (m - 2) c)).
    """
    others = np.maximum(size - 1, 1)
    length = np.maximum(1 + (others - 1) * cohesion, 1e-6)
    return np.exp(NARROWNESS * (np.clip(cohesion * np.sqrt(others / length), -1, 1) - 1))


def _best(found: list[Proposal]) -> list[Proposal]:
    return sorted(found, key=lambda proposal: (-proposal.items, proposal.group))[:QUEUE]
