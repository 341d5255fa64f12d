"""Names in groups, changed by decisions, and the claims that the decisions make.

A decision makes claims. Each claim is about one subject:

- the group of a name
- what becomes of a group
- the class of a group at an upper level
- the group of a single item
- a group that a name does not belong to

The agreement of several annotators is computed from their claims (:mod:`hgld.pipelines.hierarchy.review.agreement`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal, NamedTuple

from hgld.errors import quoted, some

from .decisions import Accept, Drop, Entry, GiveItem, Merge, Move, New, Refuse, Rename, SetTop, Split

_MOST_HINTS = 10  # nobody reads more, and one takes up to 0.3 s among thousands of names
GroupId = int | str  # number of a group of the clustering, label of a group that a decision made
Assignment = GroupId | None  # the group of a name; None: dropped
ItemKey = tuple[str, str]  # split and id
Classes = Mapping[str, tuple[str, ...]]  # classes by level, of the levels above the groups, finest level first


class Given(NamedTuple):
    """The name, the group, or both, that a decision gives to one item."""

    name: str | None
    group: GroupId | None


class Subject(NamedTuple):
    """The subject of a claim.

    ``name``: the name ``of``. ``group``: the group ``of``, which is renamed, merged or dropped. ``top``: the class of
    the group ``of`` at the level ``also`` (None: the coarsest). ``item``: the item of split ``of`` and id ``also``.
    ``not in``: the name ``of``, which does not belong to the group ``also``.
    """

    kind: Literal["name", "group", "top", "item", "not in"]
    of: GroupId
    also: GroupId | None = None


@dataclass(frozen=True)
class Claim:
    """The claim of a decision about one subject.

    Attributes:
        value: value of the subject. For a name: its group, or None (dropped). For a group: its new label, the group
            that it was merged into, or None (dropped). For a top: the class. For an item: the group that it was given.
            For ``not in``: None.
        entries: the decisions behind the claim.
        via: group whose names moved to ``value`` as a whole; None if a decision named the name itself.
        renames: True if the value is the group's new label, not another group.
        by_name: True if a decision ever named the name itself, even if its group was moved later.
    """

    value: Assignment | Given
    entries: tuple[Entry, ...]
    via: GroupId | None = None
    renames: bool = False
    by_name: bool = False

    @property
    def assigned(self) -> Assignment:
        """The group that a claim about a name or group assigns."""
        assert not isinstance(self.value, Given)
        return self.value

    @property
    def annotators(self) -> str:
        """The annotators behind the claim, separated by commas."""
        return ", ".join(sorted({entry.decision.who for entry in self.entries}))

    @property
    def reasons(self) -> str | None:
        """The reasons that the annotators gave; None if they gave none."""
        return "; ".join(dict.fromkeys(entry.decision.why for entry in self.entries if entry.decision.why)) or None


@dataclass(frozen=True)
class Unmatched:
    """A decision, or a part of it, that names a group, name or class that the build does not have."""

    entry: Entry
    reason: str


@dataclass
class Grouping:
    """Names in groups, changed by :meth:`apply`.

    Attributes:
        place: group of every name; None: dropped.
        labels: label of every group, including the empty groups of the clustering.
        machine: label of every group in the clustering.
        origin: group of every name in the clustering.
        classes: classes that a decision may set, by level above the groups, finest level first.
        claims: last claim about each subject.
        unmatched: decisions, or parts of them, that fit nothing in the build.
        members: names of every group, the inverse of ``place``.
    """

    place: dict[str, Assignment]
    labels: dict[GroupId, str]
    machine: Mapping[int, str]
    origin: Mapping[str, int]
    classes: Classes
    claims: dict[Subject, Claim] = field(default_factory=dict)
    unmatched: list[Unmatched] = field(default_factory=list)

    members: dict[GroupId, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.members:
            return
        self.members = {group: set() for group in self.labels}
        for name, group in self.place.items():
            if group is not None:
                self.members.setdefault(group, set()).add(name)
                self.labels.setdefault(group, str(group))

    @classmethod
    def of(cls, place: Mapping[str, int], labels: Mapping[int, str], classes: Classes) -> "Grouping":
        """Return the groups of the clustering, from the group of every name and the label of every group."""
        return cls({**place}, {**labels}, labels, place, classes)

    def copy(self) -> "Grouping":
        """Return an independent copy."""
        return replace(
            self,
            place={**self.place},
            labels={**self.labels},
            claims={**self.claims},
            unmatched=[*self.unmatched],
            members={group: {*names} for group, names in self.members.items()},
        )

    # -- queries --------------------------------------------------------------------------------------------------

    def find(self, label: str) -> GroupId | None:
        """Return the group of this label that has names; None if there is none."""
        return next((g for g, text in self.labels.items() if text == label and self.members[g]), None)

    def target(self, label: str) -> GroupId:
        """Return the group that names move into under this label: an existing one, an emptied one, or a new one."""
        found = self.find(label)
        if found is not None:
            return found
        emptied = [g for g in self.machine if self.labels[g] == label]
        return emptied[0] if emptied else label

    def end_of(self, group: Assignment) -> Assignment:
        """Return the group that a group was merged into, over any number of merges; None: dropped."""
        seen = set[GroupId]()
        while group is not None and group not in seen:
            seen.add(group)
            claim = self.claims.get(Subject("group", group))
            if claim is None or claim.renames:
                break
            group = claim.assigned
        return group

    def live(self) -> list[GroupId]:
        """Return the groups that have names."""
        return [group for group, names in self.members.items() if names]

    def label_of(self, assigned: Assignment) -> str:
        """Return the label of a group, or ``(dropped)``."""
        return "(dropped)" if assigned is None else self.labels.get(assigned, str(assigned))

    @property
    def decided(self) -> dict[str, Assignment]:
        """Groups of the names that a decision named themselves, not only their group."""
        return {
            str(subject.of): self.place[str(subject.of)]
            for subject, claim in self.claims.items()
            if subject.kind == "name" and claim.by_name
        }

    def is_decided(self, name: str) -> bool:
        """Return whether a decision named the name itself."""
        claim = self.claims.get(Subject("name", name))
        return claim is not None and claim.by_name

    @property
    def refused(self) -> dict[str, set[GroupId]]:
        """Groups that a name does not belong to, by name; a label that no group has is that of a proposed group."""
        found: dict[str, set[GroupId]] = {}
        for kind, of, group in self.claims:
            if kind == "not in" and group is not None:
                found.setdefault(str(of), set()).add(group)
        return found

    @property
    def items(self) -> dict[ItemKey, Given]:
        """Names and groups that decisions gave to single items, by split and id."""
        return {
            (str(of), str(also)): claim.value
            for (kind, of, also), claim in self.claims.items()
            if kind == "item" and isinstance(claim.value, Given)
        }

    def placed(self, place: Mapping[str, Assignment]) -> "Grouping":
        """Return a copy in which the names without a decision are in the groups that ``place`` has for them.

        Names that were dropped with their group stay dropped. Names move only into groups that already have names.
        """
        moved = self.copy()
        live = set(self.live())
        for name, assigned in place.items():
            here = self.place[name]
            if assigned != here and here is not None and assigned in live and not self.is_decided(name):
                moved._put(name, assigned)
        return moved

    def effective_claims(self) -> dict[Subject, Claim]:
        """Return the claims in effect: all claims about names, and new labels and tops of groups that have names."""
        return {
            subject: claim
            for subject, claim in self.claims.items()
            if subject.kind not in ("group", "top")
            or (self.members.get(subject.of) and (subject.kind == "top" or claim.renames))
        }

    # -- changes --------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply one decision; append the parts that fit nothing to ``unmatched``."""
        match entry.decision:
            case Rename() as decision:
                self._rename(entry, decision)
            case SetTop() as decision:
                self._set(entry, decision)
            case Move(names=names, to=label) | Accept(names=names, group=label):
                group = self._fillable(entry, label)
                if group is not None:
                    self._claim_names(entry, sorted(self.members[group]) if names is None else names, group)
            case New(names=names, to=label) | Split(names=names, to=label) as decision:
                self._new(entry, decision.group if isinstance(decision, Split) else None, names, label)
            case Drop(names=names, group=label):
                self._claim_names(entry, names or (), None)
                if label is not None and (group := self._group(entry, label)) is not None:
                    self._empty(group, None, entry)
            case Merge(groups=labels, to=to):
                groups = [self._group(entry, label) for label in labels if label != to]
                if to in labels and self.find(to) is None:
                    self._group(entry, to)
                target = self.target(to)
                for group in groups:
                    if group is not None:
                        self._empty(group, target, entry)
            case Refuse(names=names, group=label):
                self._refuse(entry, names, self.target(label))
            case GiveItem(name=name, group=label) as decision:
                group = None if label is None else self._fillable(entry, label)
                is_known = group is not None or (label is None and self._known(entry, (name or "",)))
                if is_known:
                    subject = Subject("item", decision.split, decision.id)
                    self.claims[subject] = Claim(Given(name, group), (entry,))

    def apply_all(self, entries: Iterable[Entry]) -> "Grouping":
        """Apply decisions in order; return the grouping itself."""
        for entry in entries:
            self.apply(entry)
        return self

    def take(self, claims: Mapping[Subject, Claim]) -> "Grouping":
        """Apply claims that fit this grouping; return the grouping itself."""
        self.claims.update(claims)
        for (kind, of, _), claim in claims.items():
            if kind == "name" and not isinstance(claim.value, Given):
                self._put(str(of), claim.value)
            elif kind == "group" and claim.renames:
                self.labels[of] = str(claim.value)
        return self

    def _rename(self, entry: Entry, decision: Rename) -> None:
        group = self._group(entry, decision.group)
        if group is None:
            return
        if decision.to != decision.group and self.find(decision.to) is not None:
            self._miss(entry, f"there is already a group {quoted(decision.to)}; to join the two, merge them")
        elif isinstance(group, str):
            if decision.to != decision.group:  # else the label stays
                self._rekey(group, self.target(decision.to), entry)
        else:
            self.labels[group] = decision.to
            self.claims[Subject("group", group)] = Claim(decision.to, (entry,), renames=True)

    def _rekey(self, old: str, new: GroupId, entry: Entry) -> None:
        """Give another label to a group that a decision made: the label is its identity.

        So annotators who end with the same label agree, whatever they called the group before.
        """
        for name in sorted(self.members[old]):
            claim = self.claims.get(Subject("name", name), Claim(old, ()))
            self._put(name, new)
            self.claims[Subject("name", name)] = replace(claim, value=new, entries=(*claim.entries, entry))
        for subject, claim in list(self.claims.items()):
            if subject.kind == "group" and claim.value == old:
                self.claims[subject] = replace(claim, value=new, entries=(*claim.entries, entry))
        self._follow(old, new, entry)
        for subject in [s for s in self.claims if s.kind == "top" and s.of == old]:
            self.claims[subject._replace(of=new)] = self.claims.pop(subject)

    def _follow(self, old: GroupId, new: GroupId, entry: Entry) -> None:
        """Replace the group ``old`` by ``new`` in the claims about items and in refusals."""
        for subject, claim in list(self.claims.items()):
            kind, of, also = subject
            if kind == "item" and isinstance(claim.value, Given) and claim.value.group == old:
                self.claims[subject] = replace(
                    claim, value=claim.value._replace(group=new), entries=(*claim.entries, entry)
                )
            elif kind == "not in" and also == old:
                del self.claims[subject]
                at_home = self.is_decided(str(of)) and self.place[str(of)] == new  # a decision put it there
                if not at_home:
                    self.claims[Subject("not in", of, new)] = claim

    def _new(self, entry: Entry, source: str | None, names: Iterable[str], label: str) -> None:
        """Make a new group of names; with ``source``, only names of that group can be in it."""
        leaves = None if source is None else self._group(entry, source)
        if source is not None and leaves is None:
            return
        if self.find(label) is not None:
            self._miss(entry, f"there is already a group {quoted(label)}; move the names there")
            return
        target = self.target(label)
        for name in self._known(entry, names):
            here = self.place[name]
            if source is None or here == leaves:
                self._claim_name(name, target, entry)
            else:
                self._miss(entry, f"{quoted(name)} is in {quoted(self.label_of(here))}, not in {quoted(source)}")

    def _refuse(self, entry: Entry, names: Iterable[str], group: GroupId) -> None:
        for name in self._known(entry, names):
            if self.is_decided(name) and self.place[name] == group:  # take that decision back
                del self.claims[Subject("name", name)]
                self._put(name, self.end_of(self.origin[name]))
            self.claims[Subject("not in", name, group)] = Claim(None, (entry,))

    def _set(self, entry: Entry, decision: SetTop) -> None:
        group, levels = self._group(entry, decision.group), list(self.classes)
        if group is None:
            return
        level = decision.level or (levels[-1] if levels else "")
        if not levels:
            self._miss(entry, "this build has no level above the groups")
        elif level not in levels:
            self._miss(entry, f"there is no level {quoted(level)} above the groups; there are {', '.join(levels)}")
        elif decision.top not in self.classes[level]:
            self._miss(entry, f"top is {quoted(decision.top)}; expected {some(self.classes[level], 8, ' or ')}")
        else:
            subject = Subject("top", group, None if level == levels[-1] else level)
            self.claims[subject] = Claim(decision.top, (entry,))

    def _empty(self, group: GroupId, assigned: Assignment, entry: Entry) -> None:
        for name in sorted(self.members[group]):
            self._claim_name(name, assigned, entry, via=group)
        if isinstance(group, int):
            self.claims[Subject("group", group)] = Claim(assigned, (entry,))
        if assigned is not None:
            self._follow(group, assigned, entry)

    def _claim_names(self, entry: Entry, names: Iterable[str], assigned: Assignment) -> None:
        for name in self._known(entry, names):
            self._claim_name(name, assigned, entry)

    def _claim_name(self, name: str, assigned: Assignment, entry: Entry, via: GroupId | None = None) -> None:
        self._put(name, assigned)
        meant = via is None or self.is_decided(name)
        self.claims[Subject("name", name)] = Claim(assigned, (entry,), via, by_name=meant)
        if via is None and assigned is not None:
            self.claims.pop(Subject("not in", name, assigned), None)
        if isinstance(assigned, int) and (gone := self.claims.get(Subject("group", assigned))) and not gone.renames:
            del self.claims[Subject("group", assigned)]  # the group was merged or dropped, and has names again

    def _put(self, name: str, assigned: Assignment) -> None:
        before = self.place[name]
        if before is not None:
            self.members[before].discard(name)
        self.place[name] = assigned
        if assigned is not None:
            self.labels.setdefault(assigned, str(assigned))
            self.members.setdefault(assigned, set()).add(name)

    # -- decisions that do not fit --------------------------------------------------------------------------------

    def _fillable(self, entry: Entry, label: str) -> GroupId | None:
        """Return the group of this label, which may be empty; None, and a note in ``unmatched``, without one."""
        group = self.target(label)
        if group in self.labels:
            return group
        self._miss(entry, f"no group {quoted(label)}{self._hint(label, self._live_labels())}")
        return None

    def _group(self, entry: Entry, label: str) -> GroupId | None:
        group = self.find(label)
        if group is None:
            emptied = label in self.labels.values()
            said = f"the group {quoted(label)} has no names any more" if emptied else f"no group {quoted(label)}"
            self._miss(entry, said + ("" if emptied else self._hint(label, self._live_labels())))
        return group

    def _known(self, entry: Entry, names: Iterable[str]) -> list[str]:
        for name in names:
            if name not in self.place:
                self._miss(entry, f"no name {quoted(name)}{self._hint(name, self.place)}")
        return [name for name in names if name in self.place]

    def _live_labels(self) -> list[str]:
        return [self.labels[group] for group in self.live()]

    def _hint(self, text: str, known: Iterable[str]) -> str:
        if len(self.unmatched) >= _MOST_HINTS:
            return ""
        close = get_close_matches(text, known, n=1, cutoff=0.8)
        return f"; did you mean {quoted(close[0])}?" if close else ""

    def _miss(self, entry: Entry, reason: str) -> None:
        self.unmatched.append(Unmatched(entry, reason))
