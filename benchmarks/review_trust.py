"""Simulate reviews, and count how often the 80% interval of the number of wrong names contains the truth.

Run with: python benchmarks/review_trust.py --data DIR --encoder lexical [--encoder sbert:PATH] [--sets washington,...]
          [--screens 12] [--work DIR]

Every dataset is built with the reference's group names (``--into``) and with as many groups of hgld's own. Three people
work through the queue, and answer about names that are asked again:

* *careful*: every decision is right;
* *5% mistakes*: a twentieth of the decisions name a random other group;
* *blind*: accepts every screen as it is shown.

A moment is the state after a screen. A name in a machine-made group is wrong if its reference group is not the most
frequent reference group there, and not in the group that a right decision gives it. The constants of the estimate
(``_BLIND_PRIOR`` and its neighbours in ``doubt.py``) were chosen on the development datasets, and are checked on the
others.
"""

import argparse
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from review_effort import SETS, build, read_reference  # a module beside this script

from hgld.pipelines.hierarchy.review.decisions import Accept, Decision, Entry, Move, New
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.hierarchy.review.learner import Estimates, Learner
from hgld.pipelines.hierarchy.review.queue import Queue, Screen
from hgld.pipelines.hierarchy.review.tables import BuildTables

DEVELOPMENT = ("washington", "places365", "schemaorg mid", "schemaorg top")
# annotator -> (share of decisions that are mistakes, share of screens that are accepted without reading)
PEOPLE: dict[str, tuple[float, float]] = {
    "careful": (0.0, 0.0),
    "5% mistakes": (0.05, 0.0),
    "blind": (0.0, 1.0),
}
START = datetime(2026, 1, 1, tzinfo=UTC)


class Person:
    """A simulated annotator of one build.

    Args:
        folder: folder of the build.
        truth: reference group of every name.
        mistakes: share of decisions that are wrong.
        blind: share of screens that the person accepts as they are shown.
        are_given: whether the groups are predefined by the reference.
    """

    def __init__(
        self, folder: Path, truth: Mapping[str, str], *, mistakes: float, blind: float, are_given: bool
    ) -> None:
        tables = BuildTables(folder)
        spelled = {spelling: name for name in tables.place for spelling in (name, *tables.spellings(name))}
        self.truth = {spelled[text]: group for text, group in truth.items() if text in spelled}
        self.learner = Learner.of(folder / "stages")
        self.queue = Queue(self.learner.rows, by="names")
        self.grouping = Grouping.of(tables.place, tables.labels, tables.classes)
        self._random, self._mistakes, self._blind, self._when = np.random.default_rng(0), mistakes, blind, START
        self.majority: dict[str, str] = {}
        self.homes = {group: group for group in truth.values()}
        if not are_given:
            self._find_homes(tables)

    def _find_homes(self, tables: BuildTables) -> None:
        """Set the most frequent reference group of every machine-made group, and each reference group's largest one."""
        counts: dict[str, dict[str, int]] = {}
        for name, group in self.truth.items():
            here = counts.setdefault(tables.labels[tables.place[name]], {})
            here[group] = here.get(group, 0) + 1
        self.majority = {label: max(of, key=lambda group: (of[group], group)) for label, of in counts.items()}
        self.homes = {group: f"{group} (new)" for group in self.truth.values()}
        for label, group in sorted(self.majority.items(), key=lambda pair: max(counts[pair[0]].values())):
            self.homes[group] = label

    def is_right(self, name: str, label: str | None) -> bool:
        """Return whether a name belongs to a group."""
        return label is not None and (
            label == self.homes[self.truth[name]] or self.majority.get(label) == self.truth[name]
        )

    def moments(self, most: int) -> Iterator[tuple[int, Estimates]]:
        """Yield the number of wrong names and the estimates, before the first screen and after each."""
        now = self.learner.fit(self.grouping)
        for _ in range(most):
            yield self.count_wrong(now), now
            if not (screens := self.queue.screens(now)):
                return
            self._decide(screens[0], now)
            now = self.learner.fit(self.grouping)
        yield self.count_wrong(now), now

    def count_wrong(self, now: Estimates) -> int:
        place = {name: None if group is None else self.grouping.label_of(group) for name, group in now.place.items()}
        return sum(not self.is_right(name, place[name]) for name in self.truth)

    def _decide(self, screen: Screen, now: Estimates) -> None:
        place, is_blind = now.place, self._random.random() < self._blind
        decisions: list[tuple[str, str, str]] = []
        for name in screen.names:
            if name not in self.truth:
                continue
            shown = self.grouping.label_of(place[name])
            to = shown if is_blind or self.is_right(name, shown) else self.homes[self.truth[name]]
            if self._random.random() < self._mistakes:
                to = str(self._random.choice([group for group in sorted({*self.homes.values()}) if group != to]))
            decisions.append((name, to, shown))
        for name, to, shown in decisions:
            self._when += timedelta(seconds=1)
            said: dict[str, Any] = {"who": "a", "when": self._when, "names": (name,)}
            made: Decision
            if to == shown:
                made = Accept(**said, group=to)
            elif self.grouping.find(to) is None and to not in self.grouping.labels.values():
                made = New(**said, to=to)
            else:
                made = Move(**said, to=to)
            self.grouping.apply(Entry(made, Path("a.yaml"), 1))


