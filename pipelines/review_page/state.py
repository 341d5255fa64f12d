"""The model behind the page: a build's names in groups under one annotator's decisions, and what the others decided."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import InputError
from pipelines.agreement import Settlement, settle
from pipelines.decision_files import read_decisions
from pipelines.decisions import ACTIONS, Decision, Entry
from pipelines.grouping import Grouping
from pipelines.review import reviewed_groups, reviewed_names
from pipelines.review_page.images import Thumbnails
from pipelines.review_page.journal import Journal
from pipelines.review_page.tables import BuildTables

_REMEMBERED = 50  # groupings to go back to at once; further back everything is decided anew
_LISTED = 200  # decisions of the history that the page shows
_EXAMPLES = 12
View = dict[str, dict[str, list[Any]]]


class StaleError(Exception):
    """The page, or the file, is newer than what was decided on: show the state as it is, then decide again."""


class Review:
    """What the page shows and changes.

    An annotator sees the clustering under his own decisions alone, as they are compared later; an adjudicator sees
    what all annotators agreed on, under the decisions of the file he writes.

    Args:
        tables: the build.
        journal: the annotator's own file.
        others: the other annotators' files, read when the page is opened.
        thumbnails: images to show.

    Raises:
        InputError: a file of decisions cannot be used.
    """

    def __init__(self, tables: BuildTables, journal: Journal, others: Sequence[Path], thumbnails: Thumbnails) -> None:
        self.tables, self.journal, self.thumbnails = tables, journal, thumbnails
        self.others = read_decisions(others)
        self.revision = 0
        self._decide_anew()

    def _decide_anew(self) -> None:
        self._grouping = self._decided()
        self._view = self._shown(self._grouping)
        self._earlier: deque[tuple[Grouping, View]] = deque(maxlen=_REMEMBERED)

    def _decided(self) -> Grouping:
        own = sorted(self.journal.entries, key=lambda entry: (entry.decision.when, entry.number))
        if self.journal.role == "adjudicator":
            return settle(self.tables.place, self.tables.labels, [*self.others, *own]).grouping
        mine = [entry for entry in own if entry.decision.who == self.journal.who]
        return Grouping.of(self.tables.place, self.tables.labels).apply_all(mine)

    # -- changing it ----------------------------------------------------------------------------------------------

    def decide(self, given: Mapping[str, Any], revision: int) -> dict[str, Any]:
        """Check one decision against names and groups, write it to the journal, and say what it changed.

        Args:
            given: ``action``, ``why`` and the fields of that action.
            revision: the one that the page shows.

        Raises:
            InputError: no decision, or one that fits nothing here; nothing is written.
            StaleError: the page or the file changed meanwhile; nothing is written.
            StorageError: the disk refuses; nothing is written.
        """
        self._current(revision)
        decision = _decision(given, self.journal.who, self.journal.now())
        entry = Entry(decision, self.journal.path, len(self.journal.entries) + 1, line=0, role=self.journal.role)
        trial = _copy(self._grouping)
        trial.apply(entry)
        missed = trial.unmatched[len(self._grouping.unmatched) :]
        if missed:
            raise InputError(f"{missed[0].reason}.")
        view = self._shown(trial, since=self._grouping)
        self.journal.append(decision)
        self._earlier.append((self._grouping, self._view))
        return self._change(trial, view)

    def undo(self, revision: int) -> dict[str, Any]:
        """Take the annotator's last decision back, and say what that changed.

        Raises:
            InputError: there is none, or it was not written by a page.
            StaleError, StorageError: as :meth:`decide`.
        """
        self._current(revision)
        taken = self.journal.take_back()
        if self._earlier:
            grouping, view = self._earlier.pop()
        else:
            grouping = self._decided()
            view = self._shown(grouping)
        return {**self._change(grouping, view), "undone": _record(taken)}

    def _current(self, revision: int) -> None:
        if self.journal.changed_elsewhere:
            self.journal.reload()
            self._decide_anew()
            self.revision += 1
        if revision != self.revision:
            raise StaleError

    def _change(self, grouping: Grouping, view: View) -> dict[str, Any]:
        change = {part: _difference(self._view[part], view[part]) for part in view}
        self._grouping, self._view = grouping, view
        self.revision += 1
        return {"revision": self.revision, **change, "history": self.history(), "decisions": self.count}

    # -- showing it -----------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self.journal.entries)

    def snapshot(self) -> dict[str, Any]:
        """Everything the page needs to begin: facts of names, the view, the history."""
        return {
            "revision": self.revision,
            "who": self.journal.who,
            "role": self.journal.role,
            "file": self.journal.path.name,
            "others": sorted({entry.decision.who for entry in self.others}),
            "facts": self.tables.facts(),
            **self._view,
            "history": self.history(),
            "decisions": self.count,
            "unmatched": [{"reason": miss.reason, **_record(miss.entry.decision)} for miss in self._grouping.unmatched],
        }

    def history(self) -> list[dict[str, Any]]:
        """The last decisions of the file, newest first."""
        return [_record(entry.decision) for entry in self.journal.entries[: -_LISTED - 1 : -1]]

    def _shown(self, grouping: Grouping, since: Grouping | None = None) -> View:
        """Names (label, doubtful, decided by) and groups (top, method, evidence, decided by, how it got its label).

        ``since``: the grouping that is shown now; only names that another one touched are looked at again.
        """
        table, names = self.tables.names, dict[str, list[Any]]()
        if since is not None:
            table, names = table.filter(pl.col("name").is_in(_touched(since, grouping))), {**self._view["names"]}
        kept, dropped = reviewed_names(table, grouping)
        for name, label, doubtful, who in kept.select("name", "label", "doubtful", "decided_by").iter_rows():
            names[name] = [label, doubtful, who]
        names |= {name: [None, False, who] for name, who in dropped.select("name", "who").iter_rows()}
        groups = reviewed_groups(self.tables.names, self.tables.place, self.tables.groups, grouping)
        numbers = {grouping.labels[group]: group for group in grouping.live()}
        return {
            "names": names,
            "groups": {
                row["label"]: [
                    row["top"],
                    row["method"],
                    row["evidence"],
                    row["decided_by"],
                    self.tables.label_evidence(numbers[row["label"]]),
                ]
                for row in groups.iter_rows(named=True)
            },
        }

    def name_details(self, name: str, start: int, most: int) -> dict[str, Any]:
        """Landmarks, classes and spellings of one name."""
        return {
            "name": name,
            "landmarks": [self._with_images(row) for row in self.tables.landmarks(name, start, most)],
            "classes": self.tables.classes(name),
            "spellings": self.tables.spellings(name),
        }

    def examples(self, label: str) -> list[dict[str, Any]]:
        """A landmark of each of a group's names with most landmarks; those with images first."""
        group = self._grouping.find(label)
        if group is None:
            return []
        sizes: dict[str, int] = dict(self.tables.names.select("name", "landmarks").iter_rows())
        names = sorted(self._grouping.members[group], key=lambda name: (-sizes[name], name))[:_EXAMPLES]
        rows = [{**self._with_images(r), "name": n} for n in names for r in self._best(n)]
        return sorted(rows, key=lambda row: row["images"] == 0)

    def _best(self, name: str) -> list[dict[str, Any]]:
        rows = self.tables.landmarks(name, 0, 50)
        return sorted(rows, key=lambda row: (row["split"], row["landmark_id"]) not in self.thumbnails)[:1]

    def _with_images(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "images": self.thumbnails.count((row["split"], row["landmark_id"]))}

    def team(self) -> dict[str, Any]:
        """Everyone's decisions side by side: kappa of each pair, and what they decide differently."""
        settlement = settle(self.tables.place, self.tables.labels, _in_order([*self.others, *self.journal.entries]))
        return {"agreements": [asdict(a) for a in settlement.agreements], "conflicts": _conflicts(settlement)}


