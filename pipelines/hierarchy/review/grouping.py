"""Grouping of names while decisions are applied to it, and the claims that the decisions make.

A decision makes claims about single subjects: the group of a name, the fate of a group, whether a group is natural. The
decisions of several annotators are compared by their claims (:mod:`hgld.pipelines.hierarchy.review.agreement`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal, NamedTuple

from hgld.pipelines.hierarchy.review.decisions import Drop, Entry, Merge, Move, Rename, SetTop, Split

_MOST_HINTS = 10  # more would not be read, and one costs up to 0.3 s among thousands of names
GroupId = int | str  # a group of the clustering by its number, one that a decision made by its label
Fate = GroupId | None  # None: dropped


class Subject(NamedTuple):
    """The subject of a claim: a name, a group's fate (renamed, merged, dropped), or a group's top."""

    kind: Literal["name", "group", "top"]
    of: GroupId


@dataclass(frozen=True)
class Claim:
    """The claim of a decision about one subject.

    Attributes:
        value: for a name the group it belongs to or None (dropped); for a group its new label (renamed), the group it
            was merged into, or None (dropped); for a top ``natural`` or ``human-made``.
        entries: the decisions behind the claim.
        via: the group that a name went with, as a whole, into ``value``; None where the name itself was meant.
        renames: True if the value is the group's new label, not another group.
    """

    value: Fate
    entries: tuple[Entry, ...]
    via: GroupId | None = None
    renames: bool = False

    @property
    def annotators(self) -> tuple[str, ...]:
        return tuple(sorted({entry.decision.who for entry in self.entries}))


@dataclass(frozen=True)
class Unmatched:
    """A decision, or a part of one, that fits nothing in the data."""

    entry: Entry
    reason: str


@dataclass
class Grouping:
    """Names in groups, changed by :meth:`apply`.

    Attributes:
        place: every name's group, None where dropped.
        labels: every group's label, empty groups of the clustering included.
        machine: labels that the clustering gave, by group.
        tops: tops that decisions set.
        claims: the last claim about each subject.
        unmatched: decisions, or parts of them, that fit nothing.
    """

    place: dict[str, Fate]
    labels: dict[GroupId, str]
    machine: Mapping[int, str]
    tops: dict[GroupId, str] = field(default_factory=dict)
    claims: dict[Subject, Claim] = field(default_factory=dict)
    unmatched: list[Unmatched] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members: dict[GroupId, set[str]] = {group: set() for group in self.labels}
        for name, group in self.place.items():
            if group is not None:
                self.members.setdefault(group, set()).add(name)
                self.labels.setdefault(group, str(group))

    @classmethod
    def of(cls, place: Mapping[str, int], labels: Mapping[int, str]) -> "Grouping":
        """Return the clustering's grouping from each name's group number and each group's label."""
        return cls({**place}, {**labels}, labels)

    # -- queries --------------------------------------------------------------------------------------------------

    def find(self, label: str) -> GroupId | None:
        """Return the group with names that has this label."""
        return next((g for g, text in self.labels.items() if text == label and self.members[g]), None)

    def target(self, label: str) -> GroupId:
        """Return the group to fill under this label: one with names, an emptied one of the clustering, or a new one."""
        found = self.find(label)
        if found is not None:
            return found
        emptied = [g for g in self.machine if self.labels[g] == label]
        return emptied[0] if emptied else label

    def live(self) -> list[GroupId]:
        """Return the groups that have names."""
        return [group for group, names in self.members.items() if names]

    def label_of(self, fate: Fate) -> str:
        """Return a fate as people read it: a label, or ``(dropped)``."""
        return "(dropped)" if fate is None else self.labels.get(fate, str(fate))

    def effective_claims(self) -> dict[Subject, Claim]:
        """Return the claims in effect: every name's, and for groups that have names the new label and the top."""
        return {
            subject: claim
            for subject, claim in self.claims.items()
            if subject.kind == "name" or (self.members.get(subject.of) and (subject.kind == "top" or claim.renames))
        }

    # -- changes --------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply one decision; the parts of it that fit nothing go to ``unmatched``."""
        match entry.decision:
            case Rename():
                self._rename(entry, entry.decision)
            case Move():
                self._move(entry, entry.decision)
            case Merge():
                self._merge(entry, entry.decision)
            case Split():
                self._split(entry, entry.decision)
            case Drop():
                self._drop(entry, entry.decision)
            case SetTop(group=label, top=top):
                if (group := self._group(entry, label)) is not None:
                    self.tops[group] = top
                    self.claims[Subject("top", group)] = Claim(top, (entry,))

    def apply_all(self, entries: Iterable[Entry]) -> "Grouping":
        """Apply decisions in order; return the grouping itself."""
        for entry in entries:
            self.apply(entry)
        return self

    def take(self, claims: Mapping[Subject, Claim]) -> "Grouping":
        """Apply claims that are known to fit; return the grouping itself."""
        self.claims.update(claims)
        for (kind, of), claim in claims.items():
            if kind == "name":
                self._put(str(of), claim.value)
            elif kind == "top":
                self.tops[of] = str(claim.value)
            elif claim.renames:
                self.labels[of] = str(claim.value)
        return self

    def _rename(self, entry: Entry, decision: Rename) -> None:
        group = self._group(entry, decision.group)
        if group is None:
            return
        if self.find(decision.to) is not None:
            self._miss(entry, f"there is already a group {decision.to!r}; to join the two, merge them")
        elif isinstance(group, str):
            self._rekey(group, self.target(decision.to), entry)
        else:
            self.labels[group] = decision.to
            self.claims[Subject("group", group)] = Claim(decision.to, (entry,), renames=True)

    def _rekey(self, old: str, new: GroupId, entry: Entry) -> None:
        """Give another label to a group that a decision made, whose only identity is its label.

        So two annotators who end with the same label agree, however they came to it.
        """
        for name in sorted(self.members[old]):
            claim = self.claims.get(Subject("name", name), Claim(old, ()))
            self._put(name, new)
            self.claims[Subject("name", name)] = replace(claim, value=new, entries=(*claim.entries, entry))
        for subject, claim in list(self.claims.items()):
            if subject.kind == "group" and claim.value == old:
                self.claims[subject] = replace(claim, value=new, entries=(*claim.entries, entry))
        if (top := self.tops.pop(old, None)) is not None:
            self.tops[new] = top
            if (claim := self.claims.pop(Subject("top", old), None)) is not None:
                self.claims[Subject("top", new)] = claim

    def _move(self, entry: Entry, decision: Move) -> None:
        group = self.target(decision.to)
        if group not in self.labels:
            self._miss(entry, f"no group {decision.to!r}{self._hint(decision.to, self._live_labels())}")
            return
        for name in self._known(entry, decision.names):
            self._claim_name(name, group, entry)

    def _merge(self, entry: Entry, decision: Merge) -> None:
        found = [self._group(entry, label) for label in decision.groups if label != decision.to]
        if decision.to in decision.groups and self.find(decision.to) is None:
            self._group(entry, decision.to)
        target = self.target(decision.to)
        for group in found:
            if group is not None:
                self._empty(group, target, entry)

    def _split(self, entry: Entry, decision: Split) -> None:
        group = self._group(entry, decision.group)
        if group is None:
            return
        if self.find(decision.to) is not None:
            self._miss(entry, f"there is already a group {decision.to!r}; move the names there")
            return
        target = self.target(decision.to)
        for name in self._known(entry, decision.names):
            if self.place[name] == group:
                self._claim_name(name, target, entry)
            else:
                self._miss(entry, f"{name!r} is in {self.label_of(self.place[name])!r}, not in {decision.group!r}")

    def _drop(self, entry: Entry, decision: Drop) -> None:
        if decision.group is not None and (group := self._group(entry, decision.group)) is not None:
            self._empty(group, None, entry)
        for name in self._known(entry, decision.names or ()):
            self._claim_name(name, None, entry)

    def _empty(self, group: GroupId, fate: Fate, entry: Entry) -> None:
        for name in sorted(self.members[group]):
            self._claim_name(name, fate, entry, via=group)
        if isinstance(group, int):
            self.claims[Subject("group", group)] = Claim(fate, (entry,))

    def _claim_name(self, name: str, fate: Fate, entry: Entry, via: GroupId | None = None) -> None:
        self._put(name, fate)
        self.claims[Subject("name", name)] = Claim(fate, (entry,), via)
        if isinstance(fate, int) and (gone := self.claims.get(Subject("group", fate))) and not gone.renames:
            del self.claims[Subject("group", fate)]  # the group was merged or dropped, and has names again

    def _put(self, name: str, fate: Fate) -> None:
        before = self.place[name]
        if before is not None:
            self.members[before].discard(name)
        self.place[name] = fate
        if fate is not None:
            self.labels.setdefault(fate, str(fate))
            self.members.setdefault(fate, set()).add(name)

    # -- decisions that do not fit --------------------------------------------------------------------------------

    def _group(self, entry: Entry, label: str) -> GroupId | None:
        group = self.find(label)
        if group is None:
            emptied = label in self.labels.values()
            said = f"the group {label!r} has no names any more" if emptied else f"no group {label!r}"
            self._miss(entry, said + ("" if emptied else self._hint(label, self._live_labels())))
        return group

    def _known(self, entry: Entry, names: Iterable[str]) -> list[str]:
        for name in names:
            if name not in self.place:
                self._miss(entry, f"no name {name!r}{self._hint(name, self.place)}")
        return [name for name in names if name in self.place]

    def _live_labels(self) -> list[str]:
        return [self.labels[group] for group in self.live()]

    def _hint(self, text: str, known: Iterable[str]) -> str:
        if len(self.unmatched) >= _MOST_HINTS:
            return ""
        close = get_close_matches(text, known, n=1, cutoff=0.8)
        return f"; did you mean {close[0]!r}?" if close else ""

    def _miss(self, entry: Entry, reason: str) -> None:
        self.unmatched.append(Unmatched(entry, reason))
