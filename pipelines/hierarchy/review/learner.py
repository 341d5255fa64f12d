"""The learner of a review: where undecided names belong after each decision, and how likely that is wrong.

A group is voted for by what is known of it: its own name where it was given (or the mean of its machine-made members),
and every name that a person put there. A vote weighs exp(12 (cosine - 1)), so that near names count and far ones hardly
do: the kernel estimate of Nadaraya (1964) and Watson (1964) on the unit sphere. A name is put into the group with the
most votes. A decision adds the votes of its names and nothing is fitted anew, so the page answers at once.

The build's own placement has the most votes until people say otherwise: without decisions nothing moves. All votes are
multiples of 2**-30, whose sums are exact, so that the same decisions give the same groups in whatever order they came.

A name is the likelier wrong the more votes other groups have, the more the build doubts it where it is still where the
build put it, and the fewer names near it are decided: who has looked at its neighbours has seen it too. How often
placements are wrong differs between data sets, and decisions tell (:meth:`Learner._correction`); how many are wrong in
all is :func:`hgld.pipelines.hierarchy.groups.doubt.still_wrong`. Before the first decision all this holds as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from heapq import nlargest
from itertools import groupby
from pathlib import Path
from typing import Self

import numpy as np
import yaml
from scipy.special import expit, logit
from threadpoolctl import threadpool_limits

from hgld.tables import read_parquet

from ..evidence.embed import read_embeddings
from ..evidence.evidence import Block, Evidence, read_evidence
from ..groups.doubt import Expected, Spreads, still_wrong
from .grouping import GroupId, Grouping, Subject

COEFFICIENTS = Path(__file__).with_name("learner.yaml")
GROUP_ROWS = "group_rows.npy"
NARROWNESS = 12.0  # of the kernel; the measured effort is flat within 9..16, for each of the encoders
SEED, MEAN = 2.0, 1.0  # votes of a group's given name, or of the mean of names, against 1 for a name put there
LEAD = 1.05  # of the build's placement over the other groups' seeds, where they have more votes
LEAST = 1e-4  # nothing that nobody looked at is certain
FLOOR = 2.0**-20  # votes of every group for every name, so that a new group is possible everywhere
_FORM = 0.15  # share of the wording in what is learnt from; measured effort is flat within .1 to .2
_GRID = 2.0**30
_MOST_AXES, _MANY_NAMES = 128, 10_000
_HALF_LIFE = 60.0  # names decided after which a finding counts half
_LATEST = 600  # findings that count; older ones do no more
_CHOSEN = 0.2  # share of more errors than expected that is not the person's choice of what to decide
_STEPS = 20
_NEARNESS = 0.25  # votes of decided names at which nearness to them begins to tell


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of two logistic models, fitted by ``benchmarks/review_effort.py --fit``.

    Attributes:
        error: coefficients of the log odds that a placement is wrong: of the log odds of its votes, of those of the
            build's own doubt, of :func:`nearness`, constant.
        exceptions: coefficients of the share of a screen's names that do not belong to its largest group: of cohesion,
            log of the size, agreement of the votes, share of the leading group, mean share of votes against; constant.
        spreads: how far data sets and groups stray from the errors' log odds.
    """

    error: tuple[float, ...]
    exceptions: tuple[float, ...]
    spreads: Spreads

    @staticmethod
    def shipped(*, are_given: bool) -> "Coefficients":
        """Return the coefficients that ship with hgld, for groups that were given by name or found."""
        known = yaml.safe_load(COEFFICIENTS.read_text(encoding="utf-8"))
        return Coefficients.of(known["given" if are_given else "found"])

    @staticmethod
    def of(values: Mapping[str, Mapping[str, float]]) -> "Coefficients":
        """Return the coefficients of the file's content."""
        error, exceptions = values["error"], values["exceptions"]
        order = ("cohesion", "log_size", "agreement", "leading_share", "votes_against", "constant")
        return Coefficients(
            tuple(float(error[name]) for name in ("log_odds", "doubt", "nearness", "constant")),
            tuple(float(exceptions[name]) for name in order),
            Spreads(*(float(error[name]) for name in Spreads._fields)),
        )


