"""Model behind the review page: a build's groups under one annotator's decisions, others' decisions, thumbnails."""

import io
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import InputError
from hgld.pipelines.hierarchy.landmark_images import ImagePlace, LandmarkKey, find_images, read_image
from hgld.pipelines.hierarchy.review.agreement import settle
from hgld.pipelines.hierarchy.review.decision_files import read_decisions
from hgld.pipelines.hierarchy.review.decisions import ACTIONS, Decision, Entry
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.hierarchy.review.journal import Journal, StaleError
from hgld.pipelines.hierarchy.review.review import reviewed_groups, reviewed_names
from hgld.pipelines.hierarchy.review.side_by_side import check_annotators, record, side_by_side
from hgld.pipelines.hierarchy.review.tables import BuildTables

# -- thumbnails ----------------------------------------------------------------------------------------------------

SIDE = 240  # pixels: 120 on the page, sharp on a screen of two pixels a point
_KEPT = 1024  # thumbnails of some 10 kB


class Thumbnails:
    """Thumbnails of the landmarks with images at ``place``, made on demand; none if it is None.

    Raises:
        ConfigError: nothing is at ``place``, or nothing in a known layout.
        TableError: its ``images.csv`` cannot be used.
    """

    def __init__(self, place: Path | None) -> None:
        self._images = find_images(place) if place else {}

    def __contains__(self, landmark: object) -> bool:
        return landmark in self._images

    def count(self, landmark: LandmarkKey) -> int:
        """Return the number of images of a landmark, at most ``landmark_images.IMAGES_A_LANDMARK``."""
        return len(self._images.get(landmark, ()))

    def jpeg(self, landmark: LandmarkKey, number: int) -> bytes | None:
        """Return the thumbnail of a landmark's image ``number`` (from 0) as JPEG bytes; None if there is no such image.

        Raises:
            ImageError: the image is there and cannot be decoded.
        """
        images = self._images.get(landmark, ())
        return _thumbnail(images[number]) if 0 <= number < len(images) else None


@lru_cache(maxsize=_KEPT)
def _thumbnail(image: ImagePlace) -> bytes:
    picture = read_image(image)
    picture.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80)
    return data.getvalue()


# -- the model -----------------------------------------------------------------------------------------------------

_REMEMBERED = 50  # groupings kept for a fast undo; further back all decisions are applied anew
_LISTED = 200  # decisions that the page shows in its history
_EXAMPLES = 12
View = dict[str, dict[str, list[Any]]]


