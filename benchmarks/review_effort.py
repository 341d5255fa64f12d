"""Actions until a hierarchy is right: a simulated annotator works through the review page's interface.

Run with: python benchmarks/review_effort.py --data DIR --encoder sbert:FOLDER [--sets washington,...] [--seeds 5]
          [--mistakes .05] [--order names] [--found] [--fit FILE] [--work DIR]

DIR holds sets of names with a reference grouping (``HGLD_DATA``). Every set is built with ``hgld build-hierarchy
--classes`` and, unless ``--found``, with the reference's group names given (``--into``); its review server then answers
the annotator's requests as it answers the page. The annotator knows the reference. An action is a request that decides:

* a block of a screen of similar names is put into a group: 1, after each of its names that belongs elsewhere was moved,
  1 each;
* the rest of a screen is accepted as it is: 1; fewer than 16 names that are right are skipped, which decides nothing.

A name is right if it stands in the group of its reference; without given names (``--found``) a machine-made group is
taken for the reference group of which it holds most, each for one at most (the matching with most names right). Printed
are the actions, as shares of the names, until 80, 90 and 95% of the names, and of the items, are right, beside

a. names read in the order of the file, an action a name;
b. names read in the order of the build's confidence, the least confident first (the page of the last release);
c. margin sampling with nearest-neighbour propagation over the encoder alone, a name an action, 2% of the names at a
   time (with given names only);
w. with ``--found``: an all-knowing cut of Ward's tree over the encoder, an action a group and one an exception.

Printed too, without ``--mistakes``, for every set: how well the page's probabilities tell which of the names nobody
decided about stand wrong, before any decision, after 50 random names were judged (or half of them), and after 50
actions of the queue: AUROC, calibration error (as of ``hierarchy_doubt.py``), and how often the 80% interval held how
many are. For this, and for the interval during a review, a name in a machine-made group is wrong if its reference group
is not the most frequent one there.

Every seed but the first draws nine tenths of the names, shuffles them and, with ``--mistakes``, draws which names the
annotator decides wrongly. ``--fit`` fits the coefficients of ``pipelines/hierarchy/review/learner.yaml`` on the
reviews of all sets, and prints effort and estimates on each set with those that were fitted without it.
"""

import argparse
import contextlib
import csv
import io
import json
import math
import os
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import yaml
from hierarchy_doubt import auroc, calibration_error  # beside this script
from scipy.cluster.hierarchy import linkage
from scipy.optimize import linear_sum_assignment, minimize
from scipy.special import expit
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression
from starlette.testclient import TestClient

import hgld.cli
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.hierarchy.review.journal import Journal
from hgld.pipelines.hierarchy.review.learner import COEFFICIENTS, Coefficients, Estimates, Learner, log_odds
from hgld.pipelines.hierarchy.review.queue import Queue
from hgld.pipelines.hierarchy.review.server import TOKEN_HEADER, application
from hgld.pipelines.hierarchy.review.state import Review
from hgld.pipelines.hierarchy.review.tables import BuildTables, Thumbnails

SETS = {
    "washington": ("gldv2_washington_landmarks", "mid"),
    "geonames": ("taxonomies/geonames", "mid"),
    "places365": ("taxonomies/places365", "mid"),
    "cub200": ("taxonomies/cub200", "mid"),
    "schemaorg mid": ("taxonomies/schemaorg_places", "mid"),
    "schemaorg top": ("taxonomies/schemaorg_places", "top"),
    "overture": ("taxonomies/overture_places", "mid"),
    "grocery": ("grocery", "coarse"),
}
BARS = (0.8, 0.9, 0.95)
DRAWN = 0.9
LEAST_REST = 16  # names of a screen's rest that are worth an action
TOKEN = "benchmark"  # of a server that listens nowhere


# -- the sets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """Distinct names with their reference groups and numbers of items."""

    names: tuple[str, ...]
    groups: tuple[str, ...]
    items: tuple[int, ...]

    def drawn(self, seed: int) -> "Reference":
        """Return nine tenths of the names in an order of their own; all of them for seed 0."""
        order = np.random.default_rng(seed).permutation(len(self.names)).tolist()
        order = order[: round(DRAWN * len(order))] if seed else order
        return Reference(*(tuple(column[i] for i in order) for column in (self.names, self.groups, self.items)))


