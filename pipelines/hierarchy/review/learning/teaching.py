"""The teacher of a review: after each decision, where all other names stand now and what to decide next."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, Self

import numpy as np

from hgld.errors import TableError
from hgld.tables import read_parquet

from ...evidence.embed import read_embeddings
from ...evidence.evidence import Block, Evidence, read_evidence
from ...groups.cluster import check_rows
from ...groups.doubt import Expected
from ..decisions.grouping import GroupId, Grouping
from .proposals import TaughtBy
from .screens import Proposal, Queue
from .votes import Coefficients, Estimates, Votes

Order = Literal["items", "names"]
GROUP_ROWS = "group_rows.npy"
FORM = 0.15  # share of the wording in what is learnt from; measured effort is flat within .1 to .2


def taught_by(stages: Path, *, are_given: bool) -> TaughtBy:
    """Return the teacher of a build's stages, to be made when decisions are applied.

    Args:
        stages: the folder of stages.
        are_given: whether groups were given, so that the cluster stage has rows of their names.
    """
    files = _files(stages, are_given=are_given)
    read = {name: file for name, file in files.items() if name not in ("cluster/names", "toplevel/groups")}
    return TaughtBy(read, lambda: Teacher._read(files))


def _files(stages: Path, *, are_given: bool) -> dict[str, Path]:
    named = {"cluster/names": "names.parquet", "toplevel/groups": "groups.parquet", "evidence": "evidence.json"}
    if are_given:
        named["cluster/group_rows"] = GROUP_ROWS
    return {name: stages / name.partition("/")[0] / file for name, file in named.items()}


def _joined(evidence: Evidence, seeds: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the joint rows of names and of given groups' texts, which only the first block knows.

    What the other blocks would say of a group is borrowed from the names nearest to it.
    """
    if seeds is None:
        return evidence.joint(form=FORM), None
    told = seeds.any(axis=1)  # not of the group for names that fit no other
    first, *others = evidence.blocks
    count, nothing = len(first.rows), np.zeros(int(told.sum()), dtype=bool)
    longer = [Block(first.name, np.vstack([first.rows, seeds[told]]), np.append(first.known, ~nothing))]
    for block in others:
        empty = np.zeros((len(nothing), block.rows.shape[1]), dtype=np.float32)
        longer.append(Block(block.name, np.vstack([block.rows, empty]), np.append(block.known, nothing), block.is_form))
    rows = Evidence(tuple(longer), evidence.weights, evidence.agreement).joint(form=FORM)
    given = np.zeros((len(seeds), rows.shape[1]), dtype=np.float32)
    given[told] = rows[count:]
    return rows[:count], given


@dataclass(frozen=True)
class Lesson:
    """The estimates after some decisions, and the queue of proposals that follows from them.

    Attributes:
        place: the group of every name; None where it stands in none.
        wrong: the probability that a name stands wrong, by name; 0 for decided names.
        estimates: the estimates behind them.
        propose: makes the queue, from votes as of now.
    """

    place: Mapping[str, GroupId | None]
    wrong: Mapping[str, float]
    estimates: Estimates
    propose: Callable[[], Sequence[Proposal]]

    @property
    def queue(self) -> Sequence[Proposal]:
        """The proposals, the most useful first; to be asked for before the next decision."""
        return self.propose()

    def still_wrong(self) -> Expected:
        """Estimate how many undecided names stand wrong."""
        return self.estimates.names_left

    def items_wrong(self) -> Expected:
        """Estimate how many items of undecided names stand wrong."""
        return self.estimates.items_left


class Teacher:
    """Votes for the places of names, and the queue of what to decide.

    Args:
        names: the N names.
        rows: (N, D) unit rows, the joint evidence of names.
        items: (N,) numbers of their items.
        place: every name's group in the build; None for a name in no group.
        labels: the labels of the build's groups.
        seeds: rows of groups that were given by name, by their number; None where groups were found.
        doubt: (N,) probabilities of the build that names are placed wrong; None: not known.
        fitted: the coefficients; those that ship with hgld if None.
        by: what proposals are ordered by, the items or the names that an action puts right.

    Attributes:
        votes: the votes.
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: np.ndarray,
        items: np.ndarray,
        place: Mapping[str, int | None],
        labels: Mapping[int, str],
        seeds: Mapping[int, np.ndarray] | None = None,
        doubt: np.ndarray | None = None,
        fitted: Coefficients | None = None,
        by: Order = "items",
    ) -> None:
        self.votes = Votes(names, rows, items, place, seeds, doubt, fitted)
        self._first = [None if (group := place[name]) is None else labels[group] for name in names]
        self._merges = seeds is None
        self._by: Order = by

    @cached_property
    def queue(self) -> Queue:
        """The queue; a build, which asks nothing, needs none."""
        return Queue(self.votes.rows, self._first, self.votes.fitted, merges=self._merges, by=self._by)

    @classmethod
    def of(cls, folder: Path, *, by: Order = "items", fitted: Coefficients | None = None) -> Self:
        """Return the teacher of a finished build; ``by`` and ``fitted`` as of the class.

        Raises:
            TableError: its rows cannot be read or do not belong to its names, or an older hgld made it.
        """
        stages = folder / "stages"
        are_given = (stages / "cluster" / GROUP_ROWS).is_file()
        return cls._read(_files(stages, are_given=are_given), by, fitted)

    @classmethod
    def _read(cls, files: Mapping[str, Path], by: Order = "items", fitted: Coefficients | None = None) -> Self:
        names, groups = read_parquet(files["cluster/names"]), read_parquet(files["toplevel/groups"])
        file = files.get("cluster/group_rows")
        rows, given = _joined(read_evidence(files["evidence"].parent), None if file is None else read_embeddings(file))
        check_rows(names, rows, files["evidence"])
        seeds = None if given is None else dict(zip(groups.sort("group")["group"].to_list(), given, strict=True))
        place = dict(names.select("name", "group").iter_rows())
        labels = dict(groups.select("group", "label").iter_rows())
        if "wrong" not in names.columns:
            raise TableError(
                f"{files['cluster/names']}: it lacks the column 'wrong', as of an older hgld. Run the build's command "
                "again."
            )
        doubt = names["wrong"].to_numpy()
        items = names["landmarks"].to_numpy()
        return cls(names["name"].to_list(), rows, items, place, labels, seeds, doubt, fitted, by)

    def learn(self, grouping: Grouping, *, skipped: Collection[tuple[str, str | None]] = ()) -> Lesson:
        """Return the estimates and proposals after the decisions that ``grouping`` holds.

        Args:
            grouping: names in groups under decisions.
            skipped: (name, label of its estimated group) that a person looked at and put off.
        """
        now = self.votes.learn(grouping)

        @cache
        def propose() -> Sequence[Proposal]:
            live = set(grouping.live())
            together = {name for name, groups in grouping.refused.items() if any(g not in live for g in groups)}
            return self.queue.proposals(now, frozenset(skipped), grouping.apart, together)

        return Lesson(now.place, now.wrong, now, propose)
