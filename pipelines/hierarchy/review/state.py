"""Model behind the review page: a build's groups under one annotator's decisions, the queue, others' decisions.

What the page shows of a name that nobody decided about is the teacher's estimate; what is written is a person's.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from hgld.errors import InputError, quoted

from .decisions.agreement import settle
from .decisions.decision_files import read_decisions
from .decisions.decisions import ACTIONS, MOST_NAMES, Decision, Entry, GiveItem
from .decisions.grouping import Given, GroupId, Grouping, Subject
from .decisions.journal import Journal, StaleError, next_time
from .decisions.side_by_side import check_annotators, record, side_by_side
from .learning import proposals
from .learning.label_proposals import Renames, new_label, propose
from .learning.proposals import Estimates, Proposal, Teacher, Verdict, taught
from .learning.screens import Proposal as Made
from .pace import seconds_left
from .review import reviewed_groups, still_wrong
from .tables import BuildTables
from .thumbnails import Thumbnails

PIECE = 5_000  # names, or groups, of one answer
QUEUED = 10  # proposals that are sent after each action
_REMEMBERED = 500_000  # names over all states that are kept for a fast undo; further back all is computed anew
_OFFERED = 2_000  # proposals that were shown and can still be answered
_LISTED = 100  # decisions that the page shows in its history
_NAMED = 20  # names of each of them
_EXAMPLES = 12
_OF_TWO, _NEW = ("merge", "rename"), ("new", "split")  # kinds of proposals
_FIELDS = {"why", "group", "to", "top", "level", "split", "id", "name", "other"}  # of one text

_NameState = tuple[str | None, float | None, str | None]  # label, probability of being wrong, who decided


@dataclass(frozen=True)
class _View:
    """A state that the page shows: decisions, estimates, and what follows for names and groups.

    Attributes:
        grouping: names in groups after the decisions.
        placed: the same, with the names that nobody decided about where the estimates have them.
        estimates: the teacher's; None without one.
        names: of every name its group's label (None: dropped), the probability that it stands wrong, who decided.
        groups: of every group with names its top, and who decided about it.
        done: number of names that somebody decided about, and of their items.
        queue: proposals, the most useful first.
    """

    grouping: Grouping
    placed: Grouping
    estimates: Estimates | None
    names: dict[str, _NameState]
    groups: dict[str, list[Any]]
    done: tuple[int, int]
    queue: Sequence[Proposal]


class Review:
    """The state that the page shows and changes.

    An annotator sees the clustering under his own decisions alone, as they are compared later; an adjudicator sees
    the annotators' agreement, under the decisions of the file he writes.

    Args:
        tables: the build.
        journal: the annotator's own file.
        others: the other annotators' files, read when the page is opened.
        thumbnails: images to show.
        teacher: what the other names' places are estimated by; None: they stay where the clustering put them, and no
            proposals are made.

    Raises:
        InputError: a file of decisions cannot be used, or one annotator's decisions stand in several files.
    """

    def __init__(
        self,
        tables: BuildTables,
        journal: Journal,
        others: Sequence[Path],
        thumbnails: Thumbnails,
        teacher: Teacher | None = None,
    ) -> None:
        self.tables, self.journal, self.thumbnails = tables, journal, thumbnails
        self._teacher = teacher
        self._read = read_decisions(others)
        check_annotators(journal, self._read)
        self.revision = 0
        self._skipped: set[tuple[str, str | None]] = set()
        self._pairs_put_off: set[str] = set()
        self._lists_put_off: dict[tuple[str, str], set[tuple[str, str | None]]] = {}
        self._renames, self._new_labels = Renames(tables), dict[tuple[str, ...], str]()
        self._offered: OrderedDict[str, Proposal] = OrderedDict()
        self._changed: list[tuple[str, _NameState | None]] = []
        self._moved = 0  # undecided names that the last action put elsewhere
        self._decide_anew()

    @property
    def others(self) -> list[Entry]:
        """Entries of others, in their files or in the person's own."""
        return [*self._read, *self.journal.foreign_entries]

    @property
    def note(self) -> str | None:
        """Note to the person, before deciding, that the file has decisions of others; None if it has none."""
        if not self.journal.foreign_entries:
            return None
        who, file = sorted({entry.decision.who for entry in self.journal.foreign_entries}), self.journal.path
        return (
            f"{file} holds decisions of {', '.join(who)} too; they are shown as another's, not as yours. Each person "
            f"should have a file: move yours to one of your own, then open it with --decisions FILE --compare-with "
            f"{file}."
        )

    def _decide_anew(self) -> None:
        self._view = self._shown(self._decided())
        self._earlier: deque[_View] = deque(maxlen=max(3, min(50, _REMEMBERED // max(len(self._view.names), 1))))

    def _decided(self) -> Grouping:
        own = sorted(self.journal.own_entries, key=lambda entry: (entry.decision.when, entry.number))
        place, labels, classes = self.tables.place, self.tables.labels, self.tables.classes
        if self.journal.role == "adjudicator":
            return settle(place, labels, [*self.others, *own], classes).grouping
        return Grouping.of(place, labels, classes).apply_all(own)

    # -- changes --------------------------------------------------------------------------------------------------

    def decide(self, actions: Sequence[Sequence[Mapping[str, Any]]], revision: int) -> dict[str, Any]:
        """Check the decisions of some actions against names and groups, write them, return what they change.

        All are written, or none. Each action is undone as one.

        Args:
            actions: for each action its decisions, each with ``action`` and the fields of that action.
            revision: the revision that the page shows.

        Raises:
            InputError: not a decision, or one that fits nothing here; nothing is written.
            StaleError: the page or the file changed meanwhile; nothing is written.
            StorageError: the disk refuses; nothing is written.
        """
        self._current(revision)
        when, decisions = self.journal.now(), list[Decision]()
        for action in actions:
            decisions += [self._decision(one, when) for one in action]
            when = next_time(when + timedelta(milliseconds=1))
        if not decisions:
            raise InputError("nothing was decided: every name of it is decided already, or left out.")
        before, number = self._view.grouping, len(self.journal.entries) + 1
        trial = before.copy()
        for place, decision in enumerate(decisions, number):
            trial.apply(Entry(decision, self.journal.path, place, line=0, role=self.journal.role))
        missed = trial.unmatched[len(before.unmatched) :]
        if missed:
            raise InputError(f"{missed[0].reason}.")
        view = self._shown(trial)
        self.journal.append(decisions)
        self._earlier.append(self._view)
        return self._change(view)

    def answer(
        self, asked: str, verdict: Verdict, exceptions: Sequence[str], also: Sequence[Mapping[str, Any]], **said: str
    ) -> list[dict[str, Any]]:
        """Return the decisions by which a proposal that was shown is accepted or refused.

        Args:
            asked: the proposal's id.
            verdict: the answer.
            exceptions: names that it leaves out.
            also: further decisions of the action; as of
                :func:`hgld.pipelines.hierarchy.review.learning.proposals.answered`.
            said: ``to`` and ``why``, where the person says so.

        Raises:
            InputError: there is no such proposal, or an exception is no name of it.
        """
        proposal = self._proposal(asked)
        decisions = proposals.answered(
            proposal,
            verdict,
            self._label_now,
            exceptions=exceptions,
            also=also,
            to=said.get("to"),
            decided=self._view.grouping.decided,
        )
        return [{**one, **({"why": said["why"]} if "why" in said else {})} for one in decisions]

    def undo(self, revision: int) -> dict[str, Any]:
        """Take the annotator's last action back; return the changes.

        Raises:
            InputError: there is no action, or it was not written by a page.
            StaleError, StorageError: as :meth:`decide`.
        """
        self._current(revision)
        taken = self.journal.take_back(max(self.journal.last_action, 1))
        view = self._earlier.pop() if self._earlier else self._shown(self._decided())
        if self._skipped:  # what was put off since then is not proposed again
            view = self._shown(view.grouping)
        return {**self._change(view), "undone": [record(decision, _NAMED) for decision in taken]}

    def _current(self, revision: int) -> None:
        self._refresh()
        if revision != self.revision:
            raise StaleError

    def _refresh(self) -> None:
        """Take over the changes that somebody else wrote into the file."""
        if self.journal.changed_elsewhere:
            self.journal.reload()
            self._decide_anew()
            self._changed, self._moved = [], 0
            self.revision += 1

    def _change(self, view: _View) -> dict[str, Any]:
        before, self._view = self._view, view
        self.revision += 1
        self._changed = sorted(_difference(before.names, view.names).items())
        self._moved = sum(
            before.names[name][0] != state[0] and not view.grouping.is_decided(name)
            for name, state in self._changed
            if state is not None
        )
        return {
            **self.changes(0),
            "groups": _difference(before.groups, view.groups),
            **self._head(),
            "queue": self.queue(0, QUEUED),
        }

    def _decision(self, given: Mapping[str, Any], when: datetime) -> Decision:
        decision = _decision(given, self.journal.who, when)
        if isinstance(decision, GiveItem) and not self.tables.has_item(decision.split, decision.id):
            raise InputError(f"there is no item {quoted(decision.id)} of the split {quoted(decision.split)}.")
        return decision

    # -- views ----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self.journal.own_entries)

    def snapshot(self) -> dict[str, Any]:
        """Return what the page needs to begin, as of now; names and groups are asked for in pieces."""
        self._refresh()
        unmatched = self._view.grouping.unmatched
        return {
            "who": self.journal.who,
            "role": self.journal.role,
            "file": self.journal.path.name,
            "note": self.note,
            "others": sorted({entry.decision.who for entry in self.others}),
            "levels": [[level, list(classes)] for level, classes in self.tables.classes.items()],
            "item": self.tables.item,
            "groups": len(self._view.groups),
            "unmatched": [{"reason": m.reason, **record(m.entry.decision, _NAMED)} for m in unmatched[:_LISTED]],
            **self._head(),
        }

    def _head(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "decisions": self.count,
            "progress": self._progress(),
            "history": self.history(),
        }

    def history(self) -> list[dict[str, Any]]:
        """Return the person's own last decisions, newest first."""
        return [record(entry.decision, _NAMED) for entry in self.journal.own_entries[: -_LISTED - 1 : -1]]

    def _progress(self) -> dict[str, Any]:
        names, items = len(self._view.names), self._items
        done = self._view.done
        recent = [entry.decision for entry in self.journal.own_entries[-1_000:]]
        left = seconds_left(recent, names - done[0])
        return {
            "names": names,
            "names_done": done[0],
            "items": items,
            "items_done": done[1],
            "still_wrong": self._still_wrong(),
            "seconds_left": None if left is None else round(left),
        }

    @cached_property
    def _items(self) -> int:
        return sum(self.tables.sizes.values())

    def names(self, start: int, most: int = PIECE) -> dict[str, Any]:
        """Return a piece of the names, in the order of the alphabet, each with its facts and its state."""
        rows = [[*facts, *self._view.names[facts[0]]] for facts in self._facts[start : start + most]]
        return {"revision": self.revision, "start": start, "total": len(self._facts), "rows": rows}

    @cached_property
    def _facts(self) -> list[list[Any]]:
        return sorted(self.tables.facts())

    def groups(self, start: int, most: int = PIECE) -> dict[str, Any]:
        """Return a piece of the groups that have names."""
        rows = [[label, *state] for label, state in islice(self._view.groups.items(), start, start + most)]
        return {"revision": self.revision, "start": start, "total": len(self._view.groups), "rows": rows}

    def changes(self, start: int) -> dict[str, Any]:
        """Return a piece of the names that the last action changed, and whether there are more."""
        piece = self._changed[start : start + PIECE]
        return {"revision": self.revision, "names": dict(piece), "more": start + PIECE < len(self._changed)}

    def queue(self, start: int, most: int) -> dict[str, Any]:
        """Return a piece of the queue of proposals that the person did not put off."""
        queue = [proposal for proposal in self._view.queue if not self._is_put_off(proposal)]
        found = [self._labelled(proposal) for proposal in queue[start : start + most]]
        for proposal in found:
            key = proposals.identity(proposal)
            self._offered[key] = self._offered.pop(key, proposal)
        while len(self._offered) > _OFFERED:
            self._offered.popitem(last=False)
        return {
            "revision": self.revision,
            "start": start,
            "total": len(queue),
            "proposals": [proposals.shown(proposal, self._label_now) for proposal in found],
            "still_wrong": self._still_wrong(),
            "moved": self._moved,
        }

    def proposal(self, asked: str, start: int) -> dict[str, Any]:
        """Return a piece of a proposal's names.

        Raises:
            InputError: there is no such proposal, or it was shown too long ago.
        """
        return proposals.shown(self._proposal(asked), self._label_now, start, PIECE)

    def put_off(self, asked: str) -> dict[str, Any]:
        """Put a proposal off, until the estimate of most of its names changes; return the queue. Nothing is written.

        Raises:
            InputError: there is no such proposal.
        """
        proposal = self._proposal(asked)
        if proposal.kind in _OF_TWO:
            self._pairs_put_off.add(_pair_key(proposal))
        elif proposal.kind == "sort":
            self._skipped |= self._standing(proposal)
            self._view = self._shown(self._view.grouping)
        else:  # its names may still be asked about one screen at a time
            self._lists_put_off.setdefault(_list_key(proposal), set()).update(self._standing(proposal))
        return self.queue(0, QUEUED)

    def _labelled(self, proposal: Proposal) -> Proposal:
        """Return the proposal of a new group with a label for it, which stays while no other group has it."""
        if proposal.group or proposal.kind not in _NEW or not isinstance(proposal, Made):
            return proposal
        label = self._new_labels.get(proposal.names)
        if label is None or label in self._view.groups:
            label = new_label(proposal.names, self.tables, self._view.groups.keys())
            self._new_labels[proposal.names] = label
        return replace(proposal, group=label)

    def _standing(self, proposal: Proposal) -> set[tuple[str, str | None]]:
        return {(name, self._label_now(name)) for name in proposal.names}

    def _is_put_off(self, proposal: Proposal) -> bool:
        if proposal.kind in _OF_TWO:
            return bool(self._pairs_put_off) and _pair_key(proposal) in self._pairs_put_off
        before = self._lists_put_off.get(_list_key(proposal), set())  # the teacher leaves out screens
        return bool(before) and 2 * len(before & self._standing(proposal)) > len(proposal.names)

    def _proposal(self, asked: str) -> Proposal:
        found = self._offered.get(asked)
        if found is None:
            raise InputError("this proposal is not in the queue any more; the page shows another one.")
        return found

    def _label_now(self, name: str) -> str | None:
        state = self._view.names.get(name)
        return None if state is None else state[0]

    def _still_wrong(self) -> dict[str, list[float]] | None:
        estimates = self._view.estimates
        return None if estimates is None else still_wrong(estimates)

    def _shown(self, grouping: Grouping) -> _View:
        estimates, placed = taught(grouping, self._teacher, self._skipped)
        labels, sizes = {**placed.labels, None: None}, self.tables.sizes
        names: dict[str, _NameState]
        if estimates is None:
            names = {name: (labels[fate], None, None) for name, fate in placed.place.items()}
        else:
            wrong = estimates.wrong
            names = {n: (labels[fate], int(100 * wrong[n] + 0.5) / 100, None) for n, fate in placed.place.items()}
        settled = {name for name, fate in placed.place.items() if fate is None} | grouping.decided.keys()
        for name in settled:
            claim = grouping.claims.get(Subject("name", name))
            names[name] = names[name][0], 0.0, ", ".join(claim.annotators) if claim else None
        done = len(settled), sum(sizes[name] for name in settled)
        table = reviewed_groups(self.tables.names, self.tables.place, self.tables.groups, placed)
        groups = {label: [top, who] for label, top, who in table.select("label", "top", "decided_by").iter_rows()}
        return _View(grouping, placed, estimates, names, groups, done, self._queue(placed, settled, estimates))

    def _queue(self, placed: Grouping, settled: Collection[str], estimates: Estimates | None) -> Sequence[Proposal]:
        if estimates is None:
            return ()
        renames = self._renames.of(placed, settled, estimates.wrong)
        return sorted([*estimates.queue, *renames], key=lambda one: -one.items) if renames else estimates.queue

    def group_details(self, label: str) -> dict[str, Any]:
        """Return the evidence for a group's top and label, and examples of its names.

        Raises:
            InputError: there is no such group.
        """
        placed = self._view.placed
        group = placed.find(label)
        if group is None:
            raise InputError(f"there is no group {quoted(label)}.")
        table = reviewed_groups(self.tables.names, self.tables.place, self.tables.groups, placed, only=group)
        row = table.row(0, named=True)
        return {
            "label": label,
            "top": row["top"],
            "method": row["method"],
            "evidence": row["evidence"],
            "label_evidence": self.tables.label_evidence(group),
            "examples": self._examples(group),
        }

    def _examples(self, group: GroupId) -> list[dict[str, Any]]:
        """Return one item for each of the group's names with most items; those with images first."""
        sizes = self.tables.sizes
        names = sorted(self._view.placed.members[group], key=lambda name: (-sizes[name], name))[:_EXAMPLES]
        rows = [{**self._item(r), "name": n} for n in names for r in self._best(n)]
        return sorted(rows, key=lambda row: row["images"] == 0)

    def name_details(self, name: str, start: int, most: int) -> dict[str, Any]:
        """Return items, classes and spellings of one name."""
        return {
            "name": name,
            "landmarks": [self._item(row) for row in self.tables.landmarks(name, start, most)],
            "classes": self.tables.classes_of(name),
            "spellings": self.tables.spellings(name),
            "not_in": sorted(self._view.grouping.label_of(g) for g in self._view.grouping.refused_at(name)),
        }

    def _best(self, name: str) -> list[dict[str, Any]]:
        rows = self.tables.landmarks(name, 0, 50)
        return sorted(rows, key=lambda row: (row["split"], row["landmark_id"]) not in self.thumbnails)[:1]

    def _item(self, row: dict[str, Any]) -> dict[str, Any]:
        key = row["split"], row["id"]
        claim = self._view.grouping.claims.get(Subject("item", *key))
        given = claim.value if claim and isinstance(claim.value, Given) else None
        group = None if given is None or given.group is None else self._view.grouping.label_of(given.group)
        return {
            **row,
            "images": self.thumbnails.count((row["split"], row["landmark_id"])),
            "given": given and {"name": given.name, "group": group},
        }

    def labels(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Return proposed labels for a group of these names, the best first, none of them a group's already.

        Raises:
            InputError: there are no names, too many, or one is unknown.
        """
        if not 1 <= len(names) <= MOST_NAMES:
            raise InputError(f"{len(names)} names; expected 1 to {MOST_NAMES}.")
        if (unknown := next((name for name in names if name not in self._view.names), None)) is not None:
            raise InputError(f"there is no name {quoted(unknown)}.")
        return propose(names, self.tables, set(self._view.groups))

    def team(self) -> dict[str, Any]:
        """Return everyone's decisions side by side: kappa of each pair, and the conflicts."""
        entries = sorted(
            [*self.others, *self.journal.own_entries], key=lambda e: (e.decision.when, e.file.name, e.number)
        )
        settlement = settle(self.tables.place, self.tables.labels, entries, self.tables.classes)
        return side_by_side(settlement, self._view.grouping)


def _pair_key(proposal: Proposal) -> str:
    return proposals.identity(proposal) if proposal.kind == "merge" else f"{proposal.group}\n{proposal.other}"


def _list_key(proposal: Proposal) -> tuple[str, str]:
    return proposal.kind, "" if proposal.kind in _NEW else proposal.group


def _decision(given: Mapping[str, Any], who: str, when: datetime) -> Decision:
    kind = ACTIONS.get(given["action"]) if isinstance(given.get("action"), str) else None
    if kind is None:
        raise InputError(f"action is {quoted(str(given.get('action'))[:50])}; expected one of {', '.join(ACTIONS)}.")
    values: dict[str, Any] = {}
    for field, value in given.items():
        if field == "action":
            continue
        listed = field in ("names", "groups")
        whole = isinstance(value, list) and all(isinstance(v, str) for v in value) if listed else isinstance(value, str)
        if not whole or not (listed or field in _FIELDS) or field not in kind.__dataclass_fields__:
            raise InputError(f"{kind.action}: {quoted(field[:50])} is unexpected, or its value has the wrong type.")
        values[field] = tuple(value) if listed else value
    try:
        return kind(who=who, when=when, **values)
    except TypeError as error:  # a field is missing
        raise InputError(f"{kind.action}: {error}.") from error


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items that are new or changed, and None for those that are gone."""
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return {**changed, **dict.fromkeys(before.keys() - after.keys())}