def read_reference(data: Path, name: str) -> Reference:
    """Read a set; a name that stands in it twice counts once, with its first group."""
    folder, level = SETS[name]
    with (data / folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    column = "fine" if name == "grocery" else "label"
    rows = [row for row in rows if row.get(level) and "|" not in row[level]]
    told = [
        (row[column].replace("-", " "), row[level].replace("-", " "), int(row.get("n_landmarks") or 1)) for row in rows
    ]
    found: dict[str, tuple[str, int]] = {}
    for text, group, items in told:
        first = found.get(text, (group, 0))
        found[text] = (first[0], first[1] + items if name == "grocery" else max(first[1], items))
    return Reference(tuple(found), tuple(g for g, _ in found.values()), tuple(i for _, i in found.values()))


def build(reference: Reference, out: Path, encoder: str, *, are_given: bool) -> Path:
    """Build a set's hierarchy by the command; return its folder."""
    out.mkdir(parents=True)
    names = pl.DataFrame({"name": reference.names, "count": reference.items})
    names.write_csv(out / "names.csv")
    groups = sorted(set(reference.groups))
    pl.DataFrame({"name": groups}).write_csv(out / "groups.csv")
    command = [
        "build-hierarchy",
        "--classes",
        str(out / "names.csv"),
        "--out",
        str(out / "build"),
        "--encoder",
        encoder,
    ]
    command += ["--into", str(out / "groups.csv")] if are_given else ["--groups", str(len(groups))]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            hgld.cli.main(command)
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(command)} ended with {end.code}:\n{said.getvalue()}") from end
    return out / "build"


def built(name: str, reference: Reference, seed: int, options: argparse.Namespace, work: Path) -> Path:
    """Return the folder of a set's build, made if it is not there."""
    folder = work / name.replace(" ", "-") / str(seed) / ("found" if options.found else "given")
    if not (folder / "build" / "provenance.json").is_file():
        build(reference, folder, options.encoder, are_given=not options.found)
    return folder / "build"


# -- the annotator -------------------------------------------------------------------------------------------------