@dataclass(frozen=True)
class Estimates:
    """Estimates of every name after some decisions; arrays are in the order of the teacher's names.

    Attributes:
        names: the N names.
        items: (N,) numbers of items.
        groups: the K groups that names can be in.
        labels: their labels.
        standing: (N,) indices into ``groups`` of the groups where the names stand; -1: in none.
        undecided: (N,) bool.
        errors: (N,) probabilities that an undecided name is wrong; 0 for decided names.
        votes: (N, K + 1) votes of the groups, and of none; they change with the next decision.
        doubts: (N,) log odds of the build's doubt where a name still stands where the build put it; 0 elsewhere.
        near: (N,) :func:`nearness` to decided names.
        spreads: uncertainty of the errors' level.
    """

    names: tuple[str, ...]
    items: np.ndarray
    groups: tuple[GroupId, ...]
    labels: tuple[str, ...]
    standing: np.ndarray
    undecided: np.ndarray
    errors: np.ndarray
    votes: np.ndarray = field(repr=False)
    doubts: np.ndarray
    near: np.ndarray
    spreads: Spreads

    @property
    def place(self) -> dict[str, GroupId | None]:
        """The group of every name; None if it is in none."""
        return {n: self.groups[g] if g >= 0 else None for n, g in zip(self.names, self.standing.tolist(), strict=True)}

    @property
    def wrong(self) -> dict[str, float]:
        """The probability that a name is wrong, by name."""
        return dict(zip(self.names, self.errors.tolist(), strict=True))

    def shares(self, members: np.ndarray) -> np.ndarray:
        """Return the (n, K) float32 probabilities of the groups for some names, from votes as of now."""
        squares = self.votes[members] ** 2
        return (squares / squares.sum(axis=1, keepdims=True))[:, :-1].astype(np.float32)

    @cached_property
    def still_wrong(self) -> dict[str, Expected]:
        """The expected number of undecided names, and of their items, that are placed wrong, with 80% intervals."""
        left = self.undecided
        groups = np.where(self.standing < 0, len(self.groups), self.standing)[left]
        weights = {"names": np.ones(len(self.errors)), "items": self.items.astype(np.float64)}
        return {
            of: still_wrong(self.errors[left], self.spreads, weights=weight[left], groups=groups)
            for of, weight in weights.items()
        }