def measured(
    data: Path, encoders: Sequence[str], sets: Sequence[str], screens: int, work: Path
) -> Iterator[tuple[str, str, str, str, int, int, Estimates]]:
    """Yield dataset, encoder, kind of groups, person, screen, true number of wrong names, and estimates."""
    for name in sets:
        reference = read_reference(data, name)
        truth = dict(zip(reference.names, reference.groups, strict=True))
        for spec in encoders:
            encoder = spec.partition(":")[0]
            for kind in ("given", "found"):
                folder = work / encoder / name.replace(" ", "-") / kind
                if not (folder / "build" / "provenance.json").is_file():
                    build(reference, folder, spec, are_given=kind == "given")
                for person, (mistakes, blind) in PEOPLE.items():
                    one = Person(folder / "build", truth, mistakes=mistakes, blind=blind, are_given=kind == "given")
                    for screen, (wrong, now) in enumerate(one.moments(screens)):
                        yield name, encoder, kind, person, screen, wrong, now


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HGLD_DATA"), help="folder of the datasets; default: HGLD_DATA"
    )
    parser.add_argument("--encoder", action="append", help="encoder of build-hierarchy; again for more")
    parser.add_argument("--sets", default=",".join(SETS), help="names of datasets, separated by commas")
    parser.add_argument("--screens", type=int, default=12, help="most screens that a person decides")
    parser.add_argument("--work", type=Path, help="folder of the builds; default: a temporary folder")
    options = parser.parse_args()
    if options.data is None:
        parser.error("pass --data DIR, or set HGLD_DATA")
    held: dict[tuple[str, str, str], list[tuple[bool, bool]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        print("| dataset | encoder | groups | person | screens | wrong | expected (80%) |")
        print("|---|---|---|---|---:|---:|---:|")
        sets = options.sets.split(",")
        work = options.work or Path(temporary)
        for name, encoder, kind, person, screen, wrong, now in measured(
            Path(options.data), options.encoder or ["lexical"], sets, options.screens, work
        ):
            (mean, low, high), unread = now.still_wrong["names"], now.still_wrong["unread"]
            fold = "development" if name in DEVELOPMENT else "check"
            held.setdefault((fold, kind, person), []).append((low <= wrong <= high, unread))
            said = f"{mean:.0f} ({low:.0f}-{high:.0f}){' unread' * unread}"
            print(f"| {name} | {encoder} | {kind} | {person} | {screen} | {wrong} | {said} |")
    print("\n| datasets | groups | person | moments | truth in the 80% interval | page says perhaps unread |")
    print("|---|---|---|---:|---:|---:|")
    for (fold, kind, person), found in sorted(held.items()):
        inside, unread = np.mean(found, axis=0)
        print(f"| {fold} | {kind} | {person} | {len(found)} | {inside:.2f} | {unread:.2f} |")


if __name__ == "__main__":
    main()
