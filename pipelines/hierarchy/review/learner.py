"""The learner of a review: after each decision it assigns undecided names to groups, with error probabilities.

After each decision it fits a multinomial logistic regression over the joint evidence. The examples are the decided
names and one row per group: the embedding of a predefined group's name, else the mean of the group's names. The
probabilities are multiplied by the square root of the build's own probabilities. Without decisions no name moves. The
order of the decisions does not matter.

The error probability of a name that stays in its group is the mean of the learner's and the build's probability.
:func:`hgld.pipelines.hierarchy.groups.doubt.still_wrong` estimates the number of wrong names. It counts only undecided
names, because nothing says how often people are wrong.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from hgld.tables import read_parquet

from ..encoders.embed import read_embeddings
from ..groups.doubt import Model, Spreads, still_wrong
from ..groups.evidence import Block, Evidence, read_evidence
from ..unit_rows import unit
from .grouping import GroupId, Grouping

GROUP_ROWS = "group_rows.npy"
STRENGTH = 10.0  # C of scikit-learn's regression; 10 to 30 give the same measured effort
LEAST = 1e-4  # smallest error probability of an undecided name
_UNSEEN = 1e-6  # probability of a group without examples
_FORM = 0.15  # weight of the wording in the evidence; .1 to .2 give the same measured effort
_MOST_AXES, _MANY_NAMES = 128, 10_000


@dataclass(frozen=True)
class Estimates:
    """The learner's estimates for every name after some decisions; arrays are in the order of the learner's names.

    Attributes:
        names: the N names.
        items: (N,) numbers of items.
        groups: the K groups that names can be in.
        labels: labels of the groups.
        standing: (N,) index of each name's group in ``groups``; -1: no group.
        undecided: (N,) bool, True if no decision names the name.
        errors: (N,) error probabilities; 0 for decided names.
        shares: (N, K) float32 probabilities of the groups.
        spreads: uncertainty of the average error probability.
    """

    names: tuple[str, ...]
    items: np.ndarray
    groups: tuple[GroupId, ...]
    labels: tuple[str, ...]
    standing: np.ndarray
    undecided: np.ndarray
    errors: np.ndarray
    shares: np.ndarray = field(repr=False)
    spreads: Spreads

    @property
    def place(self) -> dict[str, GroupId | None]:
        """The group of every name; None without a group."""
        return {n: self.groups[g] if g >= 0 else None for n, g in zip(self.names, self.standing.tolist(), strict=True)}

    @property
    def wrong(self) -> dict[str, float]:
        """Error probabilities by name."""
        return dict(zip(self.names, self.errors.tolist(), strict=True))

    @cached_property
    def still_wrong(self) -> dict[str, list[float]] | None:
        """Mean and 80% interval of the numbers of undecided names and items in a wrong group, to one decimal.

        None if every name is decided, because nothing says how often people are wrong.
        """
        left, counts = self.undecided, {"names": np.ones(len(self.errors)), "items": self.items}
        if not left.any():
            return None
        errors, groups = self.errors[left], self.standing[left]
        return {
            of: [round(float(end), 1) for end in still_wrong(errors, self.spreads, weights=each[left], groups=groups)]
            for of, each in counts.items()
        }


class Learner:
    """Estimator of the groups of names, from a build and decisions about it.

    Args:
        names: the N names.
        rows: (N, D) unit rows, the joint evidence of names.
        items: (N,) numbers of items.
        place: group of every name in the build.
        seeds: one row per group, by group number. Default: the mean of the rows of the group's names.
        doubt: (N,) error probabilities of the build; None: unknown.

    Attributes:
        rows: (N, D) unit rows, reduced to 128 axes if there are many names.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: np.ndarray,
        items: np.ndarray,
        place: Mapping[str, int],
        seeds: Mapping[int, np.ndarray] | None = None,
        doubt: np.ndarray | None = None,
    ) -> None:
        self.names, self.items = tuple(names), np.asarray(items, dtype=np.int64)
        both = _narrow(np.vstack([rows, *(seeds or {}).values()]))
        self.rows, given = both[: len(names)], dict(zip(seeds or {}, both[len(names) :], strict=True))
        self._doubt = np.full(len(names), 0.5) if doubt is None else np.clip(doubt, 1e-3, 1 - 1e-3).astype(np.float64)
        self._own = np.array([place[name] for name in names])
        self._spreads = Model.read("found" if seeds is None else "given").spreads
        numbers = sorted({*place.values()} | given.keys())
        means = {n: self.rows[self._own == n].sum(axis=0, dtype=np.float64) for n in numbers if n not in given}
        self._seeds = {n: given[n] if n in given else means[n] / max(np.linalg.norm(means[n]), 1e-9) for n in numbers}

    @classmethod
    def of(cls, stages: Path) -> Self:
        """Return the learner of a build whose stages up to the top level are done.

        Raises:
            TableError: the rows cannot be read or do not match the names.
        """
        names, groups = (read_parquet(stages / file) for file in ("cluster/names.parquet", "toplevel/groups.parquet"))
        file = stages / "cluster" / GROUP_ROWS
        evidence = read_evidence(stages / "evidence")
        rows, given = _joined(evidence, read_embeddings(file) if file.is_file() else None)
        seeds = None if given is None else dict(zip(groups.sort("group")["group"].to_list(), given, strict=True))
        place = dict(names.select("name", "group").iter_rows())
        return cls(
            names["name"].to_list(), rows, names["landmarks"].to_numpy(), place, seeds, names["wrong"].to_numpy()
        )

    @staticmethod
    def files(stages: Path) -> dict[str, Path]:
        """Return the files that :meth:`of` reads, except the tables of names and groups; the keys name their stages."""
        found = {
            "evidence": stages / "evidence" / "evidence.json",
            "cluster/group_rows": stages / "cluster" / GROUP_ROWS,
        }
        return {key: file for key, file in found.items() if file.is_file()}

    def fit(self, grouping: Grouping) -> Estimates:
        """Learn from decisions; return the estimates. The same decisions give the same estimates."""
        ends = {number: grouping.end_of(number) for number in self._seeds}
        decided = grouping.decided
        wanted = {group for group in [*ends.values(), *decided.values()] if group is not None}
        live = sorted(wanted, key=lambda group: (isinstance(group, str), group))
        column: dict[GroupId | None, int] = {group: k for k, group in enumerate(live)}
        home = np.array([column.get(ends[number], -1) for number in self._own.tolist()])
        examples = [(self.rows[i], column[decided[n]]) for i, n in enumerate(self.names) if decided.get(n) is not None]
        shares = self._prior(home, len(live))
        if examples:
            seeds = [(row, column[ends[n]]) for n, row in self._seeds.items() if row.any() and ends[n] is not None]
            shares = np.sqrt(shares) * self._regression([*examples, *seeds], len(live))
        index = {name: i for i, name in enumerate(self.names)}
        for name, groups in grouping.refused.items():
            refused = [column[group] for group in groups if group in column]
            if len(refused) < len(live):
                shares[index[name], refused] = 0.0
        shares /= shares.sum(axis=1, keepdims=True)
        standing = shares.argmax(axis=1)
        wrong = 1 - shares[np.arange(len(shares)), standing]
        at_home = (wrong + self._doubt) / 2 if examples else self._doubt
        errors = np.clip(np.where(standing == home, at_home, wrong), LEAST, 1 - LEAST)
        undecided = np.array([n not in decided and grouping.place[n] is not None for n in self.names])
        for i in np.flatnonzero(~undecided).tolist():
            errors[i], standing[i] = 0.0, column.get(grouping.place[self.names[i]], -1)
        labels = tuple(grouping.label_of(group) for group in live)
        return Estimates(
            names=self.names,
            items=self.items,
            groups=tuple(live),
            labels=labels,
            standing=standing,
            undecided=undecided,
            errors=errors,
            shares=shares.astype(np.float32),
            spreads=self._spreads,
        )

    def _prior(self, home: np.ndarray, count: int) -> np.ndarray:
        """Return (N, K) probabilities from the build alone; a name's own group has at least one half."""
        own = 1 - self._doubt / 2
        prior = np.repeat(((1 - own) / max(count - 1, 1))[:, None], count, axis=1)
        prior[home < 0] = 1 / count
        prior[home >= 0, home[home >= 0]] = own[home >= 0]
        return prior

    def _regression(self, examples: Sequence[tuple[np.ndarray, int]], count: int) -> np.ndarray:
        """Return (N, K) probabilities from a regression on examples, pairs of a row and the index of its group."""
        rows, columns = np.stack([row for row, _ in examples]), np.array([k for _, k in examples])
        shares = np.full((len(self.names), count), _UNSEEN)
        if len(np.unique(columns)) == 1:
            shares[:, columns[0]] = 1
            return shares
        with threadpool_limits(limits=1), warnings.catch_warnings():
            # Sklearn warns of many groups with few examples, which is normal at the start.
            warnings.simplefilter("ignore", UserWarning)
            model = LogisticRegression(C=STRENGTH, tol=1e-3, max_iter=200).fit(rows, columns)
            shares[:, model.classes_] = np.maximum(model.predict_proba(self.rows), _UNSEEN)
        return shares


