"""Decisions of a review, applied to the classes of a dataset: where each stands afterwards, and who says so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy

from ..hierarchy.review.decisions.agreement import Settlement, settle
from ..hierarchy.review.decisions.decisions import Entry
from ..hierarchy.review.decisions.grouping import GroupId, Grouping, Subject

Path = tuple[str | None, ...]  # names of classes, finest level first; None: unknown
_UNKNOWN = -1


@dataclass(frozen=True)
class Verdict:
    """The outcome of decisions about a class or an item.

    Attributes:
        path: names of its classes, finest first, None where unknown; None: dropped.
        who: those who decided, in alphabetical order.
    """

    path: Path | None
    who: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The outcome of all decisions: by finest class, by (split, key) of an item, and what became of each decision."""

    of_class: Mapping[int, Verdict]
    of_item: Mapping[tuple[str, str], Verdict]
    settlement: Settlement


def path_of(hierarchy: Hierarchy, labels: Sequence[int]) -> Path:
    """Return the names of an item's classes, finest first; None where unknown."""
    return tuple(names[label] if label >= 0 else None for names, label in zip(hierarchy.names, labels, strict=True))


def verdicts(hierarchy: Hierarchy, entries: Sequence[Entry]) -> Verdicts:
    """Apply decisions to the classes of a dataset: its finest level are the names, the next one the groups.

    Args:
        hierarchy: of the dataset; at least two levels.
        entries: of :func:`hgld.pipelines.hierarchy.review.decisions.decision_files.read_decisions`.

    Raises:
        ConfigError: the dataset has one level.
    """
    if len(hierarchy.levels) < 2:
        raise ConfigError(
            f"decisions put names into groups, and the dataset has one level, {', '.join(hierarchy.levels)}."
        )
    groups = dict(enumerate(hierarchy.names[1]))
    if (hierarchy.parents[0] < 0).any():
        groups[_UNKNOWN] = f"({hierarchy.levels[1]} unknown)"
    place = dict(zip(hierarchy.names[0], hierarchy.parents[0].tolist(), strict=True))
    above = dict(zip(hierarchy.levels[2:], hierarchy.names[2:], strict=True))
    settlement = settle(place, groups, entries, above or None)
    reader = _Reader(hierarchy, settlement.grouping)
    of_class = {}
    for label, name in enumerate(hierarchy.names[0]):
        group = settlement.grouping.place[name]
        who = reader.deciders(Subject("name", name), place[name] if group is None else group)
        if who:
            of_class[label] = Verdict(None if group is None else (name, *reader.above(group)), who)
    of_item = {}
    for (split, key), given in settlement.grouping.items.items():
        group = given.group if given.group is not None else settlement.grouping.place.get(given.name or "")
        path = None if group is None else (given.name, *reader.above(group))
        of_item[split, key] = Verdict(path, reader.deciders(Subject("item", split, key), None))
    return Verdicts(of_class, of_item, settlement)


class _Reader:
    """The classes above the groups under the decisions, and the people behind them."""

    def __init__(self, hierarchy: Hierarchy, grouping: Grouping) -> None:
        self._hierarchy, self._grouping = hierarchy, grouping
        self._claims = grouping.effective_claims()
        self._known: dict[GroupId, Path] = {}

    def deciders(self, subject: Subject, group: GroupId | None) -> tuple[str, ...]:
        """Return who decided about a name or an item, or about its group: another label, another class above."""
        levels: tuple[str | None, ...] = (None, *self._hierarchy.levels)
        about = [subject, *([Subject("group", group)] if group is not None else [])]
        about += [Subject("top", group, level) for level in levels if group is not None]
        found = {who for one in about if one in self._claims for who in self._claims[one].annotators}
        return tuple(sorted(found))

    def above(self, group: GroupId) -> Path:
        """Return the label of a group and the names of the classes above it."""
        if group not in self._known:
            names = [*self._machine(group)]
            for i, level in enumerate(self._hierarchy.levels[2:]):
                claim = self._claims.get(Subject("top", group, level))
                names[i] = str(claim.value) if claim else names[i]
            if group in self._grouping.tops and names:
                names[-1] = self._grouping.tops[group]
            label = None if group == _UNKNOWN else self._grouping.labels[group]
            self._known[group] = (label, *names)
        return self._known[group]

    def _machine(self, group: GroupId) -> Path:
        """Return the classes above a group of the dataset; of a new group, those that all its names had."""
        if isinstance(group, int):
            return self._climb(group)
        sources = {self._grouping.origin[name] for name in self._grouping.members.get(group, ())}
        found = {self._climb(source) for source in sources}
        return found.pop() if len(found) == 1 else (None,) * (len(self._hierarchy.levels) - 2)

    def _climb(self, label: int) -> Path:
        names: list[str | None] = []
        for parents, level in zip(self._hierarchy.parents[1:], self._hierarchy.names[2:], strict=True):
            label = int(parents[label]) if label >= 0 else -1
            names.append(level[label] if label >= 0 else None)
        return tuple(names)
