"""Grouping of names while decisions are applied to it, and the claims that the decisions make.

A decision makes claims about single subjects: the group of a name, the fate of a group, the top of a group, the place
of a single item, a group that a name does not belong to. The decisions of several annotators are compared by their
claims (:mod:`hgld.pipelines.hierarchy.review.agreement`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal, NamedTuple

from hgld.errors import quoted, some

from .decisions import Accept, Drop, Entry, GiveItem, Merge, Move, New, Refuse, Rename, SetTop, Split

_MOST_HINTS = 10  # more would not be read, and one costs up to 0.3 s among thousands of names
GroupId = int | str  # a group of the clustering by its number, one that a decision made by its label
Fate = GroupId | None  # None: dropped
ItemKey = tuple[str, str]  # split and id
Classes = Mapping[str, tuple[str, ...]]  # of every level above the groups, by its name, finest first


class Given(NamedTuple):
    """The place that a decision gives to one item: a name, a group, or a name and the group that it is in there."""

    name: str | None
    group: GroupId | None


class Subject(NamedTuple):
    """The subject of a claim.

    Its kind says what ``of`` is: a name; a group, whose fate is claimed (renamed, merged, dropped); a group, whose
    class is, at the level ``also`` or the coarsest; an item's split, with its id in ``also``; a name that is not in the
    group ``also``.
    """

    kind: Literal["name", "group", "top", "item", "not in"]
    of: GroupId
    also: GroupId | None = None


@dataclass(frozen=True)
class Claim:
    """The claim of a decision about one subject.

    Attributes:
        value: for a name the group it belongs to or None (dropped); for a group its new label (renamed), the group it
            was merged into, or None (dropped); for a top one of the build's classes; for an item its place; None where
            a subject denies something.
        entries: the decisions behind the claim.
        via: the group that a name went with, as a whole, into ``value``; None where the name itself was meant.
        renames: True if the value is the group's new label, not another group.
        by_name: True if a decision meant the name itself, also where its group went elsewhere since then.
    """

    value: Fate | Given
    entries: tuple[Entry, ...]
    via: GroupId | None = None
    renames: bool = False
    by_name: bool = False

    @property
    def fate(self) -> Fate:
        """The value of a claim about a name or a group."""
        assert not isinstance(self.value, Given)
        return self.value

    @property
    def annotators(self) -> str:
        """The people behind the claim, in a line."""
        return ", ".join(sorted({entry.decision.who for entry in self.entries}))

    @property
    def reasons(self) -> str | None:
        """The reasons that they gave, in a line."""
        return "; ".join(dict.fromkeys(entry.decision.why for entry in self.entries if entry.decision.why)) or None


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
        origin: every name's group in the clustering.
        classes: the classes of every level above the groups, of which a decision may set one, finest level first.
        claims: the last claim about each subject.
        unmatched: decisions, or parts of them, that fit nothing.
        members: every group's names, as ``place`` has them.
    """

    place: dict[str, Fate]
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
        """Return the clustering's grouping from each name's group number and each group's label."""
        return cls({**place}, {**labels}, labels, place, classes)

    def copy(self) -> "Grouping":
        """Return a grouping that changes apart from this one."""
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
        """Return the group with names that has this label."""
        return next((g for g, text in self.labels.items() if text == label and self.members[g]), None)

    def target(self, label: str) -> GroupId:
        """Return the group to fill under this label: one with names, an emptied one of the clustering, or a new one."""
        found = self.find(label)
        if found is not None:
            return found
        emptied = [g for g in self.machine if self.labels[g] == label]
        return emptied[0] if emptied else label

    def end_of(self, group: Fate) -> Fate:
        """Return the group that a group of the clustering ended in, over any number of merges; None: dropped."""
        seen = set[GroupId]()
        while group is not None and group not in seen:
            seen.add(group)
            claim = self.claims.get(Subject("group", group))
            if claim is None or claim.renames:
                break
            group = claim.fate
        return group

    def live(self) -> list[GroupId]:
        """Return the groups that have names."""
        return [group for group, names in self.members.items() if names]

    def label_of(self, fate: Fate) -> str:
        """Return a fate as people read it: a label, or ``(dropped)``."""
        return "(dropped)" if fate is None else self.labels.get(fate, str(fate))

    @property
    def decided(self) -> dict[str, Fate]:
        """The present fates of the names that somebody ever decided about themselves, not only about their groups."""
        return {
            str(subject.of): self.place[str(subject.of)]
            for subject, claim in self.claims.items()
            if subject.kind == "name" and claim.by_name
        }

    def is_decided(self, name: str) -> bool:
        """Return whether somebody decided about the name itself."""
        claim = self.claims.get(Subject("name", name))
        return claim is not None and claim.by_name

    @property
    def refused(self) -> dict[str, set[GroupId]]:
        """The groups that names were said not to belong to; a label that no group has stands for a proposed group."""
        found: dict[str, set[GroupId]] = {}
        for kind, of, group in self.claims:
            if kind == "not in" and group is not None:
                found.setdefault(str(of), set()).add(group)
        return found

    @property
    def items(self) -> dict[ItemKey, Given]:
        """The places that decisions gave to single items."""
        return {
            (str(of), str(also)): claim.value
            for (kind, of, also), claim in self.claims.items()
            if kind == "item" and isinstance(claim.value, Given)
        }

    def placed(self, place: Mapping[str, Fate]) -> "Grouping":
        """Return this grouping with the names that nobody decided about where ``place`` has them.

        Names that were dropped with their group stay dropped, and only groups that have names here are filled.
        """
        moved = self.copy()
        live = set(self.live())
        for name, fate in place.items():
            here = self.place[name]
            if fate != here and here is not None and fate in live and not self.is_decided(name):
                moved._put(name, fate)
        return moved

    def effective_claims(self) -> dict[Subject, Claim]:
        """Return the claims in effect: for groups that have names the new label and the top, and all about names."""
        return {
            subject: claim
            for subject, claim in self.claims.items()
            if subject.kind not in ("group", "top")
            or (self.members.get(subject.of) and (subject.kind == "top" or claim.renames))
        }

    # -- changes --------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply one decision; the parts of it that fit nothing go to ``unmatched``."""
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
        """Apply claims that are known to fit; return the grouping itself."""
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
            if decision.to != decision.group:  # else: a person named it so, which stands
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
        self._follow(old, new, entry)
        for subject in [s for s in self.claims if s.kind == "top" and s.of == old]:
            self.claims[subject._replace(of=new)] = self.claims.pop(subject)

    def _follow(self, old: GroupId, new: GroupId, entry: Entry) -> None:
        """Let items and refusals that mean the group ``old`` mean the group that it became."""
        for subject, claim in list(self.claims.items()):
            kind, of, also = subject
            if kind == "item" and isinstance(claim.value, Given) and claim.value.group == old:
                self.claims[subject] = replace(
                    claim, value=claim.value._replace(group=new), entries=(*claim.entries, entry)
                )
            elif kind == "not in" and also == old:
                del self.claims[subject]
                at_home = self.is_decided(str(of)) and self.place[str(of)] == new  # said of it, and stronger
                if not at_home:
                    self.claims[Subject("not in", of, new)] = claim

    def _new(self, entry: Entry, source: str | None, names: Iterable[str], label: str) -> None:
        """Make a group of names: of any, or of those of the group ``source``, which they leave."""
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
            if self.is_decided(name) and self.place[name] == group:  # taken back: it is where the clustering had it
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

    def _empty(self, group: GroupId, fate: Fate, entry: Entry) -> None:
        for name in sorted(self.members[group]):
            self._claim_name(name, fate, entry, via=group)
        if isinstance(group, int):
            self.claims[Subject("group", group)] = Claim(fate, (entry,))
        if fate is not None:
            self._follow(group, fate, entry)

    def _claim_names(self, entry: Entry, names: Iterable[str], fate: Fate) -> None:
        for name in self._known(entry, names):
            self._claim_name(name, fate, entry)

    def _claim_name(self, name: str, fate: Fate, entry: Entry, via: GroupId | None = None) -> None:
        self._put(name, fate)
        meant = via is None or self.is_decided(name)
        self.claims[Subject("name", name)] = Claim(fate, (entry,), via, by_name=meant)
        if via is None and fate is not None:
            self.claims.pop(Subject("not in", name, fate), None)
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

    def _fillable(self, entry: Entry, label: str) -> GroupId | None:
        """Return the group under this label, which may have been emptied; None, and a miss, if there is none."""
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