def _narrow(rows: np.ndarray) -> np.ndarray:
    """Project rows of many names onto their 128 leading axes, so that a decision takes less than two seconds."""
    if len(rows) > _MANY_NAMES and rows.shape[1] > _MOST_AXES:
        _, axes = np.linalg.eigh(rows.T.astype(np.float64) @ rows)
        rows = unit(rows.astype(np.float32) @ axes[:, -_MOST_AXES:].astype(np.float32))
    return np.ascontiguousarray(rows, dtype=np.float32)


def _joined(evidence: Evidence, seeds: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the joint rows of the names, and of the texts of predefined groups.

    Only the first evidence source has rows for these texts. For the other sources, a group gets rows from the names
    nearest to it.
    """
    if seeds is None:
        return evidence.joint(form=_FORM), None
    has_text = seeds.any(axis=1)  # the group for names that fit no other has no text
    first, *others = evidence.blocks
    names, texts = len(first.rows), int(has_text.sum())
    longer = [Block(first.name, np.vstack([first.rows, seeds[has_text]]), np.append(first.known, np.ones(texts, bool)))]
    for block in others:
        rows = np.pad(block.rows, ((0, texts), (0, 0)))
        longer.append(Block(block.name, rows, np.append(block.known, np.zeros(texts, bool)), block.is_form))
    rows = Evidence(tuple(longer), evidence.weights, evidence.agreement).joint(form=_FORM)
    joint = np.zeros((len(seeds), rows.shape[1]), dtype=np.float32)
    joint[has_text] = rows[names:]
    return rows[:names], joint