def _conflicts(settlement: Settlement) -> list[dict[str, Any]]:
    return [
        {
            "kind": conflict.kind,
            "of": conflict.of,
            "settled": conflict.settled,
            "verdicts": [
                {
                    "who": side.who,
                    "verdict": side.verdict,
                    "why": "; ".join(dict.fromkeys(entry.decision.why for entry in side.entries)),
                }
                for side in conflict.verdicts
            ],
        }
        for conflict in settlement.conflicts
    ]


def _in_order(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (entry.decision.when, entry.file.name, entry.number))


def _decision(given: Mapping[str, Any], who: str, when: datetime) -> Decision:
    kind = ACTIONS.get(str(given.get("action")))
    if kind is None:
        raise InputError(f"action is {given.get('action')!r}; expected one of {', '.join(ACTIONS)}.")
    values: dict[str, Any] = {}
    for field, value in given.items():
        if field == "action":
            continue
        listed = field in ("names", "groups")
        whole = isinstance(value, list) and all(isinstance(v, str) for v in value) if listed else isinstance(value, str)
        if not whole or field in ("who", "when") or field not in kind.__dataclass_fields__:
            raise InputError(f"{kind.action}: {field} is not what is expected there.")
        values[field] = tuple(value) if listed else value
    try:
        return kind(who=who, when=when, **values)
    except TypeError as error:  # a field is missing
        raise InputError(f"{kind.action}: {error}.") from error


def _copy(grouping: Grouping) -> Grouping:
    return replace(
        grouping,
        place={**grouping.place},
        labels={**grouping.labels},
        tops={**grouping.tops},
        claims={**grouping.claims},
        unmatched=[*grouping.unmatched],
    )


def _touched(before: Grouping, after: Grouping) -> list[str]:
    """Names that a decision spoke of, or whose group has another label."""
    claimed = {
        str(subject.of)
        for subject, claim in after.claims.items()
        if subject.kind == "name" and before.claims.get(subject) is not claim
    }
    relabelled = [group for group, label in after.labels.items() if before.labels.get(group) != label]
    return sorted(claimed.union(*(after.members[group] for group in relabelled)))


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What is new or other; what is gone is None."""
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return {**changed, **dict.fromkeys(before.keys() - after.keys())}


def _record(decision: Decision) -> dict[str, Any]:
    said = {key: value for key, value in asdict(decision).items() if value is not None}
    return {"action": decision.action, **said, "when": decision.when.isoformat()}
