"""Simulate reviews, and count how often the 80% interval of the number of wrong names contains the truth.

Run with: python benchmarks/review_trust.py --data DIR --encoder lexical [--encoder sbert:PATH] [--sets washington,...]
          [--screens 12] [--work DIR]

Every dataset is built with the reference's group names (``--into``) and with as many groups of hgld's own. If the
reference has a level above the groups, hgld clusters the groups into classes. Three people work through at most
--screens screens of the queue, with the screens of classes in the middle, and answer about names that are asked again:

* *careful*: every decision is right;
* *5% mistakes*: a twentieth of the decisions name a random other group;
* *blind*: accepts every screen as it is shown.

A moment is the state after a screen. A name in a machine-made group is wrong if its reference group is not the most
frequent reference group there, and not in the group that a right decision gives it. A reference class has one class of
the build: the largest in which it is the most frequent. A name is wrong in the tree if its group or its class is wrong.
The constants of the estimate (``_CARE`` and its neighbours in ``doubt.py``) were chosen with the results on all these
datasets in view.
"""

import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from measured import head, row  # modules beside this script
from name_sets import SETS, names_parser, rows_of
from review_effort import build, read_reference

from hgld.pipelines.hierarchy.review.decisions import Accept, Decision, Entry, Move, New, SetTop
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.hierarchy.review.learner import Estimates, Learner
from hgld.pipelines.hierarchy.review.queue import Queue, Screen
from hgld.pipelines.hierarchy.review.review import reviewed_groups
from hgld.pipelines.hierarchy.review.tables import BuildTables
from hgld.pipelines.hierarchy.review.whole_tree import expected_errors

DEVELOPMENT = ("washington", "places365", "schemaorg mid", "schemaorg top")
# annotator -> (share of decisions that are mistakes, share of screens that are accepted without reading)
PEOPLE: dict[str, tuple[float, float]] = {
    "careful": (0.0, 0.0),
    "5% mistakes": (0.05, 0.0),
    "blind": (0.0, 1.0),
}
START = datetime(2026, 1, 1, tzinfo=UTC)


def read_tops(data: Path, name: str) -> dict[str, str]:
    """Return the reference class above the group for every name; empty without a level above the groups."""
    _, column, level = SETS[name]
    if level == "top":
        return {}
    return {row[column].replace("-", " "): row["top"] for row in reversed(rows_of(data, name, "top"))}