@dataclass
class Effort:
    """Actions after which shares of names and items were right, and how long the answers took."""

    names: int
    items: int
    history: list[tuple[int, float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    left: list[tuple[int, int, Sequence[float]]] = field(default_factory=list)  # actions, names wrong, estimate
    screens: int = 0  # that were looked at

    def until(self, bar: float, *, of_items: bool = False) -> float | None:
        """Return the actions, as a share of the names, until so many were right; None: never."""
        reached = (actions for actions, *shares in self.history if shares[of_items] >= bar)
        return next((actions / self.names for actions in reached), None)


class Annotator:
    """A person who knows the reference and works through the page's interface.

    Args:
        folder: a build.
        reference: what is right.
        mistakes: share of the names that he decides wrongly.
        seed: of the mistakes.
        are_given: whether the groups bear the reference's names.
        order: of the queue.
        learner: the learner; the build's own if None.
    """

    def __init__(
        self,
        folder: Path,
        reference: Reference,
        *,
        mistakes: float,
        seed: int,
        are_given: bool,
        order: Literal["items", "names"] = "items",
        learner: Learner | None = None,
    ) -> None:
        tables = BuildTables(folder)
        file = Path(tempfile.mkdtemp(dir=folder)) / "decisions.yaml"  # each annotator has a file
        learner = learner or Learner.of(folder / "stages")
        queue = Queue(learner.rows, learner.fitted, by=order)
        review = Review(tables, Journal(file, "simulated", "annotator"), (), Thumbnails(None), learner, queue)
        self._client = TestClient(
            application(review, TOKEN), base_url="http://127.0.0.1:8000", headers={TOKEN_HEADER: TOKEN}
        )
        self._revision, self._actions = self._get("/api/state")["revision"], 0
        rows = self._pieces("/api/names")
        self.place: dict[str, str | None] = {row[0]: row[5] for row in rows}
        # the build cleans names: each is known by its items' spelling
        self.truth = self._references(tables, reference)
        self.target = {**self.truth}
        if not are_given:
            self._match(sorted(set(self.truth.values())))
        rng = np.random.default_rng(seed)
        groups = sorted(set(self.target.values()))
        self.says = {
            name: str(rng.choice([g for g in groups if g != target]))
            if rng.random() < mistakes and len(groups) > 1
            else target
            for name, target in sorted(self.target.items())
        }
        self._are_given = are_given
        self._made = {row[0] for row in self._pieces("/api/groups")} | (set(groups) if are_given else set())
        sizes = {row[0]: row[1] for row in rows}
        self.weight = sizes
        self.effort = Effort(len(self.target), sum(sizes[name] for name in self.target))
        self._note()

    @staticmethod
    def _references(tables: BuildTables, reference: Reference) -> dict[str, str]:
        known = dict(zip(reference.names, reference.groups, strict=True))
        raw = {spelling: name for name in tables.place for spelling in [name, *tables.spellings(name)]}
        return {raw[text]: group for text, group in known.items() if text in raw}

    def _match(self, groups: Sequence[str]) -> None:
        """Take each machine-made group for at most one group of the reference, so that most names are right."""
        labels = sorted({label for label in self.place.values() if label is not None})
        shared = Counter((self.place[name], group) for name, group in self.truth.items())
        table = np.array([[shared[label, group] for group in groups] for label in labels])
        rows, columns = linear_sum_assignment(-table)
        taken = {groups[c]: labels[r] for r, c in zip(rows, columns, strict=True) if table[r, c]}
        free = {group: group if group not in labels else f"{group} (new)" for group in groups}
        self.target = {name: taken.get(group, free[group]) for name, group in self.truth.items()}

    # -- requests -------------------------------------------------------------------------------------------------

    def _get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = self._client.get(path, params=query)
        answer.raise_for_status()
        return answer.json()

    def _pieces(self, path: str) -> list[list[Any]]:
        rows: list[list[Any]] = []
        while True:
            piece = self._get(path, start=len(rows))
            rows += piece["rows"]
            if len(rows) >= piece["total"]:
                return rows

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        answer = self._client.post(path, json=body)
        self.effort.seconds.append(time.perf_counter() - began)
        if answer.status_code != 200:
            raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text[:500]} to {str(body)[:500]}")
        return answer.json()

    def _decide(self, *decisions: dict[str, Any]) -> None:
        """Take one action; learn what it changed."""
        told = self._post("/api/decide", {"revision": self._revision, "decisions": list(decisions)})
        self._revision, self._actions = told["revision"], self._actions + 1
        self._take(told["names"])
        start = len(told["names"])
        while told["more"]:
            told = self._get("/api/changes", revision=self._revision, start=start)
            self._take(told["names"])
            start += len(told["names"])
        self._note(told.get("progress"))

    def _take(self, changed: dict[str, list[Any] | None]) -> None:
        self.place |= {name: None if state is None else state[0] for name, state in changed.items()}

    def _note(self, progress: dict[str, Any] | None = None) -> None:
        right = {name for name, target in self.target.items() if self.place[name] == target}
        weight = sum(self.weight[name] for name in right)
        self.effort.history.append((self._actions, len(right) / self.effort.names, weight / self.effort.items))
        if progress and progress["still_wrong"]:
            self.effort.left.append((self._actions, len(self.wrong()), progress["still_wrong"]["names"]))

    def wrong(self, place: Mapping[str, str | None] | None = None) -> set[str]:
        """Return the names that stand wrong: outside their given group, or outside the majority of a machine-made one.

        Args:
            place: where the names stand; None: where the page has them.
        """
        place = self.place if place is None else place
        if self._are_given:
            return {name for name, group in self.target.items() if place[name] != group}
        held: dict[str | None, Counter[str]] = {}
        for name, group in self.truth.items():
            held.setdefault(place[name], Counter())[group] += 1
        most = {label: count.most_common(1)[0][0] for label, count in held.items() if label is not None}
        return {name for name, group in self.truth.items() if most.get(place[name] or "") != group}

    def judge_names(self, names: Sequence[str]) -> None:
        """Decide about names one by one, an action each: where they stand, if right, or where they belong."""
        homes, wrong = dict(self.target), self.wrong()
        if not self._are_given:  # the largest group of which most are of the name's reference group
            right = Counter((self.place[name] or "", group) for name, group in self.truth.items() if name not in wrong)
            largest = {group: label for (label, group), _ in reversed(right.most_common())}
            free = {group: group if group not in self._made else f"{group} (new)" for group in self.truth.values()}
            homes = {name: largest.get(group, free[group]) for name, group in self.truth.items()}
        for name in names:
            if name in wrong:
                self._to([name], homes[name])
            else:
                self._decide({"action": "accept", "names": [name], "group": self.place[name]})

    def judged(self) -> tuple[float, float, float]:
        """Return AUROC and calibration error of the page's probabilities, and whether its interval holds."""
        rows = [row for row in self._pieces("/api/names") if row[7] is None and row[0] in self.target]
        stand_wrong = self.wrong()
        wrong, p = np.array([row[0] in stand_wrong for row in rows]), np.array([row[6] for row in rows])
        _, low, high = self._get("/api/state")["progress"]["still_wrong"]["names"]
        return auroc(wrong, p), calibration_error(wrong, p), float(low <= wrong.sum() <= high)

    # -- work -----------------------------------------------------------------------------------------------------

    def work(self, bar: float = BARS[-1], most: float = math.inf) -> Effort:
        """Work on the queue until ``bar`` of names and items are right, ``most`` actions, or nothing is left to say.

        That is so where the queue is empty, or what comes next was put off since the last decision: who makes mistakes
        may then have fewer names right.
        """
        put_off: set[tuple[int, str]] = set()
        while min(self.effort.history[-1][1:]) < bar and self._actions < most:
            queue = self._get("/api/queue", count=1)["screens"]
            if not queue or (self._actions, queue[0]["id"]) in put_off:
                break
            put_off.add((self._actions, queue[0]["id"]))
            self.effort.screens += 1
            self._sort(queue[0])
        return self.effort

    def _to(self, names: Sequence[str], group: str) -> None:
        """Put names into a group by one action."""
        action = {"action": "move", "names": list(names), "to": group}
        if group not in self._made:
            action = {"action": "new", "names": list(names), "to": group}
            self._made.add(group)
        self._decide(action)

    def _sort(self, screen: dict[str, Any]) -> None:
        """Put blocks where they belong, the most useful first, until the rest is right; then accept or skip it."""
        names = screen["names"]
        left = [name for name in names if name in self.says]
        while left:
            wrong = [name for name in left if self.place[name] != self.says[name]]
            if not wrong:
                if len(left) < LEAST_REST:
                    self._post("/api/skip", {"screen": screen["id"]})
                else:
                    groups: dict[str, list[str]] = {}
                    for name in left:
                        groups.setdefault(self.says[name], []).append(name)
                    self._decide(*({"action": "accept", "names": n, "group": g} for g, n in groups.items()))
                return
            block, group = self._best(screen["blocks"], names, left)
            for name in block:
                if self.says[name] != group:
                    self._to([name], self.says[name])
            self._to([name for name in block if self.says[name] == group], group)
            left = [name for name in left if name not in block]
            if min(self.effort.history[-1][1:]) >= BARS[-1]:
                return

    def _best(
        self, blocks: Sequence[Sequence[int]], names: Sequence[str], left: Sequence[str]
    ) -> tuple[list[str], str]:
        """Return the block of the cheapest plan that puts most names right, and its group."""
        place = {name: i for i, name in enumerate(left)}
        within = {tuple(sorted(place[n] for n in names[start:stop] if n in place)) for start, stop in blocks}
        nested = sorted(
            {(b[0], b[-1] + 1) for b in within if len(b) > 1} | {(0, len(left))}, key=lambda b: (b[0], -b[1])
        )
        wrong = [self.place[name] != self.says[name] for name in left]
        _, chosen = self._plan(nested, 0, len(left), wrong, left)

        def use(option: tuple[int, int, str]) -> int:
            start, stop, group = option
            return sum(wrong[start:stop]) - sum(self.says[name] != group for name in left[start:stop])

        start, stop, group = max(chosen, key=use)
        return list(left[start:stop]), group

    def _plan(
        self, blocks: Sequence[tuple[int, int]], start: int, stop: int, wrong: Sequence[bool], left: Sequence[str]
    ) -> tuple[int, list[tuple[int, int, str]]]:
        """Return the fewest actions that put a range right, as a cut of its blocks."""
        inside = [b for b in blocks if start <= b[0] and b[1] <= stop and b != (start, stop)]
        cost, chosen, at = 0, list[tuple[int, int, str]](), start
        while at < stop:
            child = next((b for b in inside if b[0] == at), (at, at + 1))
            if child[1] - child[0] > 1:
                more, found = self._plan(inside, *child, wrong, left)
            else:
                more, found = (1, [(*child, self.says[left[at]])]) if wrong[at] else (0, [])
            cost, chosen, at = cost + more, chosen + found, child[1]
        if stop - start > 1:
            (group, count), *_ = Counter(self.says[name] for name in left[start:stop]).most_common(1)
            if 1 + stop - start - count < cost:
                return 1 + stop - start - count, [(start, stop, group)]
        return cost, chosen


# -- the estimates --------------------------------------------------------------------------------------------------

DECISIONS = 50


def judgements(begin: Callable[[], Annotator], seed: int) -> np.ndarray:
    """Return (AUROC, calibration error, whether the interval holds) before and after decisions, (3, 3).

    After none, after random names, after actions of the queue.
    """
    one, other = begin(), begin()
    names, found = sorted(one.target), [one.judged()]
    chosen = np.random.default_rng(seed).permutation(len(names))[: min(DECISIONS, len(names) // 2)].tolist()
    one.judge_names([names[i] for i in chosen])
    other.work(bar=1.0, most=DECISIONS)
    return np.array([*found, one.judged(), other.judged()])


# -- the other ways ------------------------------------------------------------------------------------------------


def one_by_one(annotator: Annotator, order: Sequence[str]) -> Effort:
    """Read names in an order, an action a name; nothing is learnt."""
    effort, place = Effort(annotator.effort.names, annotator.effort.items), {**annotator.place}
    target, says, weight = annotator.target, annotator.says, annotator.weight
    right = {name for name in target if place[name] == target[name]}
    for actions in range(len(order) + 1):
        share = sum(weight[name] for name in right) / effort.items
        effort.history.append((actions, len(right) / effort.names, share))
        if actions < len(order):
            name = order[actions]
            (right.add if says[name] == target[name] else right.discard)(name)
    return effort


def propagation(rows: np.ndarray, seeds: np.ndarray, truth: np.ndarray, says: np.ndarray, items: np.ndarray) -> Effort:
    """Ask where the margin is smallest, 2% at a time; guess by votes of the names answered and of the groups' names."""
    n, k = len(rows), len(seeds)
    effort, answered = Effort(n, int(items.sum())), list[int]()
    while True:
        known = np.vstack([seeds, rows[answered]])
        groups = np.concatenate([np.arange(k), says[answered]]).astype(int)
        weight = np.concatenate([np.full(k, 1.0), np.full(len(answered), 2.0)])
        votes = np.zeros((n, k))
        np.add.at(votes.T, groups, (np.exp(8 * (rows @ known.T - 1)) * weight).T)
        votes /= votes.sum(1, keepdims=True)
        guess = votes.argmax(1)
        guess[answered] = says[answered]
        right = guess == truth
        effort.history.append((len(answered), right.mean(), items[right].sum() / items.sum()))
        if len(answered) >= n or min(effort.history[-1][1:]) >= BARS[-1]:
            return effort
        rest = np.setdiff1d(np.arange(n), answered)
        best = np.sort(votes[rest], 1)
        answered += rest[np.argsort(best[:, -1] - best[:, -2])[: max(1, n // 50)]].tolist()


def ward_cut(rows: np.ndarray, truth: np.ndarray) -> float:
    """Return the actions, as a share of the names, of the best cut of Ward's tree: a group 1 and an exception 1."""
    n = len(rows)
    counts: list[Counter[int]] = [Counter({int(group): 1}) for group in truth]
    costs = [1] * n
    for a, b in linkage(rows, "ward")[:, :2].astype(int):
        counts.append(counts[a] + counts[b])
        whole = 1 + counts[-1].total() - max(counts[-1].values())
        costs.append(min(whole, costs[a] + costs[b]))
    return costs[-1] / n


# -- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """One way to work on one set, over the seeds."""

    title: str
    efforts: tuple[Effort, ...]

    def cells(self, *, of_items: bool = False) -> list[str]:
        return [mean_of([effort.until(bar, of_items=of_items) for effort in self.efforts]) for bar in BARS]


def mean_of(values: Sequence[float | None]) -> str:
    """Return a mean with its standard deviation, or how often the bar was never reached."""
    found = [value for value in values if value is not None]
    missed = f" ({len(values) - len(found)} of {len(values)} never)" if len(found) < len(values) else ""
    if not found:
        return "never"
    spread = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.3f}{spread}{missed}"


def encoded(encoder: str, texts: Sequence[str]) -> np.ndarray:
    from hgld.pipelines.hierarchy.encoders.registry import make_encoder

    return make_encoder(encoder, names=list(texts)).encode(list(texts)).astype(np.float64)


def arms(name: str, options: argparse.Namespace, work: Path, estimates: dict[str, list[np.ndarray]]) -> Iterator[Arm]:
    """Yield the ways to work on one set; note how good the page's estimates were."""
    reference = read_reference(options.data, name)
    are_given = not options.found
    found: dict[str, list[Effort]] = {}
    for seed in range(options.seeds):
        shuffled = reference.drawn(seed)
        folder = built(name, shuffled, seed, options, work)
        mistakes, order = options.mistakes, options.order
        annotator = Annotator(folder, shuffled, mistakes=mistakes, seed=seed, are_given=are_given, order=order)
        cleaned = pl.read_parquet(folder / "stages" / "cluster" / "names.parquet")
        target = annotator.target
        in_file = [n for n in shuffled.names if n in target] + sorted(set(target) - set(shuffled.names))
        doubtful = [n for n in cleaned.sort("confidence", "name")["name"].to_list() if n in target]
        found.setdefault("a. order of the file", []).append(one_by_one(annotator, in_file))
        found.setdefault("b. least confident first", []).append(one_by_one(annotator, doubtful))
        names = sorted(target)
        groups = sorted({*target.values(), *annotator.says.values()})
        rows = encoded(options.encoder, [*names, *groups])
        truth, says = (np.array([groups.index(t[n]) for n in names]) for t in (target, annotator.says))
        items = np.array([annotator.weight[n] for n in names])
        if are_given:
            effort = propagation(rows[: len(names)], rows[len(names) :], truth, says, items)
            found.setdefault("c. margin and propagation", []).append(effort)
        else:
            reference_of = np.unique([annotator.truth[n] for n in names], return_inverse=True)[1]
            effort = Effort(
                len(names),
                int(items.sum()),
                [(0, 0, 0), (round(ward_cut(rows[: len(names)], reference_of) * len(names)), 1, 1)],
            )
            found.setdefault("w. all-knowing cut", []).append(effort)
        found.setdefault("hgld review", []).append(annotator.work())
        if not mistakes:
            begin = partial(Annotator, folder, shuffled, mistakes=0.0, seed=seed, are_given=are_given, order=order)
            estimates.setdefault(name, []).append(judgements(begin, seed))
    for title, efforts in found.items():
        yield Arm(title, tuple(efforts))


# -- the coefficients ----------------------------------------------------------------------------------------------


class Recorder(Learner):
    """A learner that notes, at moments of a review, what its models see and what is true.

    Attributes:
        annotator: who reviews, set before the review begins.
        errors: at each moment (log odds, log odds of the build's doubt, nearness, was wrong, group) of the undecided
            names.
        nodes: at each moment the features of nodes, and the share of their names outside the largest group.
        last: the last estimates.
    """

    last: Estimates
    queue: Queue
    annotator: Annotator | None
    errors: list[np.ndarray]
    nodes: list[np.ndarray]

    def fit(self, grouping: Grouping) -> Estimates:
        self.last = super().fit(grouping)
        if getattr(self, "annotator", None):
            self.note(self.last)
        return self.last

    def note(self, now: Estimates) -> None:
        """Note a moment."""
        assert self.annotator is not None
        told = self.annotator.target
        truth = np.array([told.get(name, "") for name in now.names])
        known = now.undecided & (truth != "")
        stands = {n: now.labels[k] if k >= 0 else None for n, k in zip(now.names, now.standing.tolist(), strict=True)}
        stand_wrong = self.annotator.wrong(stands)
        wrong = np.array([name in stand_wrong for name in now.names])
        odds = log_odds(now.votes, now.standing)
        self.errors.append(np.stack([odds, now.doubts, now.near, wrong, now.standing], axis=1)[known])
        sizes = self.queue.tree.sums(known.astype(float))
        nodes = np.flatnonzero(sizes > 1)
        nodes = nodes[:: max(1, len(nodes) // 100)]
        if len(nodes):
            members = [truth[found[known[found]]] for found in map(self.queue.tree.members, nodes.tolist())]
            outside = [1 - max(Counter(m.tolist()).values()) / len(m) for m in members]
            outside = [o * len(m) / (len(m) - 1) for o, m in zip(outside, members, strict=True)]
            self.nodes.append(np.column_stack([self.queue.features(nodes, now, known), outside]))


@dataclass(frozen=True)
class Records:
    """Observations of a review of one set; every moment counts alike."""

    errors: np.ndarray
    error_weights: np.ndarray
    nodes: np.ndarray
    node_weights: np.ndarray
    moments: tuple[np.ndarray, ...]


def record(name: str, options: argparse.Namespace, work: Path) -> Records:
    """Review one set and note what the models see."""
    reference = read_reference(options.data, name).drawn(0)
    folder = built(name, reference, 0, options, work)
    learner = Recorder.of(folder / "stages")
    learner.errors, learner.nodes, learner.annotator = [], [], None
    learner.queue = Queue(learner.rows, learner.fitted, by=options.order)
    annotator = Annotator(
        folder,
        reference,
        mistakes=0.0,
        seed=0,
        are_given=not options.found,
        order=options.order,
        learner=learner,
    )
    learner.annotator = annotator
    learner.note(learner.last)
    annotator.work()
    step = max(1, len(learner.errors) // 40)
    errors, nodes = learner.errors[::step], learner.nodes[::step]
    weights = [np.full(len(part), 1 / max(len(part), 1) / len(parts)) for parts in (errors, nodes) for part in parts]
    return Records(
        np.vstack(errors),
        np.concatenate(weights[: len(errors)]),
        np.vstack(nodes),
        np.concatenate(weights[len(errors) :]),
        tuple(errors),
    )


def fitted_on(records: Mapping[str, Records]) -> dict[str, dict[str, float]]:
    """Fit both models on some sets; the spreads are those of models that were fitted on all but one, on that one."""
    sets = list(records.values())
    slopes, constant = error_model(sets)
    levels, within = [], []
    for name, held in records.items():
        others = [r for other, r in records.items() if family(other) != family(name)]
        level, between = strays(held, *error_model(others))
        levels.append(level)
        within.append(between)
    nodes = np.vstack([r.nodes for r in sets])
    shares, weights = nodes[:, 5], 1000 * np.concatenate([r.node_weights for r in sets])
    both = np.concatenate([weights * shares, weights * (1 - shares)])
    is_outside = np.repeat([1, 0], len(nodes))
    exceptions = LogisticRegression(C=10, max_iter=5000).fit(
        np.tile(nodes[:, :5], (2, 1)), is_outside, sample_weight=both
    )
    names = ("cohesion", "log_size", "agreement", "leading_share", "votes_against")
    numbers = {**dict(zip(("log_odds", "doubt", "nearness"), slopes.tolist(), strict=True)), "constant": constant}
    # of so few sets the spread itself is uncertain: Student's t in place of the normal distribution
    wider = float(student.ppf(0.9, len(sets) - 1) / norm.ppf(0.9))
    numbers |= {"between_sets": wider * float(np.sqrt(np.mean(np.square(levels))))}
    numbers |= {"between_groups": float(np.sqrt(max(np.mean(within), 0.01)))}
    return {
        "error": {name: round(value, 3) for name, value in numbers.items()},
        "exceptions": {
            **{name: round(float(value), 3) for name, value in zip(names, exceptions.coef_[0], strict=True)},
            "constant": round(float(exceptions.intercept_[0]), 3),
        },
    }


def error_model(sets: Sequence[Records]) -> tuple[np.ndarray, float]:
    """Return slopes within sets and the mean constant: sets differ in how many are wrong more than in what tells which.

    A mark that would count against what it means (the build's doubt, negatively) is left out.
    """
    own = np.vstack([np.eye(len(sets))[[i]].repeat(len(r.errors), axis=0) for i, r in enumerate(sets)])
    marks, wrong = np.vstack([r.errors[:, :3] for r in sets]), np.concatenate([r.errors[:, 3] for r in sets])
    weights = 1000 * np.concatenate([r.error_weights for r in sets])
    kept = np.array([True, True, True])
    while True:
        model = LogisticRegression(C=10, max_iter=5000)
        model.fit(np.column_stack([marks * kept, 3 * own]), wrong, sample_weight=weights)
        slopes = model.coef_[0, :3] * kept
        if slopes[1] >= 0:
            return slopes, float(np.ravel(model.intercept_)[0] + 3 * model.coef_[0, 3:].mean())
        kept[1] = False


def strays(records: Records, slopes: np.ndarray, constant: float) -> tuple[float, float]:
    """Return how far a set's level lies from a model's, and the variance of the level between its groups."""
    odds, wrong = records.errors[:, :3] @ slopes + constant, records.errors[:, 3]
    weights = 1000 * records.error_weights

    def loss(level: np.ndarray) -> float:
        return float(weights @ np.logaddexp(0, np.where(wrong > 0, -1, 1) * (odds + level[0])))

    level = float(minimize(loss, [0.0], bounds=[(-4, 4)]).x[0])
    between = []
    for moment in records.moments:
        p = expit(moment[:, :3] @ slopes + constant + level)
        groups = np.unique(moment[:, 4], return_inverse=True)[1]
        rest, room = np.bincount(groups, moment[:, 3] - p), np.bincount(groups, p * (1 - p))
        between.append((rest**2 - room).sum() / (room**2).sum())
    return level, float(np.mean(between))


def family(name: str) -> str:
    """Return what the levels of one set share: its names."""
    return name.partition(" ")[0]


def fit(options: argparse.Namespace, work: Path, out: Path) -> None:
    """Fit the coefficients on all sets, write them, and print the efforts with those fitted without each set."""
    records = {name: record(name, options, work) for name in options.sets.split(",")}
    kind, kept = "found" if options.found else "given", yaml.safe_load(COEFFICIENTS.read_text(encoding="utf-8"))
    whole = {**kept, kind: fitted_on(records)}
    head = "# Fitted by benchmarks/review_effort.py --fit, for groups given by name and (--found) for groups found.\n"
    out.write_text(head + yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
    print(f"{out}: {json.dumps(whole[kind])}")
    for name in records:
        others = {other: r for other, r in records.items() if family(other) != family(name)}
        without = Coefficients.of(fitted_on(others))
        reference = read_reference(options.data, name).drawn(0)
        folder = built(name, reference, 0, options, work)

        def begin(
            folder: Path = folder, reference: Reference = reference, without: Coefficients = without
        ) -> Annotator:
            learner = Learner.of(folder / "stages", fitted=without)
            are_given, order = not options.found, options.order
            return Annotator(folder, reference, mistakes=0.0, seed=0, are_given=are_given, order=order, learner=learner)

        effort = begin().work()
        inside = [low <= wrong <= high for _, wrong, (_, low, high) in effort.left]
        print(
            f"{name}, fitted without it: 95% of names after {effort.until(0.95)}, interval holds {np.mean(inside):.0%}"
        )
        print(f"{name}, fitted without it: {estimates_text([judgements(begin, 0)])}", flush=True)


def estimates_text(found: Sequence[np.ndarray]) -> str:
    """Return AUROC, calibration error and how often the interval holds, of several :func:`judgements`."""
    a, e, i = (", ".join(f"{value:.2f}" for value in row) for row in np.nanmean(found, axis=0).T)
    return f"AUROC {a}; calibration error {e}; in the interval {i} (before, {DECISIONS} random, of the queue)"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HGLD_DATA"), help="folder of the sets; default: HGLD_DATA"
    )
    parser.add_argument("--encoder", required=True, help="as of build-hierarchy, such as sbert:FOLDER")
    parser.add_argument("--sets", default=",".join(SETS), help="names of sets, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mistakes", type=float, default=0.0, help="share of names that the annotator decides wrongly")
    parser.add_argument("--order", choices=("items", "names"), default="items", help="of the queue, as of hgld review")
    parser.add_argument("--found", action="store_true", help="groups are found, not given by name")
    parser.add_argument("--work", type=Path, help="folder of the builds; default: a temporary one")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="fit the coefficients and write them to FILE")
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the folder of the sets: --data DIR, or HGLD_DATA")
    return options


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    options = arguments()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        if options.fit:
            fit(options, work, options.fit)
            return
        print("| set | way | 80% of names | 90% | 95% | 80% of items | 90% | 95% |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        ratios, inside, seconds, efforts = [], [], [], list[Effort]()
        estimates: dict[str, list[np.ndarray]] = {}
        for name in options.sets.split(","):
            table = {arm.title: arm for arm in arms(name, options, work, estimates)}
            for arm in table.values():
                print(f"| {name} | {arm.title} | {' | '.join([*arm.cells(), *arm.cells(of_items=True)])} |", flush=True)
            ours = table["hgld review"]
            efforts += ours.efforts
            seconds += [s for effort in ours.efforts for s in effort.seconds]
            inside += [low <= wrong <= high for effort in ours.efforts for _, wrong, (_, low, high) in effort.left]
            if (other := table.get("c. margin and propagation")) is not None:
                pairs = [
                    (a.until(BARS[-1]), b.until(BARS[-1])) for a, b in zip(ours.efforts, other.efforts, strict=True)
                ]
                # With wrong answers a way may never come there.
                if shares := [a / b for a, b in pairs if a is not None and b]:
                    ratios.append((name, statistics.fmean(shares)))
        for name, ratio in ratios:
            print(f"{name}: 95% of names after {ratio:.2f} of the actions of (c)")
        if ratios:
            print(f"mean {statistics.fmean(r for _, r in ratios):.3f}, most {max(r for _, r in ratios):.2f}")
        held = f"{statistics.fmean(inside):.0%} of {len(inside)} moments"
        print(f"the 80% interval of the names still wrong holds the truth in {held}")
        means = [("mean", [np.nanmean(found, axis=0) for found in estimates.values()])] if estimates else []
        for name, found in [*estimates.items(), *means]:
            print(f"{name}: {estimates_text(found)}")
        print(f"screens looked at: {sum(effort.screens for effort in efforts)}")
        print(f"an answer takes {statistics.median(seconds) * 1e3:.0f} ms, at most {max(seconds) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