class Review:
    """The state that the page shows and changes.

    An annotator sees the clustering under his own decisions alone, as they are compared later; an adjudicator sees
    the annotators' agreement, under the decisions of the file he writes.

    Args:
        tables: the build.
        journal: the annotator's own file.
        others: the other annotators' files, read when the page is opened.
        thumbnails: images to show.

    Raises:
        InputError: a file of decisions cannot be used, or one annotator's decisions stand in several files.
    """

    def __init__(self, tables: BuildTables, journal: Journal, others: Sequence[Path], thumbnails: Thumbnails) -> None:
        self.tables, self.journal, self.thumbnails = tables, journal, thumbnails
        self._read = read_decisions(others)
        check_annotators(journal, self._read)
        self.revision = 0
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
            f"should have a file: move yours to one of your own, then open it with --decisions FILE --others {file}."
        )

    def _decide_anew(self) -> None:
        self._grouping = self._decided()
        self._view = self._shown(self._grouping)
        self._earlier: deque[tuple[Grouping, View]] = deque(maxlen=_REMEMBERED)
        self._actions: list[int] = []  # decisions of each action since the start: one undo takes one action back

    def _decided(self) -> Grouping:
        own = sorted(self.journal.own_entries, key=lambda entry: (entry.decision.when, entry.number))
        if self.journal.role == "adjudicator":
            return settle(self.tables.place, self.tables.labels, [*self.others, *own]).grouping
        return Grouping.of(self.tables.place, self.tables.labels).apply_all(own)

    # -- changes --------------------------------------------------------------------------------------------------

    def decide(self, given: Sequence[Mapping[str, Any]], revision: int) -> dict[str, Any]:
        """Check the decisions of one action against names and groups, write them to the journal, return the changes.

        Args:
            given: for each decision ``action``, ``why`` and the fields of that action.
            revision: the revision that the page shows.

        Raises:
            InputError: not a decision, or one that fits nothing here; nothing is written.
            StaleError: the page or the file changed meanwhile; nothing is written.
            StorageError: the disk refuses; nothing is written.
        """
        self._current(revision)
        when, number = self.journal.now(), len(self.journal.entries) + 1
        decisions = [_decision(one, self.journal.who, when) for one in given]
        trial = _copy(self._grouping)
        for place, decision in enumerate(decisions, number):
            trial.apply(Entry(decision, self.journal.path, place, line=0, role=self.journal.role))
        missed = trial.unmatched[len(self._grouping.unmatched) :]
        if missed:
            raise InputError(f"{missed[0].reason}.")
        view = self._shown(trial, since=self._grouping)
        self.journal.append(decisions)
        self._earlier.append((self._grouping, self._view))
        self._actions.append(len(decisions))
        return self._change(trial, view)

    def undo(self, revision: int) -> dict[str, Any]:
        """Take the annotator's last action back; return the changes.

        An action of several decisions is undone as one; after a restart, decision by decision.

        Raises:
            InputError: there is no action, or it was not written by a page.
            StaleError, StorageError: as :meth:`decide`.
        """
        self._current(revision)
        taken = self.journal.take_back(self._actions[-1] if self._actions else 1)
        if self._actions:
            self._actions.pop()
        if self._earlier:
            grouping, view = self._earlier.pop()
        else:
            grouping = self._decided()
            view = self._shown(grouping)
        return {**self._change(grouping, view), "undone": [record(decision) for decision in taken]}

    def _current(self, revision: int) -> None:
        self._refresh()
        if revision != self.revision:
            raise StaleError

    def _refresh(self) -> None:
        """Take over the changes that somebody else wrote into the file."""
        if self.journal.changed_elsewhere:
            self.journal.reload()
            self._decide_anew()
            self.revision += 1

    def _change(self, grouping: Grouping, view: View) -> dict[str, Any]:
        change = {part: _difference(self._view[part], view[part]) for part in view}
        self._grouping, self._view = grouping, view
        self.revision += 1
        return {"revision": self.revision, **change, "history": self.history(), "decisions": self.count}

    # -- views ----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self.journal.own_entries)

    def snapshot(self) -> dict[str, Any]:
        """Return everything that the page needs to begin: facts of names, the view and the history, as of now."""
        self._refresh()
        return {
            "revision": self.revision,
            "who": self.journal.who,
            "role": self.journal.role,
            "file": self.journal.path.name,
            "note": self.note,
            "others": sorted({entry.decision.who for entry in self.others}),
            "facts": self.tables.facts(),
            **self._view,
            "history": self.history(),
            "decisions": self.count,
            "unmatched": [{"reason": miss.reason, **record(miss.entry.decision)} for miss in self._grouping.unmatched],
        }

    def history(self) -> list[dict[str, Any]]:
        """Return the person's own last decisions, newest first."""
        return [record(entry.decision) for entry in self.journal.own_entries[: -_LISTED - 1 : -1]]

    def _shown(self, grouping: Grouping, since: Grouping | None = None) -> View:
        """Return names (label, doubtful, decided by) and groups (top, method, evidence, decided by, label's origin).

        ``since`` is the grouping that is shown now; only names that differ from it are computed again.
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
        """Return landmarks, classes and spellings of one name."""
        return {
            "name": name,
            "landmarks": [self._with_images(row) for row in self.tables.landmarks(name, start, most)],
            "classes": self.tables.classes(name),
            "spellings": self.tables.spellings(name),
        }

    def examples(self, label: str) -> list[dict[str, Any]]:
        """Return one landmark for each of the group's names with most landmarks; those with images first."""
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
        """Return everyone's decisions side by side: kappa of each pair, and the conflicts."""
        entries = sorted(
            [*self.others, *self.journal.own_entries], key=lambda e: (e.decision.when, e.file.name, e.number)
        )
        return side_by_side(settle(self.tables.place, self.tables.labels, entries), self._grouping)


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
            raise InputError(f"{kind.action}: {field} is unexpected, or its value has the wrong type.")
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
    """Return the names that a decision concerned, or whose group has another label."""
    claimed = {
        str(subject.of)
        for subject, claim in after.claims.items()
        if subject.kind == "name" and before.claims.get(subject) is not claim
    }
    relabelled = [group for group, label in after.labels.items() if before.labels.get(group) != label]
    return sorted(claimed.union(*(after.members[group] for group in relabelled)))


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items that are new or changed, and None for those that are gone."""
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return {**changed, **dict.fromkeys(before.keys() - after.keys())}
