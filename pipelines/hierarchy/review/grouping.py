"""Names in groups, the decisions that change them, and the claims that the decisions make.

Each claim of a decision is about one subject:

- the group of a name
- the new label, merge or removal of a group
- the class of a group at an upper level
- the name or group of a single item
- a group that a name does not belong to

:mod:`hgld.pipelines.hierarchy.review.agreement` compares the claims of several annotators.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from hgld.errors import quoted, some

from .decisions import Accept, Drop, Entry, GiveItem, Merge, Move, New, Refuse, Rename, SetTop, Split

_MOST_HINTS = 10  # maximum number of hints: among thousands of names, each takes up to 0.3 s
GroupId = int | str  # the clustering's groups have numbers; groups that a decision made have labels
Assignment = GroupId | None  # the group of a name; None: dropped
ItemKey = tuple[str, str]  # split and id
Classes = Mapping[str, tuple[str, ...]]  # classes by level, of the levels above the groups, finest level first


class OpenClasses(tuple[str, ...]):
    """Classes of a level that the data defines. A decision may give a group a class that is not among them."""


class Given(NamedTuple):
    """The name, the group, or both, that a decision gives to one item."""

    name: str | None
    group: GroupId | None


class Subject(NamedTuple):
    """The subject of a claim.

    Attributes:
        kind: type of the subject. ``name``: the group of a name. ``group``: the label of a group. ``top``: the class of
            a group at a level above. ``item``: the name or group of an item. ``not in``: a group to which a name does
            not belong.
        of: the name or group, or the split of the item.
        also: for ``top``, the level (None: the coarsest); for ``item``, its id; for ``not in``, the group.
    """

    kind: Literal["name", "group", "top", "item", "not in"]
    of: GroupId
    also: GroupId | None = None


@dataclass(frozen=True)
class Claim:
    """The claim of a decision about one subject.

    Attributes:
        value: for a name, its group; None if the name was dropped. For a group, its new label, or the group that it was
            merged into; None if the group was dropped. For a top, the class. For an item, a :class:`Given`.
            For ``not in``, None.
        entries: the decisions behind the claim.
        via: the group that a decision moved to ``value`` as a whole; None if a decision named the name itself.
        renames: True if the value is the group's new label, not another group.
        by_name: True if a decision ever named the name itself, even if its group was moved later.
    """

    value: Any
    entries: tuple[Entry, ...]
    via: GroupId | None = None
    renames: bool = False
    by_name: bool = False

    @property
    def annotators(self) -> str:
        """The annotators behind the claim, separated by commas."""
        return ", ".join(sorted({entry.decision.who for entry in self.entries}))

    @property
    def reasons(self) -> str | None:
        """The reasons that the annotators gave; None without reasons."""
        return "; ".join(dict.fromkeys(entry.decision.why for entry in self.entries if entry.decision.why)) or None


@dataclass(frozen=True)
class Unmatched:
    """A decision, or a part of it, that does not fit the build: it names an unknown group, name or class."""

    entry: Entry
    reason: str


@dataclass
class Grouping:
    """Names in groups, changed by :meth:`apply`.

    Attributes:
        place: group of every name; None: the name was dropped.
        labels: label of every group, including empty groups of the clustering.
        machine: label of every group in the clustering.
        origin: group of every name in the clustering.
        classes: classes that a decision may set, by level above the groups, finest level first.
        claims: last claim about each subject.
        unmatched: decisions, or parts of them, that do not fit the build.
        members: names of every group; the inverse of ``place``.
        answers: groups that decisions about the name itself gave to each name, in order.
    """

    place: dict[str, Assignment]
    labels: dict[GroupId, str]
    machine: Mapping[int, str]
    origin: Mapping[str, int]
    classes: Classes
    claims: dict[Subject, Claim] = field(default_factory=dict)
    unmatched: list[Unmatched] = field(default_factory=list)
    members: dict[GroupId, set[str]] = field(default_factory=dict)
    answers: dict[str, tuple[Assignment, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, place: Mapping[str, int], labels: Mapping[int, str], classes: Classes) -> "Grouping":
        """Return the groups of the clustering, from the group of every name and the label of every group."""
        made = cls(dict.fromkeys(place), {**labels}, labels, place, classes)
        made.members = {group: set() for group in labels}
        for name, group in place.items():
            made._put(name, group)
        return made

    def copy(self) -> "Grouping":
        """Return an independent copy."""
        return replace(
            self,
            place={**self.place},
            labels={**self.labels},
            claims={**self.claims},
            unmatched=[*self.unmatched],
            members={group: {*names} for group, names in self.members.items()},
            answers={**self.answers},
        )

    # -- queries --------------------------------------------------------------------------------------------------

    def find(self, label: str) -> GroupId | None:
        """Return the group with this label that has names; None if there is no such group."""
        return next((g for g, text in self.labels.items() if text == label and self.members[g]), None)

    def target(self, label: str) -> GroupId:
        """Return the group that gets names moved to this label: an existing group, an emptied group, or a new group."""
        found = self.find(label)
        return next((g for g in self.machine if self.labels[g] == label), label) if found is None else found

    def end_of(self, group: Assignment) -> Assignment:
        """Return the group that a group was merged into, after any number of merges; None if it was dropped."""
        seen = set[GroupId]()
        while group is not None and group not in seen:
            seen.add(group)
            claim = self.claims.get(Subject("group", group))
            if claim is None or claim.renames:
                break
            group = claim.value
        return group

    def live(self) -> list[GroupId]:
        """Return the groups that have names."""
        return [group for group, names in self.members.items() if names]

    def label_of(self, assigned: Assignment) -> str:
        """Return the label of a group, or ``(dropped)``."""
        return "(dropped)" if assigned is None else self.labels.get(assigned, str(assigned))

    @property
    def decided(self) -> dict[str, Assignment]:
        """Groups of the names that a decision itself named; decisions about whole groups do not count."""
        return {
            str(subject.of): self.place[str(subject.of)]
            for subject, claim in self.claims.items()
            if subject.kind == "name" and claim.by_name
        }

    def is_decided(self, name: str) -> bool:
        """Return whether a decision named the name itself."""
        claim = self.claims.get(Subject("name", name))
        return claim is not None and claim.by_name

    def is_accepted(self, name: str) -> bool:
        """Return whether the last decision about the name itself accepted the group that was shown."""
        claim = self.claims.get(Subject("name", name))
        return claim is not None and claim.via is None and isinstance(claim.entries[-1].decision, Accept)

    @property
    def refused(self) -> dict[str, set[GroupId]]:
        """By name, the groups to which it does not belong; a label that no group has stands for a proposed group."""
        found: dict[str, set[GroupId]] = {}
        for kind, of, group in self.claims:
            if kind == "not in" and group is not None:
                found.setdefault(str(of), set()).add(group)
        return found

    @property
    def items(self) -> dict[ItemKey, Given]:
        """Names and groups that decisions gave to single items, by split and id."""
        return {(str(of), str(also)): c.value for (kind, of, also), c in self.claims.items() if kind == "item"}

    def placed(self, place: Mapping[str, Assignment]) -> "Grouping":
        """Return a copy in which undecided names are in the groups that ``place`` gives.

        Dropped names stay dropped. Names move only into groups that have names, or had none in the build.
        """
        moved = self.copy()
        live = {*self.live(), *(self.machine.keys() - set(self.origin.values()))}
        for name, assigned in place.items():
            here = self.place[name]
            if assigned != here and here is not None and assigned in live and not self.is_decided(name):
                moved._put(name, assigned)
        return moved

    def effective_claims(self) -> dict[Subject, Claim]:
        """Return the claims in effect: claims about names and items, and new labels and tops of groups with names."""
        return {
            subject: claim
            for subject, claim in self.claims.items()
            if subject.kind not in ("group", "top")
            or (self.members.get(subject.of) and (subject.kind == "top" or claim.renames))
        }

    # -- changes --------------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply one decision; add the parts that do not fit the build to ``unmatched``."""
        match entry.decision:
            case Rename(group=label, to=to):
                self._rename(entry, label, to)
            case SetTop() as decision:
                self._set_top(entry, decision)
            case Move(names=names, to=label) | Accept(names=names, group=label):
                group = self._group(entry, label, may_be_empty=True)
                if group is not None:
                    self._claim_names(entry, sorted(self.members[group]) if names is None else names, group)
            case New(names=names, to=label):
                self._make_group(entry, names, label)
            case Split(group=source, names=names, to=label):
                self._make_group(entry, names, label, source)
            case Drop(names=names, group=label):
                self._claim_names(entry, names or (), None)
                if label is not None and (group := self._group(entry, label)) is not None:
                    self._empty(group, None, entry)
            case Merge(groups=labels, to=to):
                self._merge(entry, labels, to)
            case Refuse(names=names, group=label):
                self._refuse(entry, names, self.target(label))
            case GiveItem(name=name, group=label) as decision:
                group = None if label is None else self._group(entry, label, may_be_empty=True)
                if group is not None or (label is None and self._known(entry, (name or "",))):
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
            if kind == "name":
                self._put(str(of), claim.value)
            elif kind == "group" and claim.renames:
                self.labels[of] = claim.value
        return self

    def _rename(self, entry: Entry, label: str, to: str) -> None:
        group = self._group(entry, label)
        if group is None:
            return
        if to != label and self.find(to) is not None:
            self._miss(entry, f"there is already a group {quoted(to)}; to join the two, merge them")
        elif isinstance(group, int):
            self.labels[group] = to
            self.claims[Subject("group", group)] = Claim(to, (entry,), renames=True)
        elif to != label:
            self._rekey(group, self.target(to), entry)

    def _rekey(self, old: str, new: GroupId, entry: Entry) -> None:
        """Give a new label to a group that a decision made; the label identifies such a group.

        So annotators who chose the same last label agree, whatever they called the group before.
        """
        for name in sorted(self.members[old]):
            claim = self.claims.get(Subject("name", name), Claim(old, ()))
            self.answers[name] = tuple(new if group == old else group for group in self.answers.get(name, ()))
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
            if kind == "item" and claim.value.group == old:
                given = claim.value._replace(group=new)
                self.claims[subject] = replace(claim, value=given, entries=(*claim.entries, entry))
            elif kind == "not in" and also == old:
                del self.claims[subject]
                # the name is not there because of a decision
                if not (self.is_decided(str(of)) and self.place[str(of)] == new):
                    self.claims[Subject("not in", of, new)] = claim

    def _make_group(self, entry: Entry, names: Iterable[str], label: str, source: str | None = None) -> None:
        """Make a new group of names; with ``source``, only names of that group can be in it."""
        leaves = self._group(entry, source) if source else None
        if source and leaves is None:
            return
        if self.find(label) is not None:
            self._miss(entry, f"there is already a group {quoted(label)}; move the names there")
            return
        target = self.target(label)
        for name in self._known(entry, names):
            here = self.place[name]
            if leaves in (None, here):
                self._claim_name(name, target, entry)
            else:
                self._miss(entry, f"{quoted(name)} is in {quoted(self.label_of(here))}, not in {quoted(source)}")

    def _refuse(self, entry: Entry, names: Iterable[str], group: GroupId) -> None:
        for name in self._known(entry, names):
            if self.is_decided(name) and self.place[name] == group:  # undo that decision
                self.answers[name] = (*self.answers.get(name, ()), None)
                del self.claims[Subject("name", name)]
                self._put(name, self.end_of(self.origin[name]))
            self.claims[Subject("not in", name, group)] = Claim(None, (entry,))

    def _set_top(self, entry: Entry, decision: SetTop) -> None:
        group, levels = self._group(entry, decision.group), list(self.classes)
        level = decision.level or next(reversed(levels), "top")
        if group is None:
            return
        if level not in self.classes:
            self._miss(entry, f"there is no level {quoted(level)} above the groups; there are {', '.join(levels)}")
        elif decision.top not in self.classes[level] and not isinstance(self.classes[level], OpenClasses):
            self._miss(entry, f"top is {quoted(decision.top)}; expected {some(self.classes[level], 8, ' or ')}")
        else:
            subject = Subject("top", group, None if level == levels[-1] else level)
            self.claims[subject] = Claim(decision.top, (entry,))

    def _merge(self, entry: Entry, labels: Iterable[str], to: str) -> None:
        found = [self._group(entry, label) for label in labels if label != to or self.find(to) is None]
        target = self.target(to)
        for group in found:
            if group is not None:
                self._empty(group, target, entry)

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
        by_name = via is None or self.is_decided(name)
        self.claims[Subject("name", name)] = Claim(assigned, (entry,), via, by_name=by_name)
        if via is None:
            self.answers[name] = (*self.answers.get(name, ()), assigned)
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

    def _group(self, entry: Entry, label: str, *, may_be_empty: bool = False) -> GroupId | None:
        """Return the group with this label; if there is no such group, record the miss and return None."""
        group = self.target(label) if may_be_empty else self.find(label)
        if group in self.labels:
            return group
        if label in self.labels.values():
            self._miss(entry, f"the group {quoted(label)} has no names any more")
        else:
            self._miss(entry, f"no group {quoted(label)}", label, [self.labels[group] for group in self.live()])
        return None

    def _known(self, entry: Entry, names: Iterable[str]) -> list[str]:
        """Return the names that are in the build; record all other names as misses."""
        for name in names:
            if name not in self.place:
                self._miss(entry, f"no name {quoted(name)}", name, self.place)
        return [name for name in names if name in self.place]

    def _miss(self, entry: Entry, reason: str, text: str = "", known: Iterable[str] = ()) -> None:
        """Record a decision that does not fit, with the known text that is most like ``text``."""
        close = get_close_matches(text, known, n=1, cutoff=0.8) if len(self.unmatched) < _MOST_HINTS else []
        self.unmatched.append(Unmatched(entry, reason + "".join(f"; did you mean {quoted(c)}?" for c in close)))