class Learner:
    """Votes of groups for names, changed by decisions.

    Args:
        names: the N names.
        rows: (N, D) unit rows, the joint evidence of names.
        items: (N,) numbers of their items.
        place: every name's group in the build.
        seeds: rows of groups by their number; the mean of its names is taken for one that has none.
        doubt: (N,) probabilities of the build that names are placed wrong; None: not known.
        fitted: the coefficients; those that ship with hgld if None.

    Attributes:
        rows: (N, D) unit rows, on fewer axes where names are many.
        fitted: the coefficients.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: np.ndarray,
        items: np.ndarray,
        place: Mapping[str, int],
        seeds: Mapping[int, np.ndarray] | None = None,
        doubt: np.ndarray | None = None,
        fitted: Coefficients | None = None,
    ) -> None:
        axes = _leading_axes(rows)
        self.names, self.items = tuple(names), np.asarray(items, dtype=np.int64)
        self.rows = _on_axes(rows, axes)
        self.fitted = fitted or Coefficients.shipped(are_given=seeds is not None)
        doubted = np.full(len(self.names), 0.5) if doubt is None else np.clip(doubt.astype(np.float64), 1e-3, 1 - 1e-3)
        self._doubt_odds = logit(doubted)
        self._near = np.zeros(len(self.names))  # votes of decided names
        self._index = {name: i for i, name in enumerate(self.names)}
        given = {group: _on_axes(seed[None], axes)[0] for group, seed in (seeds or {}).items()}
        numbers = sorted({*place.values()} | given.keys())
        self._built: tuple[int, ...] = tuple(numbers)
        self._columns: dict[GroupId, int] = {number: column for column, number in enumerate(numbers)}
        self._own = np.array([self._columns[place[name]] for name in self.names])
        with threadpool_limits(limits=1):
            weight = SEED if given else MEAN
            seeded = [
                _rounded(weight * self._kernel(self._seed(number, given.get(number)))) + FLOOR for number in numbers
            ]
        self._votes = np.stack(seeded, axis=1)
        lead = _rounded(LEAD * self._votes.max(axis=1))
        behind = np.flatnonzero(self._votes.argmax(axis=1) != self._own)
        self._votes[behind, self._own[behind]] = lead[behind]  # the build's placement comes before all other seeds
        self._of_live = np.empty((len(self.names), 0))
        self._learnt: dict[int, GroupId] = {}
        # of each name learnt: when, the error expected just before, whether it was one
        self._record: dict[int, tuple[datetime, float, bool]] = {}

    @classmethod
    def of(cls, stages: Path, *, fitted: Coefficients | None = None) -> Self:
        """Return the learner of the stages of a build, which were run up to the top level.

        Raises:
            TableError: its rows cannot be read or do not belong to its names.
        """
        names, groups = (read_parquet(stages / file) for file in ("cluster/names.parquet", "toplevel/groups.parquet"))
        file = stages / "cluster" / GROUP_ROWS
        evidence = read_evidence(stages / "evidence")
        rows, given = _joined(evidence, read_embeddings(file) if file.is_file() else None)
        seeds = None if given is None else dict(zip(groups.sort("group")["group"].to_list(), given, strict=True))
        return cls(
            names["name"].to_list(),
            rows,
            names["landmarks"].to_numpy(),
            dict(names.select("name", "group").iter_rows()),
            seeds,
            names["wrong"].to_numpy(),
            fitted,
        )

    @staticmethod
    def files(stages: Path) -> dict[str, Path]:
        """Return the files that :meth:`of` reads besides the tables of names and groups, by the stage's names."""
        found = {"evidence": stages / "evidence" / "evidence.json"}
        rows = stages / "cluster" / GROUP_ROWS
        return {**found, "cluster/group_rows": rows} if rows.is_file() else found

    def _seed(self, number: int, given: np.ndarray | None) -> np.ndarray:
        if given is not None:
            return given
        total = self.rows[self._own == self._columns[number]].astype(np.float64).sum(axis=0)
        length = float(np.linalg.norm(total))
        return (total / length if length else total).astype(np.float32)

    def _kernel(self, row: np.ndarray) -> np.ndarray:
        return np.exp(NARROWNESS * ((self.rows @ row).astype(np.float64) - 1))

    # -- learning -------------------------------------------------------------------------------------------------

    def fit(self, grouping: Grouping) -> Estimates:
        """Learn the decisions that ``grouping`` holds; return the estimates. The same decisions give the same."""
        decided = {self._index[name]: group for name, group in grouping.decided.items() if name in self._index}
        with threadpool_limits(limits=1):
            self._take(decided, grouping)
            live, votes = self._live(grouping)
            standing = _standing(votes)
            undecided = np.ones(len(self.names), dtype=bool)
            position = {group: k for k, group in enumerate(live)}
            for i, group in decided.items():
                undecided[i], standing[i] = False, -1 if group is None else position[group]
            dropped = (i for i, name in enumerate(self.names) if grouping.place[name] is None and undecided[i])
            gone = [i for i in dropped if Subject("name", self.names[i]) in grouping.claims]  # with their group
            undecided[gone], standing[gone] = False, -1
            went = self._redirects(grouping)
            home: dict[GroupId, int] = {
                group: position[end] for group in self._built if (end := _end(group, went)) is not None
            }
            doubts = self._doubts(slice(None), standing, home)
            near = nearness(self._near)
            errors = np.where(undecided, self._errors(votes, standing, doubts, near, self._correction()), 0.0)
        labels = tuple(grouping.labels.get(group, str(group)) for group in live)
        return Estimates(
            self.names,
            self.items,
            tuple(live),
            labels,
            standing,
            undecided,
            errors,
            votes,
            doubts,
            near,
            self.fitted.spreads,
        )

    def _take(self, decided: Mapping[int, GroupId | None], grouping: Grouping) -> None:
        """Add and take away the votes of names that are decided otherwise than before, action by action.

        Before an action is learnt, the errors that were expected of its names are noted beside those that it found.
        """
        wanted = {i: group for i, group in decided.items() if group is not None}
        changed = {i for i in wanted.keys() | self._learnt.keys() if wanted.get(i) != self._learnt.get(i)}
        for i in sorted(changed & self._learnt.keys()):
            vote = _rounded(self._kernel(self.rows[i]))
            self._votes[:, self._columns[self._learnt.pop(i)]] -= vote
            self._near -= vote
            del self._record[i]
        whens = {
            i: grouping.claims[Subject("name", self.names[i])].entries[-1].decision.when
            for i in changed & wanted.keys()
        }
        for when, action in groupby(sorted((when, i) for i, when in whens.items()), key=lambda new: new[0]):
            members = [i for _, i in action]
            stood, errors = self._expected(members)
            for i, group, error in zip(members, stood, errors.tolist(), strict=True):
                self._record[i] = (when, error, group != wanted[i])
            for i in members:
                column, vote = self._column(wanted[i]), _rounded(self._kernel(self.rows[i]))
                self._votes[:, column] += vote
                self._near += vote
                self._learnt[i] = wanted[i]

    def _column(self, group: GroupId) -> int:
        """Return a group's column of votes, a new one for a new group."""
        if group not in self._columns:
            self._columns[group] = self._votes.shape[1]
            self._votes = np.concatenate([self._votes, np.full((len(self.names), 1), FLOOR)], axis=1)
        return self._columns[group]

    def _expected(self, members: Sequence[int]) -> tuple[list[GroupId], np.ndarray]:
        """Return the groups of some names by the votes so far, and the probabilities that they are wrong."""
        groups = sorted(self._columns, key=_in_order)
        columns = [self._columns[group] for group in groups]
        votes = self._votes[members][:, columns]
        standing = votes.argmax(axis=1)
        doubts = self._doubts(members, standing, {group: k for k, group in enumerate(groups)})
        errors = self._errors(votes, standing, doubts, nearness(self._near[members]))
        return [groups[k] for k in standing.tolist()], errors

    def _live(self, grouping: Grouping) -> tuple[list[GroupId], np.ndarray]:
        """Return the groups that names can be in, and (N, K + 1) votes for them and, always 0, for none.

        These are the build's groups that were not merged or dropped, and people's that have names.
        """
        went = self._redirects(grouping)
        ends = {_end(group, went) for group in went}
        kept = {group for group in self._columns if isinstance(group, int) and group not in went}
        live = sorted(
            kept | {group for group in ends | {*grouping.decided.values()} if group is not None}, key=_in_order
        )
        columns = np.array([self._column(group) for group in live], dtype=np.int64)
        if self._of_live.shape[1] != len(live) + 1:
            self._of_live = np.empty((len(self.names), len(live) + 1))
        votes = self._of_live
        votes[:, :-1] = self._votes[:, columns]
        votes[:, -1] = 0.0
        position = {group: k for k, group in enumerate(live)}
        for group in went:
            if (target := _end(group, went)) is not None:
                votes[:, position[target]] += self._votes[:, self._columns[group]]
        for name, groups in grouping.refused.items():
            refused = [position[group] for group in groups if group in position]
            if name in self._index and len(refused) < len(live):
                votes[self._index[name], refused] = 0.0
        return live, votes

    def _redirects(self, grouping: Grouping) -> dict[GroupId, GroupId | None]:
        """Return where the build's groups that were merged or dropped went; None: dropped."""
        claims = {
            group: grouping.claims.get(Subject("group", group)) for group in self._columns if isinstance(group, int)
        }
        return {group: claim.fate for group, claim in claims.items() if claim is not None and not claim.renames}

    # -- errors ---------------------------------------------------------------------------------------------------

    def _doubts(self, members: slice | Sequence[int], standing: np.ndarray, home: Mapping[GroupId, int]) -> np.ndarray:
        """Return the log odds of the build's doubt of some names, 0 where it speaks of another group than theirs."""
        places = np.array([*(home.get(group, -1) for group in self._built), -1])
        return np.where(places[self._own[members]] == standing, self._doubt_odds[members], 0.0)

    def _errors(
        self, votes: np.ndarray, standing: np.ndarray, doubts: np.ndarray, near: np.ndarray, shift: float = 0.0
    ) -> np.ndarray:
        """Return the (N,) probabilities that names are wrong."""
        slope, doubt, nearby, constant = self.fitted.error
        odds = slope * log_odds(votes, standing) + doubt * doubts + nearby * near + constant + shift
        return np.clip(expit(odds), LEAST, 1 - LEAST)

    def _correction(self) -> float:
        """Return what the decisions so far say of the level of errors: a shift of their log odds.

        Each name decided was found right or wrong, and stands against the error that was expected of that very name
        just before, so that it does not matter that doubtful names are asked about first. Late decisions count more,
        and the spread between data sets is the prior's. But people decide about names that are wrong rather than
        about those that stand right: fewer errors than expected are believed, of more only a part.
        """
        latest = nlargest(_LATEST, ((when, i) for i, (when, _, _) in self._record.items()))
        if not latest:
            return 0.0
        expected, found = (np.array([self._record[i][k] for _, i in latest], dtype=np.float64) for k in (1, 2))
        odds, weight, shift = logit(expected), 0.5 ** (np.arange(len(latest)) / _HALF_LIFE), 0.0
        precision = self.fitted.spreads.between_sets**-2
        for _ in range(_STEPS):  # Newton's, towards the most probable shift
            p = expit(odds + shift)
            step = (weight @ (found - p) - precision * shift) / (weight @ (p * (1 - p)) + precision)
            shift += float(np.clip(step, -1, 1))
        return min(shift, _CHOSEN * shift)


