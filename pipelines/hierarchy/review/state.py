"""State of the review page: a build's groups after one annotator's decisions, the queue, and others' decisions.

For a name without a decision the page shows the learner's estimate. Files get people's decisions only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hgld.errors import InputError, StorageError, quoted

from .agreement import check_annotators, settle, side_by_side
from .decisions import MOST_NAMES, Decision, Entry, GiveItem, make_decision, read_decisions
from .grouping import Given, GroupId, Grouping, Subject
from .journal import Journal, StaleError
from .learner import Estimates, Learner
from .queue import Queue, Screen
from .review import estimated, reviewed_groups, still_wrong
from .tables import BuildTables, Thumbnails

_LISTED = 100  # decisions in the history of the page
_NAMED = 20  # names shown per decision of the history
_EXAMPLES = 12

_NameState = tuple[str | None, float | None, str | None]  # label, error probability, who decided


@dataclass(frozen=True)
class _View:
    """Decisions, estimates, and their effects, as the page shows them.

    Attributes:
        grouping: names in groups after the decisions.
        placed: ``grouping`` with the undecided names in their estimated groups.
        estimates: estimates of the learner; None without a learner.
        names: per name the label of its group (None: dropped), its error probability, and who decided.
        groups: per group that has names its top, and who decided about it.
        done: number of decided names, and of their items.
        queue: screens to decide next, the most useful first.
    """

    grouping: Grouping
    placed: Grouping
    estimates: Estimates | None
    names: dict[str, _NameState]
    groups: dict[str, list[Any]]
    done: tuple[int, int]
    queue: Sequence[Screen]


class Review:
    """The state that the page shows and changes.

    An annotator sees the clustering after the annotator's own decisions only, because decisions are compared later. An
    adjudicator sees what the annotators agree on, changed by the adjudicators' file.

    Args:
        tables: the build.
        journal: the annotator's own file.
        others: the other annotators' files, read once into ``self.others``.
        thumbnails: images to show.
        learner: estimates the groups of undecided names; None: they stay in their group of the clustering.
        queue: chooses the screens to decide next from the estimates; None: the page proposes nothing.

    Raises:
        InputError: a file of decisions cannot be used, or one annotator's decisions are in several files.
    """

    def __init__(
        self,
        tables: BuildTables,
        journal: Journal,
        others: Sequence[Path],
        thumbnails: Thumbnails,
        learner: Learner | None = None,
        queue: Queue | None = None,
    ) -> None:
        self.tables, self.journal, self.thumbnails = tables, journal, thumbnails
        self._learner, self._queue = learner, queue
        self.others = read_decisions(others)
        check_annotators(journal, self.others)
        self.revision = 0
        self._skipped: set[tuple[str, str | None]] = set()
        self._view = self._shown(self._decided())

    def _decided(self) -> Grouping:
        own = sorted(self.journal.entries, key=lambda entry: (entry.decision.when, entry.number))
        place, labels, classes = self.tables.place, self.tables.labels, self.tables.classes
        if self.journal.role == "adjudicator":
            return settle(place, labels, [*self.others, *own], classes).grouping
        return Grouping.of(place, labels, classes).apply_all(own)

    def _shown(self, grouping: Grouping) -> _View:
        estimates, placed = estimated(grouping, self._learner)
        labels, sizes = {**placed.labels, None: None}, self.tables.sizes
        wrong = estimates.wrong if estimates else {}
        names: dict[str, _NameState] = {
            name: (labels[assigned], int(100 * wrong[name] + 0.5) / 100 if estimates else None, None)
            for name, assigned in placed.place.items()
        }
        settled = {name for name, assigned in placed.place.items() if assigned is None} | grouping.decided.keys()
        for name in settled:
            claim = grouping.claims.get(Subject("name", name))
            names[name] = names[name][0], 0.0, claim.annotators if claim else None
        done = len(settled), sum(sizes[name] for name in settled)
        table = reviewed_groups(self.tables.names, self.tables.place, self.tables.groups, placed)
        groups = {label: [top, who] for label, top, who in table.select("label", "top", "decided_by").iter_rows()}
        queue = self._queue.screens(estimates, self._skipped) if self._queue and estimates else ()
        return _View(grouping, placed, estimates, names, groups, done, queue)

    # -- changes --------------------------------------------------------------------------------------------------

    def decide(self, actions: Sequence[Sequence[Mapping[str, Any]]], revision: int) -> dict[str, Any]:
        """Check decisions against the names and groups, write them, and return what they change.

        Writes all decisions or none. One undo takes back one action.

        Args:
            actions: for each action its decisions, each with ``action`` and the fields of that action.
            revision: the revision that the page shows.

        Raises:
            InputError: not a decision, or it fits nothing in the build; nothing is written.
            StaleError: the page or the file changed in the meantime; nothing is written.
            StorageError: the file cannot be written; it is unchanged.
        """
        self._refresh(revision)
        when, decisions = None, list[Decision]()
        for action in actions:
            when = self.journal.next_time(when)
            decisions += [self._decision(one, when) for one in action]
        if not decisions:
            raise InputError("nothing was decided: every name of it is decided already, or excluded.")
        before, number = self._view.grouping, len(self.journal.entries) + 1
        trial = before.copy()
        for place, decision in enumerate(decisions, number):
            trial.apply(Entry(decision, self.journal.path, place, self.journal.role))
        missed = trial.unmatched[len(before.unmatched) :]
        if missed:
            raise InputError(f"{missed[0].reason}.")
        view = self._shown(trial)
        self.journal.append(decisions)
        return self._change(view)

    def undo(self, revision: int) -> dict[str, Any]:
        """Undo the annotator's last action; return the changes.

        Raises:
            InputError: there is no action, or it was not written by a page.
            StaleError, StorageError: as :meth:`decide`; the disk may also refuse to confirm that the action is gone.
        """
        self._refresh(revision)
        try:
            taken = self.journal.take_back(max(self.journal.last_action, 1))
        except StorageError:
            self._change(self._shown(self._decided()))
            raise
        view = self._shown(self._decided())
        return {**self._change(view), "undone": [_record(decision) for decision in taken]}

    def _refresh(self, revision: int | None = None) -> None:
        """Read the file again if somebody else changed it; fail if the page shows an older revision."""
        if self.journal.changed_elsewhere:
            self.journal.reload()
            self._change(self._shown(self._decided()))
        if revision not in (None, self.revision):
            raise StaleError

    def _change(self, view: _View) -> dict[str, Any]:
        before, self._view = self._view, view
        self.revision += 1
        return {
            "names": _difference(before.names, view.names),
            "groups": _difference(before.groups, view.groups),
            **self._head(),
        }

    def _decision(self, given: Mapping[str, Any], when: datetime) -> Decision:
        decision = make_decision(given, who=self.journal.who, when=when)
        if isinstance(decision, GiveItem) and not self.tables.has_item(decision.split, decision.id):
            raise InputError(f"there is no item {quoted(decision.id)} of the split {quoted(decision.split)}.")
        return decision

    # -- views ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return everything that the page shows of names and groups."""
        self._refresh()
        unmatched = self._view.grouping.unmatched
        return {
            "who": self.journal.who,
            "role": self.journal.role,
            "file": self.journal.path.name,
            "others": sorted({entry.decision.who for entry in self.others}),
            "levels": [[level, list(classes)] for level, classes in self.tables.classes.items()],
            "item": self.tables.item,
            "names": [[*facts, *self._view.names[facts[0]]] for facts in sorted(self.tables.facts())],
            "groups": self._view.groups,
            "unmatched": [{"reason": m.reason, **_record(m.entry.decision)} for m in unmatched[:_LISTED]],
            **self._head(),
        }

    def _head(self) -> dict[str, Any]:
        own, (names_done, items_done), estimates = self.journal.entries, self._view.done, self._view.estimates
        progress = {
            "names": len(self._view.names),
            "names_done": names_done,
            "items": sum(self.tables.sizes.values()),
            "items_done": items_done,
            "still_wrong": still_wrong(estimates),
        }
        history = [_record(entry.decision) for entry in own[: -_LISTED - 1 : -1]]
        queue = [screen.to_dict() for screen in self._view.queue]
        return {
            "revision": self.revision,
            "decisions": len(own),
            "progress": progress,
            "history": history,
            "queue": queue,
        }

    def put_off(self, names: Sequence[str]) -> dict[str, Any]:
        """Skip names until their estimates change; return the queue. Writes nothing.

        Raises:
            InputError: a name is unknown.
        """
        self._check_known(names)
        self._skipped |= {(name, self._view.names[name][0]) for name in names}
        self._view = self._shown(self._view.grouping)
        return self._head()

    def _check_known(self, names: Sequence[str]) -> None:
        if (unknown := next((name for name in names if name not in self._view.names), None)) is not None:
            raise InputError(f"there is no name {quoted(unknown)}.")

    def group_details(self, label: str) -> dict[str, Any]:
        """Return the evidence for a group's top and label, and example items.

        Raises:
            InputError: there is no such group.
        """
        placed, tables = self._view.placed, self.tables
        group = placed.find(label)
        if group is None:
            raise InputError(f"there is no group {quoted(label)}.")
        row = reviewed_groups(tables.names, tables.place, tables.groups, placed, only=group).row(0, named=True)
        said = {key: row[key] for key in ("top", "method", "evidence")}
        examples = self._examples(group)
        return {"label": label, **said, "label_evidence": tables.label_evidence(group), "examples": examples}

    def _examples(self, group: GroupId) -> list[dict[str, Any]]:
        """Return one item for each of the largest names of a group, items with images first."""
        sizes, rows = self.tables.sizes, []
        for name in sorted(self._view.placed.members[group], key=lambda name: (-sizes[name], name))[:_EXAMPLES]:
            items = self.tables.landmarks(name, 0, 50)
            if items:
                best = min(items, key=lambda row: (row["split"], row["landmark_id"]) not in self.thumbnails)
                rows.append({**self._item(best), "name": name})
        return sorted(rows, key=lambda row: row["images"] == 0)

    def name_details(self, name: str, start: int, most: int) -> dict[str, Any]:
        """Return items, classes and spellings of one name."""
        grouping = self._view.grouping
        return {
            "name": name,
            "landmarks": [self._item(row) for row in self.tables.landmarks(name, start, most)],
            "classes": self.tables.classes_of(name),
            "spellings": self.tables.spellings(name),
            "not_in": sorted(grouping.label_of(group) for group in grouping.refused.get(name, ())),
        }

    def _item(self, row: dict[str, Any]) -> dict[str, Any]:
        claim = self._view.grouping.claims.get(Subject("item", row["split"], row["id"]))
        given = claim.value if claim and isinstance(claim.value, Given) else None
        group = None if given is None or given.group is None else self._view.grouping.label_of(given.group)
        return {
            **row,
            "images": self.thumbnails.count((row["split"], row["landmark_id"])),
            "given": given and {"name": given.name, "group": group},
        }

    def labels(self, names: Sequence[str]) -> dict[str, Any]:
        """Return proposed labels for a new group of these names, the best first; no label of another group.

        Raises:
            InputError: there are no names, too many, or one is unknown.
        """
        if not 1 <= len(names) <= MOST_NAMES:
            raise InputError(f"{len(names)} names; expected 1 to {MOST_NAMES}.")
        self._check_known(names)
        return {"labels": self.tables.labels_for(names, self._view.groups.keys())}

    def team(self) -> dict[str, Any]:
        """Return everyone's decisions side by side: kappa of each pair, and the conflicts."""
        entries = [*self.others, *self.journal.entries]
        entries.sort(key=lambda e: (e.decision.when, e.file.name, e.number))
        settlement = settle(self.tables.place, self.tables.labels, entries, self.tables.classes)
        return side_by_side(settlement, self._view.grouping)


def _record(decision: Decision) -> dict[str, Any]:
    """Return a decision as the page receives it: at most 20 of its names, and their number."""
    said = decision.to_dict()
    return {**said, "names": said["names"][:_NAMED], "names_count": len(said["names"])} if "names" in said else said


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return new and changed values by key, and None for keys that are gone."""
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return {**changed, **dict.fromkeys(before.keys() - after.keys())}
