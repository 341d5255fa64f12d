"""The learner of a review: after each decision it assigns undecided names to groups, with error probabilities.

After each decision the learner fits the regression of :mod:`hgld.pipelines.hierarchy.groups.regression` to the joint
evidence and the words of the names (:func:`hgld.pipelines.hierarchy.groups.evidence.add_words`). The examples are the
decided names and, per group, the texts of a predefined group or the mean embedding of the names that clustering put
into it. The probabilities are multiplied by the square root of the build's own probabilities, and then by the votes of
language models (:mod:`hgld.pipelines.hierarchy.review.model_votes`). Without decisions and votes no name moves; the
probabilities only order the other groups. The order of the decisions does not matter.

The error probability of a name that stays in its group is the mean of the learner's and the build's probability. Its
log-odds are shifted so that such names have the build's mean probability, because the learner has seen too few names to
know the level. From the decisions it estimates the level of all error probabilities, and whether the person looks. A
twentieth of the accepted names is asked again, which shows how often the person errs.
:func:`hgld.pipelines.hierarchy.groups.doubt.still_wrong` estimates the number of wrong names, including decided names.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from hgld.tables import read_parquet

from ..encoders.embed import read_embeddings
from ..groups.doubt import Belief, Expected, Model, believe, still_wrong
from ..groups.evidence import LEARNING_FORM, add_words, read_evidence
from ..groups.given import EXAMPLE_ROWS, EXAMPLES
from ..groups.regression import group_shares
from ..unit_rows import leading_axes, sums, unit
from .grouping import GroupId, Grouping
from .model_votes import learn_reliability, weigh

LEAST = 1e-4  # smallest error probability of an undecided name
# above this probability of acceptance without reading, the page says so; careful people stay below (review_trust)
UNREAD = 0.3
ASKED_AGAIN = 20  # one of this many accepted names is asked again
_MOST_AXES, _MANY_NAMES = 128, 10_000


@dataclass(frozen=True)
class Estimates:
    """The learner's estimates for every name after some decisions; arrays are in the order of the learner's names.

    Attributes:
        names: the N names.
        items: (N,) number of items of each name.
        groups: the K groups that names can be in.
        labels: labels of the groups.
        standing: (N,) index of each name's group in ``groups``; -1: no group.
        undecided: (N,) bool, True if no decision names the name.
        again: (N,) bool, True if the name was accepted once and the page asks about it again.
        errors: (N,) error probabilities; 0 for decided names.
        odds: (N,) log-odds of an error, before the level of this build is known.
        shares: (N, K) float32 probabilities of the groups.
        decided: (M,) indices of the decided names that have a group.
        belief: beliefs about the level of all error probabilities and about the person's care.
    """

    names: tuple[str, ...]
    items: np.ndarray
    groups: tuple[GroupId, ...]
    labels: tuple[str, ...]
    standing: np.ndarray
    undecided: np.ndarray
    again: np.ndarray
    errors: np.ndarray
    odds: np.ndarray
    shares: np.ndarray = field(repr=False)
    decided: np.ndarray
    belief: Belief

    @property
    def place(self) -> dict[str, GroupId | None]:
        """The group of every name; None without a group."""
        return {n: self.groups[g] if g >= 0 else None for n, g in zip(self.names, self.standing.tolist(), strict=True)}

    @property
    def wrong(self) -> dict[str, float]:
        """Error probabilities by name."""
        return dict(zip(self.names, self.errors.tolist(), strict=True))

    @cached_property
    def still_wrong(self) -> dict[str, Any]:
        """Mean and 80% interval of the numbers of names and items in a wrong group, decided names included.

        ``unread``: whether the person may have accepted the names without looking, so that their errors are unknown.
        """
        found = dict[str, Any](unread=bool(len(self.decided) and self.belief.unread > UNREAD))
        for of, each in (("names", np.ones(len(self.errors))), ("items", self.items)):
            found[of] = [round(end, 1) for end in Expected.of(self.draws(each))]
        return found

    def draws(self, each: np.ndarray) -> np.ndarray:
        """Return draws of the number of names in a wrong group; ``each`` has the (N,) weights of the names."""
        left = self.undecided
        return still_wrong(self.odds[left], each[left], self.standing[left], self.belief, each[self.decided])


class Learner:
    """Estimator of the groups of names, from a build and decisions about it.

    Args:
        names: the N names.
        rows: (N, D) unit rows of the names: their joint evidence, and from :meth:`of` also their words.
        items: (N,) number of items of each name.
        place: group of every name in the build.
        examples: (E,) group numbers and (E, D) rows of the texts of predefined groups. Default: the mean of the rows
            of each group's names.
        doubt: (N,) error probabilities of the build; None: they are unknown.

    Attributes:
        rows: (N, D) unit rows, reduced to 128 axes if there are many names.
        example_rows: (E, D) unit rows of the examples.
        example_of: group numbers of the E examples.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: np.ndarray,
        items: np.ndarray,
        place: Mapping[str, int],
        examples: tuple[np.ndarray, np.ndarray] | None = None,
        doubt: np.ndarray | None = None,
    ) -> None:
        self.names, self.items = tuple(names), np.asarray(items, dtype=np.int64)
        self._own = np.array([place[name] for name in names])
        self._doubt = np.full(len(names), 0.5) if doubt is None else np.clip(doubt, 1e-3, 1 - 1e-3).astype(np.float64)
        self._spreads = Model.read("found" if examples is None else "given").spreads
        self._index = {name: i for i, name in enumerate(self.names)}
        self._is_control = np.array([zlib.crc32(name.encode()) % ASKED_AGAIN == 0 for name in self.names])
        if examples is None:
            numbers, member = np.unique(self._own, return_inverse=True)
            examples = numbers, unit(sums(rows, member.ravel(), len(numbers)))
        both = _narrow(np.vstack([rows, examples[1]]))
        self.rows, self.example_rows, self.example_of = both[: len(names)], both[len(names) :], examples[0].tolist()
        self._numbers = sorted({*place.values(), *self.example_of})

    @classmethod
    def of(cls, stages: Path) -> Self:
        """Return the learner of a build whose stages up to the top level are done.

        Raises:
            TableError: the rows cannot be read or do not match the names.
        """
        names, file = read_parquet(stages / "cluster/names.parquet"), stages / "cluster" / EXAMPLES
        rows = read_evidence(stages / "evidence").joint(LEARNING_FORM)
        texts, examples = names["name"].to_list(), None
        if file.is_file():
            shown, others = read_parquet(file), read_embeddings(stages / "cluster" / EXAMPLE_ROWS)
            rows, others = add_words(rows, others, [*texts, *shown["text"]])
            examples = shown["group"].to_numpy(), others
        else:
            rows, _ = add_words(rows, rows[:0], texts)
        place = dict(names.select("name", "group").iter_rows())
        return cls(texts, rows, names["landmarks"].to_numpy(), place, examples, names["wrong"].to_numpy())

    @staticmethod
    def files(stages: Path) -> dict[str, Path]:
        """Return the files that :meth:`of` reads, except the table of names; the keys name their stages."""
        found = {"evidence": stages / "evidence" / "evidence.json"}
        found |= {f"cluster/{file}": stages / "cluster" / file for file in (EXAMPLES, EXAMPLE_ROWS)}
        return {key: file for key, file in found.items() if file.is_file()}

    def fit(self, grouping: Grouping, models: Sequence[Grouping] = ()) -> Estimates:
        """Learn from decisions; return the estimates. The same decisions give the same estimates.

        Args:
            grouping: the groups after people's decisions.
            models: per language model, the build's groups after its decisions alone, which are its votes.
        """
        ends = {number: grouping.end_of(number) for number in self._numbers}
        told = grouping.decided
        wanted = {group for group in [*ends.values(), *told.values()] if group is not None}
        live = sorted(wanted, key=lambda group: (isinstance(group, str), group))
        column: dict[GroupId | None, int] = {group: k for k, group in enumerate(live)}
        home = np.array([column.get(ends[number], -1) for number in self._own.tolist()])
        texts = np.array([column.get(ends[number], -1) for number in self.example_of], dtype=int)
        decided = np.array(sorted(self._index[n] for n, group in told.items() if group is not None), dtype=int)
        answers = np.array([column[told[self.names[i]]] for i in decided.tolist()], dtype=int)
        shares, doubt, voters = self._prior(home, len(live)), self._doubt, list[tuple[np.ndarray, np.ndarray]]()
        if models:  # what the build and the votes say without the decisions, except for the models' reliability
            start = self._learned(shares, texts, decided[:0], answers[:0])
            for model in models:
                said = {name: column.get(grouping.end_of(group), -1) for name, group in model.decided.items()}
                votes = np.array([said.get(name, -1) for name in self.names])
                voters.append((votes, learn_reliability(start[decided], votes[decided], answers, len(live))))
                start = weigh(start, *voters[-1])
            is_told = np.any([votes >= 0 for votes, _ in voters], axis=0)
            home = np.where(is_told, start.argmax(axis=1), home)
            doubt = np.where(is_told, np.clip(1 - start.max(axis=1), 1e-3, 1 - 1e-3), doubt)
        learned = self._learned(shares, texts, decided, answers)
        if not len(decided) and not models:  # no name moves; what is learned orders the other groups
            is_home = home[:, None] == np.arange(len(live))
            own, others = np.where(is_home, shares, 0), np.where(is_home, 0, learned)
            learned = own + others * ((1 - own.sum(axis=1)) / others.sum(axis=1).clip(1e-12))[:, None]
        shares = learned
        for voter in voters:
            shares = weigh(shares, *voter)
        for name, groups in grouping.refused.items():
            refused = [column[group] for group in groups if group in column]
            if len(refused) < len(live):
                shares[self._index[name], refused] = 0.0
        shares /= shares.sum(axis=1, keepdims=True)
        standing = shares.argmax(axis=1)
        wrong = 1 - np.take_along_axis(shares, standing[:, None], axis=1)[:, 0]
        odds = logit(np.clip(wrong, LEAST, 1 - LEAST))
        stays = np.flatnonzero((standing == home) & ~np.isin(np.arange(len(home)), decided))
        odds[stays] = logit(doubt[stays])
        if len(decided):
            odds[stays] = _at_level(logit((wrong + doubt)[stays] / 2), doubt[stays])
        accepted = np.array([grouping.is_accepted(self.names[i]) for i in decided.tolist()], dtype=bool)
        asked = (grouping.answers.get(self.names[i], ()) for i in np.flatnonzero(self._is_control).tolist())
        same = [grouping.end_of(given[0]) == grouping.end_of(given[-1]) for given in asked if len(given) > 1]
        repeated = sum(same), len(same) - sum(same)
        belief = believe(
            logit(doubt[decided]), home[decided] == answers, accepted, home[decided], repeated, self._spreads
        )
        errors = np.clip(belief.errors(odds), LEAST, 1 - LEAST)
        undecided = np.array([n not in told and grouping.place[n] is not None for n in self.names])
        for i in np.flatnonzero(~undecided).tolist():
            errors[i], standing[i] = 0.0, column.get(grouping.place[self.names[i]], -1)
        again = np.zeros(len(self.names), dtype=bool)
        again[decided[accepted]] = [
            len(grouping.answers.get(self.names[i], ())) == 1 for i in decided[accepted].tolist()
        ]
        return Estimates(
            names=self.names,
            items=self.items,
            groups=tuple(live),
            labels=tuple(grouping.label_of(group) for group in live),
            standing=standing,
            undecided=undecided,
            again=again & self._is_control,
            errors=errors,
            odds=odds,
            shares=shares.astype(np.float32),
            decided=decided,
            belief=belief,
        )

    def _learned(self, prior: np.ndarray, texts: np.ndarray, decided: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Return (N, K) probabilities from the build's own, the groups' examples, and the decided names."""
        kept = (texts >= 0) & self.example_rows.any(axis=1)
        rows, groups = np.vstack([self.rows[decided], self.example_rows[kept]]), np.append(answers, texts[kept])
        found = np.sqrt(prior) * group_shares(self.rows, rows, groups, prior.shape[1])
        return found / found.sum(axis=1, keepdims=True)

    def retrieve(self) -> tuple[list[int], np.ndarray]:
        """Return the numbers of the build's K groups, and (N, K) probabilities of them without any decision."""
        index = {number: k for k, number in enumerate(self._numbers)}
        home, texts = (np.array([index[g] for g in of], dtype=int) for of in (self._own.tolist(), self.example_of))
        prior, none = self._prior(home, len(index)), np.array([], dtype=int)
        return self._numbers, self._learned(prior, texts, none, none)

    def _prior(self, home: np.ndarray, count: int) -> np.ndarray:
        """Return (N, K) probabilities from the build alone; a name's own group has at least one half."""
        own = 1 - self._doubt / 2
        prior = np.repeat(((1 - own) / max(count - 1, 1))[:, None], count, axis=1)
        prior[home < 0] = 1 / count
        prior[home >= 0, home[home >= 0]] = own[home >= 0]
        return prior


def _at_level(odds: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return log-odds plus the constant with which their mean probability is the mean of (N,) probabilities."""
    if not len(odds):
        return odds
    return odds + brentq(lambda level: float(expit(odds + level).mean() - probabilities.mean()), -40, 40)


def _narrow(rows: np.ndarray) -> np.ndarray:
    """Project rows of many names onto their 128 leading axes, so that a decision takes less than two seconds."""
    if len(rows) > _MANY_NAMES:
        rows = unit(leading_axes(rows, _MOST_AXES))
    return np.ascontiguousarray(rows, dtype=np.float32)