def nearness(votes: np.ndarray) -> np.ndarray:
    """Return how near names are to decided ones, by the votes that these have for them: 0 where none is near."""
    return np.log1p(np.maximum(votes, 0.0) / _NEARNESS)


def log_odds(votes: np.ndarray, standing: np.ndarray) -> np.ndarray:
    """Return the (N,) log odds that names are wrong by their (N, K + 1) votes; -1: in no group."""
    own = votes[np.arange(len(votes)), standing] ** 2 / np.einsum("ij,ij->i", votes, votes)
    own = np.clip(own, 1e-4, 1 - 1e-4)
    return np.log((1 - own) / own)


def _in_order(group: GroupId) -> tuple[bool, GroupId]:
    return isinstance(group, str), group


def _standing(votes: np.ndarray) -> np.ndarray:
    """Return the groups of most votes, the first at a tie; -1 where that is the last column, for no group."""
    best = votes.argmax(axis=1)
    return np.where(best == votes.shape[1] - 1, -1, best)


def _end(group: GroupId, went: Mapping[GroupId, GroupId | None]) -> GroupId | None:
    """Return the group that a group ended in, over any number of merges."""
    seen: set[GroupId] = set()
    now: GroupId | None = group
    while now is not None and now in went and now not in seen:
        seen.add(now)
        now = went[now]
    return now