def majorities(
    place: Mapping[str, str | None], truth: Mapping[str, str], *, are_given: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the most frequent reference group per machine-made group, and a group for every reference group."""
    if are_given:
        return {}, {group: group for group in truth.values()}
    counts: dict[str, Counter[str]] = {}
    for name, group in truth.items():
        if (label := place[name]) is not None:
            counts.setdefault(label, Counter())[group] += 1
    majority = {label: max(of, key=lambda group: (of[group], group)) for label, of in counts.items()}
    homes = {group: f"{group} (new)" for group in truth.values()}
    by_size = sorted(majority.items(), key=lambda pair: max(counts[pair[0]].values()))
    return majority, homes | {group: label for label, group in by_size}


class Person:
    """A simulated annotator of one build.

    Args:
        folder: folder of the build.
        truth: reference group of every name.
        tops: reference class above the group, of every name; empty if the build has only groups.
        mistakes: share of decisions that are wrong.
        blind: share of screens that the person accepts as they are shown.
        are_given: whether the groups are predefined by the reference.
    """

    def __init__(
        self,
        folder: Path,
        truth: Mapping[str, str],
        tops: Mapping[str, str],
        *,
        mistakes: float,
        blind: float,
        are_given: bool,
    ) -> None:
        self.tables = tables = BuildTables(folder)
        spelled = {spelling: name for name in tables.place for spelling in (name, *tables.spellings(name))}
        self.truth = {spelled[text]: group for text, group in truth.items() if text in spelled}
        self.tops = {spelled[text]: tops[text] for text in truth if text in spelled and text in tops}
        self.learner = Learner.of(folder / "stages")
        self.queue = Queue(self.learner.rows, by="names")
        self.grouping = Grouping.of(tables.place, tables.labels, tables.classes if tops else {})
        self._random, self._mistakes, self._blind, self._when = np.random.default_rng(0), mistakes, blind, START
        start = {name: tables.labels[group] for name, group in tables.place.items()}
        self.majority, self.homes = majorities(start, self.truth, are_given=are_given)
        self.now, self.placed, self.groups = self._fitted()
        classes = dict(self.groups.select("label", "top").iter_rows())
        at_top = {name: classes.get(label) for name, label in start.items()}
        self.top_homes = majorities(at_top, self.tops, are_given=False)[1]

    def _fitted(self) -> tuple[Estimates, Grouping, pl.DataFrame]:
        now, tables = self.learner.fit(self.grouping), self.tables
        placed = self.grouping.placed(now.place) if self.grouping.claims else self.grouping
        return now, placed, reviewed_groups(tables.names, tables.place, tables.groups, placed, tables.levels)

    def is_right(self, name: str, label: str | None) -> bool:
        """Return whether a name belongs to a group."""
        return label is not None and (
            label == self.homes[self.truth[name]] or self.majority.get(label) == self.truth[name]
        )

    def moments(self, most: int) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
        """Yield the numbers of wrong names and their estimates, before the first screen and after each."""
        yield self.count_wrong(), self._expected()
        for number in range(most):
            if self.tops and number == most // 2:
                self._decide_classes()
            elif screens := self.queue.screens(self.now):
                self._decide(screens[0])
            else:
                return
            self.now, self.placed, self.groups = self._fitted()
            yield self.count_wrong(), self._expected()

    def _expected(self) -> dict[str, Any]:
        found = expected_errors(self.now, self.groups, list(self.grouping.classes))
        levels = {"top": found["levels"]["top"], "tree": found["tree"]} if self.tops else {}
        return {"unread": found["unread"], "group": found["names"], **levels}

    def count_wrong(self) -> dict[str, int]:
        """Return the numbers of names in a wrong group, in a wrong class, and of either."""
        labels = {name: None if g is None else self.placed.label_of(g) for name, g in self.placed.place.items()}
        classes = dict(self.groups.select("label", "top").iter_rows())
        group = {name for name in self.truth if not self.is_right(name, labels[name])}
        top = {name for name, of in self.tops.items() if classes.get(labels[name] or "") != self.top_homes[of]}
        return {"group": len(group), "top": len(top), "tree": len(group | top)}

    def _wrongly(self, right: str, others: Collection[str]) -> str:
        """Return the right answer, or a random other answer if the person makes a mistake."""
        if self._random.random() >= self._mistakes or len({*others} - {right}) == 0:
            return right
        return str(self._random.choice(sorted({*others} - {right})))

    def _decide_classes(self) -> None:
        """Accept or correct the class of every group; a group belongs to the class of most of its names."""
        is_blind = self._random.random() < self._blind
        for label, shown, by in self.groups.select("label", "top", pl.col("classes_by").list.last()).iter_rows():
            group = self.placed.find(label)
            members = () if group is None else self.placed.members[group]
            counts = Counter(self.tops[name] for name in members if name in self.tops)
            if by is not None or not counts or self.grouping.find(label) is None:
                continue
            truth = max(counts, key=lambda top: (counts[top], top))
            right = shown if is_blind and shown else self.top_homes[truth]
            self._apply(SetTop, group=label, top=self._wrongly(right, self.top_homes.values()))

    def _decide(self, screen: Screen) -> None:
        place, is_blind = self.now.place, self._random.random() < self._blind
        decisions: list[tuple[str, str, str]] = []
        for name in screen.names:
            if name not in self.truth:
                continue
            shown = self.grouping.label_of(place[name])
            to = shown if is_blind or self.is_right(name, shown) else self.homes[self.truth[name]]
            decisions.append((name, self._wrongly(to, self.homes.values()), shown))
        for name, to, shown in decisions:
            if to == shown:
                self._apply(Accept, names=(name,), group=to)
            elif self.grouping.find(to) is None and to not in self.grouping.labels.values():
                self._apply(New, names=(name,), to=to)
            else:
                self._apply(Move, names=(name,), to=to)

    def _apply(self, action: type[Decision], **said: Any) -> None:
        self._when += timedelta(seconds=1)
        self.grouping.apply(Entry(action(who="a", when=self._when, **said), Path("a.yaml"), 1))


def measured(
    data: Path, encoders: Sequence[str], sets: Sequence[str], screens: int, work: Path
) -> Iterator[tuple[str, str, str, str, int, dict[str, int], dict[str, Any]]]:
    """Yield dataset, encoder, kind of groups, person, screen, true numbers of wrong names, and their estimates."""
    for name in sets:
        reference, tops = read_reference(data, name), read_tops(data, name)
        truth = dict(zip(reference.names, reference.groups, strict=True))
        for spec in encoders:
            encoder = spec.partition(":")[0]
            for kind in ("given", "found"):
                folder = work / encoder / name.replace(" ", "-") / kind
                if not (folder / "build" / "provenance.json").is_file():
                    build(reference, folder, spec, are_given=kind == "given", tops=len({*tops.values()}))
                for person, (mistakes, blind) in PEOPLE.items():
                    are_given = kind == "given"
                    one = Person(folder / "build", truth, tops, mistakes=mistakes, blind=blind, are_given=are_given)
                    for screen, (wrong, now) in enumerate(one.moments(screens)):
                        yield name, encoder, kind, person, screen, wrong, now


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    parser = names_parser(__doc__, screens=12)
    parser.add_argument("--work", type=Path, help="folder of the builds; default: a temporary folder")
    options = parser.parse_args()
    held: dict[tuple[str, str, str, str], list[tuple[bool, bool]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        print(head("dataset", "encoder", "groups", "person", "screens", "level", "wrong", "expected (80%)"), flush=True)
        sets = options.sets.split(",")
        work = options.work or Path(temporary)
        for name, encoder, kind, person, screen, wrong, now in measured(
            options.data, options.encoder or ["lexical"], sets, options.screens, work
        ):
            fold, unread = "development" if name in DEVELOPMENT else "check", now.pop("unread")
            for level, (mean, low, high) in now.items():
                held.setdefault((fold, kind, person, level), []).append((low <= wrong[level] <= high, unread))
                said = f"{mean:.0f} ({low:.0f}-{high:.0f}){' unread' * unread}"
                print(row([name, encoder, kind, person, screen, level, wrong[level], said]))
    print()
    print(head("datasets", "groups", "person", "level", "moments", "truth in the 80% interval", "perhaps unread"))
    for (fold, kind, person, level), found in sorted(held.items()):
        inside, unread = np.mean(found, axis=0)
        print(row([fold, kind, person, level, len(found), f"{inside:.2f}", f"{unread:.2f}"]))


if __name__ == "__main__":
    main()
