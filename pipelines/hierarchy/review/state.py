"""State of the review page: groups after one annotator's decisions, the queue, the other annotators' decisions.

The page shows the learner's estimate for names without a decision. Files contain only people's decisions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hgld.errors import InputError, StorageError, quoted

from .agreement import check_annotators, settle, side_by_side
from .decisions import Decision, Entry, GiveItem, make_decision, read_decisions
from .grouping import Grouping, OpenClasses, Subject
from .journal import Journal, StaleError
from .learner import Learner
from .queue import Queue, Screen, class_screens
from .review import estimated, reviewed_groups
from .tables import BuildTables, Thumbnails
from .whole_tree import expected_errors

_LISTED = 100  # maximum number of decisions in the page's history
_NAMED = 20  # maximum number of names per decision in the history
_EXAMPLES = 12

_NameState = tuple[str | None, float | None, str | None]  # label, error probability, who decided


@dataclass(frozen=True)
class _View:
    """Decisions, estimates, and their effects.

    Attributes:
        grouping: names in groups after the decisions.
        placed: ``grouping`` with the undecided names in their estimated groups.
        still_wrong: expected numbers of wrong names (:func:`expected_errors`); None without a learner.
        names: per name, the label of its group (None: the name was dropped), its error probability, and who decided.
        groups: per group with names, its top, who decided about it, its classes, and who decided them.
        done: numbers of decided names and of their items.
        queue: screens to decide next, the most useful first.
    """

    grouping: Grouping
    placed: Grouping
    still_wrong: dict[str, Any] | None
    names: dict[str, _NameState]
    groups: dict[str, list[Any]]
    done: tuple[int, int]
    queue: Sequence[Screen]


class Review:
    """The state that the page shows and changes.

    An annotator sees the clustering with only their own decisions applied, because the decisions of all annotators are
    compared later. An adjudicator sees the annotators' agreed decisions, and the effects of the adjudicators' file.

    Args:
        tables: the build.
        journal: the annotator's own file.
        others: the other annotators' files, read once into ``self.others``.
        thumbnails: images to show.
        learner: estimator of the groups of undecided names; None: these names stay in their group of the clustering.
        queue: chooser of the next screens; None: the page proposes nothing.

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
        self._models = settle(tables.place, tables.labels, self.others, tables.classes).models
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
        estimates, placed = estimated(grouping, self._learner, self._models)
        labels, sizes = {**placed.labels, None: None}, self.tables.sizes
        wrong = estimates.wrong if estimates else {}
        names: dict[str, _NameState] = {
            name: (labels[assigned], int(100 * wrong[name] + 0.5) / 100 if estimates else None, None)
            for name, assigned in placed.place.items()
        }
        settled = {name for name, assigned in placed.place.items() if assigned is None} | grouping.decided.keys()
        for name in settled:
            names[name] = names[name][0], 0.0, grouping.claims[Subject("name", name)].annotators
        done = len(settled), sum(sizes[name] for name in settled)
        tables = self.tables
        table = reviewed_groups(tables.names, tables.place, tables.groups, placed, tables.levels)
        wrong = estimates and expected_errors(estimates, table, list(tables.classes))
        columns = table.select("label", "top", "decided_by", "classes", "classes_by")
        groups = {label: said for label, *said in columns.iter_rows()}
        queue = list[Screen]()
        if self._queue and estimates:
            queue = [*self._queue.screens(estimates, self._skipped), *class_screens(table, list(tables.classes))]
        return _View(grouping, placed, wrong, names, groups, done, queue)

    # -- changes --------------------------------------------------------------------------------------------------

    def decide(self, actions: Sequence[Sequence[Mapping[str, Any]]], revision: int) -> dict[str, Any]:
        """Check decisions against the names and groups, write all of them or none, and return the changes.

        Args:
            actions: the decisions of each action. One undo takes back one action.
            revision: the revision that the page shows.

        Raises:
            InputError: a decision is invalid or does not fit the build; nothing is written.
            StaleError: the page is outdated or the file changed; nothing is written.
            StorageError: the file cannot be written; it is unchanged.
        """
        self._refresh(revision)
        when, decisions = None, list[Decision]()
        for action in actions:
            when = self.journal.next_time(when)
            decisions += [self._decision(one, when) for one in action]
        if not decisions:
            raise InputError("nothing was decided: every name is decided already, or excluded.")
        before, first = self._view.grouping, len(self.journal.entries) + 1
        path, role = self.journal.path, self.journal.role
        trial = before.copy().apply_all(Entry(d, path, number, role) for number, d in enumerate(decisions, first))
        missed = trial.unmatched[len(before.unmatched) :]
        if missed:
            raise InputError(f"{missed[0].reason}.")
        view = self._shown(trial)
        self.journal.append(decisions)
        return self._change(view)

    def undo(self, revision: int) -> dict[str, Any]:
        """Undo the annotator's last action; return the changes.

        Raises:
            InputError: there is no action, or a page did not write it.
            StaleError: the page is outdated or the file changed; nothing is undone.
            StorageError: the file cannot be written, or the disk does not confirm the undo.
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
        """Read the file again if another program changed it; fail if the page shows an older revision."""
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
        if isinstance(decision, GiveItem) and (decision.split, decision.id) not in self.tables.items:
            raise InputError(f"there is no item {quoted(decision.id)} of the split {quoted(decision.split)}.")
        return decision

    # -- views ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return everything that the page shows about names and groups."""
        self._refresh()
        unmatched = self._view.grouping.unmatched
        return {
            "who": self.journal.who,
            "role": self.journal.role,
            "file": self.journal.path.name,
            "others": sorted({entry.decision.who for entry in self.others}),
            "levels": [[level, list(of), isinstance(of, OpenClasses)] for level, of in self.tables.classes.items()],
            "item": self.tables.item,
            "predefined": sorted(
                self.tables.labels[g] for g in self.tables.labels.keys() - {*self.tables.place.values()}
            ),
            "names": [[*facts, *self._view.names[facts[0]]] for facts in sorted(self.tables.facts())],
            "groups": self._view.groups,
            "unmatched": [{"reason": m.reason, **_record(m.entry.decision)} for m in unmatched[:_LISTED]],
            **self._head(),
        }

    def _head(self) -> dict[str, Any]:
        own, (names_done, items_done) = self.journal.entries, self._view.done
        progress = {
            "names": len(self._view.names),
            "names_done": names_done,
            "items": sum(self.tables.sizes.values()),
            "items_done": items_done,
            "still_wrong": self._view.still_wrong,
        }
        history = [_record(entry.decision) for entry in own[: -_LISTED - 1 : -1]]
        queue = [asdict(screen) for screen in self._view.queue]
        said = {"revision": self.revision, "decisions": len(own), "progress": progress}
        return {**said, "history": history, "queue": queue}

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
        """Return the evidence for a group's top class and label, and an item of each large name, with images first.

        Raises:
            InputError: there is no such group.
        """
        placed, tables, sizes = self._view.placed, self.tables, self.tables.sizes
        group = placed.find(label)
        if group is None:
            raise InputError(f"there is no group {quoted(label)}.")
        row = reviewed_groups(tables.names, tables.place, tables.groups, placed, tables.levels, only=group)
        examples = []
        for name in sorted(placed.members[group], key=lambda name: (-sizes[name], name))[:_EXAMPLES]:
            items = [{**self._item(item), "name": name} for item in tables.landmarks(name, 0, 50)]
            examples += sorted(items, key=_has_no_image)[:1]
        said = row.select("label", "top", "method", "evidence").row(0, named=True)
        return {
            **said,
            "label_evidence": tables.label_evidence.get(group),
            "examples": sorted(examples, key=_has_no_image),
        }

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
        grouping, given = self._view.grouping, None
        if (claim := grouping.claims.get(Subject("item", row["split"], row["id"]))) is not None:
            group = None if claim.value.group is None else grouping.label_of(claim.value.group)
            given = {"name": claim.value.name, "group": group}
        return {**row, "images": self.thumbnails.count((row["split"], row["landmark_id"])), "given": given}

    def labels(self, names: Sequence[str]) -> dict[str, Any]:
        """Return proposed labels for a new group of these names, the best first; labels of other groups are excluded.

        Raises:
            InputError: a name is unknown.
        """
        self._check_known(names)
        taken, origin = self._view.groups.keys(), [self.tables.place[name] for name in names]
        by_models = {model.labels[max(set(origin), key=origin.count)] for model in self._models} - taken
        labels = [{"label": label, "why": "by a language model"} for label in sorted(by_models)]
        return {"labels": labels + self.tables.labels_for(names, taken | by_models)}

    def team(self) -> dict[str, Any]:
        """Compare everyone's decisions: return kappa per pair of annotators, and the conflicts."""
        entries = [*self.others, *self.journal.entries]
        entries.sort(key=lambda e: (e.decision.when, e.file.name, e.number))
        settlement = settle(self.tables.place, self.tables.labels, entries, self.tables.classes)
        return side_by_side(settlement, self._view.grouping)


def _has_no_image(item: Mapping[str, Any]) -> bool:
    return item["images"] == 0


def _record(decision: Decision) -> dict[str, Any]:
    """Return a decision for the page, with at most 20 of its names, and the number of all its names."""
    said = decision.to_dict()
    return {**said, "names": said["names"][:_NAMED], "names_count": len(said["names"])} if "names" in said else said


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return new and changed values by key, and None for removed keys."""
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return {**changed, **dict.fromkeys(before.keys() - after.keys())}