def _rounded(votes: np.ndarray) -> np.ndarray:
    return np.round(votes * _GRID) / _GRID


def _leading_axes(rows: np.ndarray) -> np.ndarray | None:
    """Return the (D, 128) leading axes where names are many, so that a decision takes less than a second."""
    if len(rows) <= _MANY_NAMES or rows.shape[1] <= _MOST_AXES:
        return None
    _, axes = np.linalg.eigh(rows.T.astype(np.float64) @ rows)
    return axes[:, -_MOST_AXES:].astype(np.float32)


def _on_axes(rows: np.ndarray, axes: np.ndarray | None) -> np.ndarray:
    if axes is None:
        return np.ascontiguousarray(rows, dtype=np.float32)
    low = rows.astype(np.float32) @ axes
    return low / np.maximum(np.linalg.norm(low, axis=1, keepdims=True), 1e-9)


def _joined(evidence: Evidence, seeds: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the joint rows of names and of given groups' texts, which only the first block knows.

    What the other blocks would say of a group is borrowed from the names nearest to it.
    """
    if seeds is None:
        return evidence.joint(form=_FORM), None
    told = seeds.any(axis=1)  # not of the group for names that fit no other
    first, *others = evidence.blocks
    count, nothing = len(first.rows), np.zeros(int(told.sum()), dtype=bool)
    longer = [Block(first.name, np.vstack([first.rows, seeds[told]]), np.append(first.known, ~nothing))]
    for block in others:
        empty = np.zeros((len(nothing), block.rows.shape[1]), dtype=np.float32)
        longer.append(Block(block.name, np.vstack([block.rows, empty]), np.append(block.known, nothing), block.is_form))
    rows = Evidence(tuple(longer), evidence.weights, evidence.agreement).joint(form=_FORM)
    given = np.zeros((len(seeds), rows.shape[1]), dtype=np.float32)
    given[told] = rows[count:]
    return rows[:count], given
