"""Count the actions of a simulated annotator on the review page until a hierarchy is right.

Run with: python benchmarks/review_effort.py --data DIR --encoder sbert:FOLDER [--sets washington,...] [--seeds 5]
          [--mistakes .05] [--order names] [--found] [--oracle .9] [--work DIR]

DIR has datasets of names with a reference grouping (``HGLD_DATA``). ``hgld build-hierarchy --classes`` builds every
dataset, with the reference's group names (``--into``) unless ``--found`` is given. The simulated annotator knows the
reference and sends requests to the review server. An action is a request, a postponed screen included:

* One action moves a name that belongs to another group.
* One action puts the remaining names of a block of similar names into a group.
* One action accepts the remaining names of a screen.

The table also counts keys and clicks. A name takes a click, unless the page put the cursor on it. A block takes
a click on its line left of the names, which selects it. A group among the first 35 of the screen takes one key.
Other groups take ``0``, and in its list a digit, after the first letters of a word if necessary. A new group
takes ``+``, its name and Enter; Enter accepts. Instead, one click may move a single name into one of the four
groups in its row, or a block into one of the two groups beside its line. The annotator decides about the name
under the cursor, or its block, if it is wrong, and otherwise about the block or name that corrects most.

A name is right if it is in its reference group. Without predefined names (``--found``), machine-made groups are first
matched to reference groups one to one, so that most names are right. The tables show the number of actions, as a share
of the names, until 80, 90 and 95% of the names (or items) are right. The baseline is margin sampling by a logistic
regression. It asks the names with the smallest difference between the two most probable groups, one name per action, 1%
of the names at a time. It has the review's evidence and examples. A name takes one key if its group is among the 35
most probable.

With ``--oracle``, a simulated language model behind ``--propose`` first answers every question. The given share of its
answers is right. A wrong answer is one of the three other groups whose names are most similar. The model errs again in
half of the triplets about names that it placed wrongly.

The first seed uses all names. Every other seed chooses a random nine tenths of the names. With ``--mistakes``, the seed
also chooses that share of the names, and the annotator decides them wrongly.
"""

import argparse
import contextlib
import json
import math
import re
import statistics
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from measured import head, match_groups, row, run_hgld  # a module beside this script
from name_sets import SETS, names_parser, rows_of
from starlette.testclient import TestClient

from hgld.local_server import TOKEN_HEADER
from hgld.pipelines.hierarchy.groups.regression import group_shares
from hgld.pipelines.hierarchy.review.journal import Journal
from hgld.pipelines.hierarchy.review.learner import Learner
from hgld.pipelines.hierarchy.review.propose import propose
from hgld.pipelines.hierarchy.review.queue import Queue
from hgld.pipelines.hierarchy.review.server import application
from hgld.pipelines.hierarchy.review.state import Review
from hgld.pipelines.hierarchy.review.tables import BuildTables, Thumbnails

BARS = (0.8, 0.9, 0.95)
DRAWN = 0.9
MARGIN = "margin sampling"
KEYED = 35  # groups of a screen with a digit or letter key
NEAR, AROUND = 4, 2  # groups in the row of a name, and beside the line of a block
MOST_LISTED = 9  # groups with a digit key in the list of groups
EXCEPTION = 1.3  # keys for a name that is moved before its block: every other one needs a click
WORD, WITH_DIGIT = re.compile(r"\b\w"), re.compile(r"\d")  # the first letter of a word; a label with a digit
ERRS_AGAIN = 0.5  # share of wrong triplets about names that the model placed wrongly
TOKEN = "benchmark"  # token of the review page; requests bypass the network


# -- the sets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """Distinct names with their reference groups and numbers of items."""

    names: tuple[str, ...]
    groups: tuple[str, ...]
    items: tuple[int, ...]

    def drawn(self, seed: int) -> "Reference":
        """Return a random nine tenths of the names in random order; for seed 0 all names."""
        order = np.random.default_rng(seed).permutation(len(self.names)).tolist()
        order = order[: round(DRAWN * len(order))] if seed else order
        return Reference(*(tuple(column[i] for i in order) for column in (self.names, self.groups, self.items)))


def read_reference(data: Path, name: str) -> Reference:
    """Read a dataset; a name that occurs twice counts once, with its first group."""
    column, level = SETS[name][1:]
    told = [
        (row[column].replace("-", " "), row[level].replace("-", " "), int(row.get("n_landmarks") or 1))
        for row in rows_of(data, name)
    ]
    found: dict[str, tuple[str, int]] = {}
    for text, group, items in told:
        first = found.get(text, (group, 0))
        found[text] = (first[0], first[1] + items if name == "grocery" else max(first[1], items))
    return Reference(tuple(found), tuple(g for g, _ in found.values()), tuple(i for _, i in found.values()))


def build(reference: Reference, out: Path, encoder: str, *, are_given: bool, tops: int = 0) -> Path:
    """Build a dataset's hierarchy with the command, with a level above the groups if it has ``tops`` classes."""
    out.mkdir(parents=True)
    names = pl.DataFrame({"name": reference.names, "count": reference.items})
    names.write_csv(out / "names.csv")
    groups = sorted(set(reference.groups))
    pl.DataFrame({"name": groups}).write_csv(out / "groups.csv")
    counts = [0 if are_given else len(groups), *[tops] * bool(tops)]
    flags = ["--levels", "item,group,top"] if tops else []
    flags += ["--into", str(out / "groups.csv")] if are_given else []
    flags += ["--groups", ",".join(map(str, counts))] if any(counts) else []
    classes = out / "names.csv"
    run_hgld("build-hierarchy", "--classes", classes, "--out", out / "build", "--encoder", encoder, *flags)
    return out / "build"


def built(name: str, reference: Reference, seed: int, options: argparse.Namespace, work: Path) -> Path:
    """Return the folder of a dataset's build; build it first if necessary."""
    folder = work / name.replace(" ", "-") / str(seed) / ("found" if options.found else "given")
    if not (folder / "build" / "provenance.json").is_file():
        build(reference, folder, options.encoder, are_given=not options.found)
    return folder / "build"


# -- the annotator -------------------------------------------------------------------------------------------------


@dataclass
class Effort:
    """Numbers of actions until shares of names and items were right, and response times of the server."""

    names: int
    items: int
    history: list[tuple[int, int, float, float]] = field(default_factory=list)  # actions, keys, shares that are right
    seconds: list[float] = field(default_factory=list)
    screens: int = 0  # screens that the annotator saw

    def until(self, bar: float, *, of_items: bool = False, keys: bool = False) -> float | None:
        """Return the number of actions (or keys), as a share of the names, until a share of names is right; or None."""
        reached = (count[keys] for *count, names, items in self.history if (items if of_items else names) >= bar)
        return next((count / self.names for count in reached), None)

    @property
    def right(self) -> float:
        """The smaller share that is right now, of the names and of the items."""
        return min(self.history[-1][2:])


class Annotator:
    """A person who knows the reference and works through the page's interface.

    Args:
        folder: folder of the build.
        reference: the right groups.
        mistakes: share of the names that the annotator decides wrongly.
        seed: seed of the mistakes.
        are_given: whether the groups are predefined by the reference.
        order: order of the queue.
        oracle: share of right answers of a language model whose votes the review counts; None: no model.
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
        oracle: float | None = None,
    ) -> None:
        tables = BuildTables(folder)
        file = Path(tempfile.mkdtemp(dir=folder)) / "decisions.yaml"  # each simulated annotator needs a separate file
        learner = Learner.of(folder / "stages")
        queue = Queue(learner.rows, by=order)
        # maps cleaned names to the spelling of their items
        self.truth = self._references(tables, reference)
        self.target, self.start = {**self.truth}, tables.place
        if not are_given:
            self._match({name: tables.labels[group] for name, group in tables.place.items()})
        others = () if oracle is None else (self._propose(folder, learner, oracle, seed),)
        review = Review(tables, Journal(file, "simulated", "annotator"), others, Thumbnails(None), learner, queue)
        self._client = TestClient(
            application(review, TOKEN), base_url="http://127.0.0.1:8000", headers={TOKEN_HEADER: TOKEN}
        )
        now = self._state()
        rows, self._revision, self._actions = now["names"], now["revision"], 0
        self._keys, self._decided, self._cursor, self._predefined = 0, 0, "", now["predefined"]
        self._doubt = {row[0]: row[6] for row in rows}
        self.place: dict[str, str | None] = {row[0]: row[5] for row in rows}
        rng = np.random.default_rng(seed)
        groups = sorted(set(self.target.values()))
        self.says = {
            name: str(rng.choice([g for g in groups if g != target]))
            if rng.random() < mistakes and len(groups) > 1
            else target
            for name, target in sorted(self.target.items())
        }
        self._are_given = are_given
        self._made = {*now["groups"]} | (set(groups) if are_given else set())
        sizes = {row[0]: row[1] for row in rows}
        self.weight = sizes
        self.effort = Effort(len(self.target), sum(sizes[name] for name in self.target))
        self._note()

    @staticmethod
    def _references(tables: BuildTables, reference: Reference) -> dict[str, str]:
        known = dict(zip(reference.names, reference.groups, strict=True))
        raw = {spelling: name for name in tables.place for spelling in [name, *tables.spellings(name)]}
        return {raw[text]: group for text, group in known.items() if text in raw}

    def _match(self, place: Mapping[str, str]) -> None:
        """Match machine-made groups to reference groups one to one, so that most names are right."""
        shared = Counter((group, place[name]) for name, group in self.truth.items())
        taken = {group: label for group, label in match_groups(shared).items() if shared[group, label]}
        labels = {*place.values()}
        free = {group: group if group not in labels else f"{group} (new)" for group in self.truth.values()}
        self.target = {name: taken.get(group, free[group]) for name, group in self.truth.items()}

    def _propose(self, folder: Path, learner: Learner, right: float, seed: int) -> Path:
        """Ask the simulated model for votes; return their file."""
        rows = dict(zip(learner.names, learner.rows, strict=True))
        groups = sorted(set(self.target.values()))
        sums = {g: np.sum([rows[name] for name, of in self.target.items() if of == g], axis=0) for g in groups}
        means = np.stack([sums[g] / np.linalg.norm(sums[g]) for g in groups])
        rng, votes = np.random.default_rng(seed), dict[str, str]()
        for name, target in sorted(self.target.items()):
            nearest = [groups[i] for i in np.argsort(-(means @ rows[name])) if groups[i] != target]
            votes[name] = target if rng.random() < right else str(rng.choice(nearest[:3]))
        rng, erring = np.random.default_rng([seed, 1]), set[str]()
        for name, target in sorted(self.target.items()):
            rate = (1 - right) * (1 - ERRS_AGAIN) / right if votes[name] == target else ERRS_AGAIN
            erring |= {name} if rng.random() < rate else set()
        with oracle_server(votes, self.target, erring) as url:
            return propose(folder, url, "oracle", requests=10_000).file

    # -- requests -------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        answer = self._client.get("/api/state")
        answer.raise_for_status()
        self._queue = answer.json()["queue"]
        return answer.json()

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        answer = self._client.post(path, json=body)
        self.effort.seconds.append(time.perf_counter() - began)
        if answer.status_code != 200:
            raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text[:500]} to {str(body)[:500]}")
        return answer.json()

    def _decide(self, *decisions: dict[str, Any]) -> None:
        """Take one action and read its effect from the server."""
        told = self._post("/api/decide", {"revision": self._revision, "decisions": list(decisions)})
        self._revision, self._actions, self._decided = told["revision"], self._actions + 1, self._decided + 1
        self.place |= {name: state[0] for name, state in told["names"].items()}
        self._doubt |= {name: state[1] for name, state in told["names"].items()}
        self._queue = told["queue"]
        self._note()

    def _note(self) -> None:
        right = {name for name, target in self.target.items() if self.place[name] == target}
        weight = sum(self.weight[name] for name in right)
        shares = len(right) / self.effort.names, weight / self.effort.items
        self.effort.history.append((self._actions, self._keys, *shares))

    # -- work -----------------------------------------------------------------------------------------------------

    def work(self) -> Effort:
        """Work on the queue until 95% of names and items are right, or nothing is left.

        Nothing is left if the queue is empty, or if the next screen was postponed since the last decision. An annotator
        who makes mistakes may then have fewer names right.
        """
        put_off: set[tuple[int, str]] = set()
        while self.effort.right < BARS[-1]:
            screen = next(iter(self._queue), None)
            if screen is None or (self._decided, str(screen["names"])) in put_off:
                break
            put_off.add((self._decided, str(screen["names"])))
            self.effort.screens += 1
            self._sort(screen)
        return self.effort

    def _to(self, names: Sequence[str], group: str) -> None:
        """Put names into a group with one action."""
        action = {"action": "move", "names": list(names), "to": group}
        if group not in self._made:
            action = {"action": "new", "names": list(names), "to": group}
            self._made.add(group)
        self._decide(action)

    def _sort(self, screen: dict[str, Any]) -> None:
        """Move blocks of names to their groups; then accept the remaining names."""
        names = screen["names"]
        left = [name for name in names if name in self.says]
        offered = set[str]()
        self._land(left, offered)
        while left:
            if all(self.place[name] == self.says[name] for name in left):
                self._keys += 1
                groups: dict[str, list[str]] = {}
                for name in left:
                    groups.setdefault(self.says[name], []).append(name)
                self._decide(*({"action": "accept", "names": n, "group": g} for g, n in groups.items()))
                return
            block, group = self._best(screen["blocks"], names, left)
            others = [[name] for name in block if self.says[name] != group]
            for part in [*others, [name for name in block if self.says[name] == group]]:
                self._press(part, screen, left)
                left = [name for name in left if name not in part]
                self._land(left, offered)  # the page does not wait for the server's new probabilities
                self._to(part, self.says[part[0]])
            if self.effort.right >= BARS[-1]:
                return
        if any(name not in self.says for name in names):
            self._keys, self._actions = self._keys + 1, self._actions + 1
            self._queue = self._post("/api/skip", {"names": names})["queue"]

    def _land(self, left: Sequence[str], offered: set[str]) -> None:
        """Put the cursor where the page does: on the name most likely to be wrong, on names passed over last."""
        self._cursor = max(left, key=lambda name: (name not in offered, self._doubt[name]), default="")
        offered.add(self._cursor)

    def _press(self, names: Sequence[str], screen: Mapping[str, Any], left: Sequence[str]) -> None:
        """Count the keys and clicks that select names of a screen and give them a group."""
        group, targets = self.says[names[0]], screen["targets"]
        if any(group == targets[i] for i in self._near(names, screen, left)):
            self._keys += 1
            return
        if len(names) > 1 or self._cursor not in names:
            self._cursor, self._keys = names[0], self._keys + 1
        proposed = (label for one in self._queue for label in one["targets"])
        labels = sorted({*self._predefined, *proposed, *(label for label in self.place.values() if label is not None)})
        if group in targets[:KEYED]:
            self._keys += 1
        elif group in labels:
            self._keys += 1 + listed(group, labels, targets[:KEYED], targets[KEYED:])
        else:
            self._keys += 2 + len(group)

    def _near(self, names: Sequence[str], screen: Mapping[str, Any], left: Sequence[str]) -> list[int]:
        """Return the groups that one click moves the names of a screen into, as indices of its targets."""
        shown, targets, most = screen["names"], screen["targets"], NEAR if len(names) == 1 else AROUND
        ranges = [*screen["blocks"], *((i, i + 1, near) for i, near in enumerate(screen["near"]))]
        fitting = ((i - j, near) for i, j, near in ranges if [n for n in shown[i:j] if n in left] == [*names])
        _, near = max(fitting, default=(0, []))
        return [i for i in near if any(self.place[name] != targets[i] for name in names)][:most]

    def _best(
        self, blocks: Sequence[Sequence[Any]], names: Sequence[str], left: Sequence[str]
    ) -> tuple[list[str], str]:
        """Return the block, and its group, of the plan with the fewest keys: at the cursor, or where most is wrong."""
        place = {name: i for i, name in enumerate(left)}
        within = {tuple(sorted(place[n] for n in names[start:stop] if n in place)) for start, stop, _ in blocks}
        nested = sorted(
            {(b[0], b[-1] + 1) for b in within if len(b) > 1} | {(0, len(left))}, key=lambda b: (b[0], -b[1])
        )
        wrong = [self.place[name] != self.says[name] for name in left]
        _, chosen = self._plan(nested, 0, len(left), wrong, left)

        def use(option: tuple[int, int, str]) -> int:
            start, stop, group = option
            return sum(wrong[start:stop]) - sum(self.says[name] != group for name in left[start:stop])

        at = place[self._cursor]
        start, stop, group = next((one for one in chosen if one[0] <= at < one[1]), max(chosen, key=use))
        if start <= at < stop and self.says[self._cursor] != group:  # an exception in its block
            return [self._cursor], self.says[self._cursor]
        return list(left[start:stop]), group

    def _plan(
        self, blocks: Sequence[tuple[int, int]], start: int, stop: int, wrong: Sequence[bool], left: Sequence[str]
    ) -> tuple[float, list[tuple[int, int, str]]]:
        """Return the fewest keys, without selecting blocks, that correct a range of names; and its blocks."""
        inside = [b for b in blocks if start <= b[0] and b[1] <= stop and b != (start, stop)]
        cost, chosen, at = 0.0, list[tuple[int, int, str]](), start
        while at < stop:
            child = next((b for b in inside if b[0] == at), (at, at + 1))
            if child[1] - child[0] > 1:
                more, found = self._plan(inside, *child, wrong, left)
            else:
                more, found = (1, [(*child, self.says[left[at]])]) if wrong[at] else (0, [])
            cost, chosen, at = cost + more, chosen + found, child[1]
        if stop - start > 1:
            (group, count), *_ = Counter(self.says[name] for name in left[start:stop]).most_common(1)
            if (whole := 1 + EXCEPTION * (stop - start - count)) < cost:
                return whole, [(start, stop, group)]
        return cost, chosen


# -- the language model ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def oracle_server(votes: Mapping[str, str], target: Mapping[str, str], erring: Collection[str]) -> Iterator[str]:
    """Run a chat server that simulates a model; yield its URL.

    Args:
        votes: the group that the model places each name in.
        target: the right group of each name.
        erring: names about which the model answers triplets wrongly.
    """

    def choose(name: str, groups: Sequence[Mapping[str, Any]]) -> int:
        right = sum(group["number"] for group in groups if group["label"] == target.get(name))
        return (1, 2, 1)[right] if name in erring else right

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            listed = body["response_format"]["json_schema"]["name"]
            data = json.loads(body["messages"][1]["content"])
            number = {group["label"]: group["number"] for group in data.get("groups", ())}
            if listed == "triplets":
                said = [{"name": n["number"], "group": choose(n["name"], n["groups"])} for n in data["names"]]
            elif listed == "names":
                said = [{"name": n["number"], "group": number.get(votes.get(n["name"]), 0)} for n in data["names"]]
            elif listed == "groups":
                said = [{"group": n, "name": label, "description": ""} for label, n in number.items()]
            else:
                said = [{"group": n, "class": "thing"} for n in number.values()]
            message = {"role": "assistant", "content": json.dumps({listed: said})}
            answer = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


# -- margin sampling ------------------------------------------------------------------------------------------------


def margin_sampling(annotator: Annotator, learner: Learner, labels: Mapping[int, str]) -> Effort:
    """Ask the names with the smallest margin of a logistic regression, 1% at a time; answered names teach it.

    Args:
        annotator: the annotator, for the answers.
        learner: for the rows of names and of the groups' examples.
        labels: labels of the build's groups.
    """
    names = [name for name in learner.names if name in annotator.target]
    index = {name: i for i, name in enumerate(learner.names)}
    rows = learner.rows[[index[name] for name in names]]
    texts, of = learner.example_rows, learner.example_of
    groups = sorted({labels[g] for g in of} | set(annotator.says.values()) | set(annotator.target.values()))
    number = {group: k for k, group in enumerate(groups)}
    starts = np.array([number[labels[g]] for g in of])
    truth, says = (np.array([number[of_name[n]] for n in names]) for of_name in (annotator.target, annotator.says))
    items = np.array([annotator.weight[name] for name in names])
    effort, answered, keys = Effort(len(names), int(items.sum())), list[int](), 0
    while True:
        examples, known = np.vstack([texts, rows[answered]]), np.append(starts, says[answered]).astype(int)
        shares = group_shares(rows, examples, known, len(groups))
        guess = shares.argmax(1)
        guess[answered] = says[answered]
        right = guess == truth
        effort.history.append((len(answered), keys, right.mean(), items[right].sum() / items.sum()))
        if len(answered) >= len(names) or effort.right >= BARS[-1]:
            return effort
        rest = np.setdiff1d(np.arange(len(names)), answered)
        best = np.sort(shares[rest], 1)
        asked = rest[np.argsort(best[:, -1] - best[:, -2])[: max(1, len(names) // 100)]].tolist()
        for i in asked:
            near = [groups[k] for k in np.argsort(-shares[i])]
            keyed, following = near[:KEYED], near[KEYED : KEYED + MOST_LISTED]
            group = groups[says[i]]
            keys += 1 if group in keyed else 1 + listed(group, groups, keyed, following)
        answered += asked


def listed(label: str, labels: Sequence[str], keyed: Collection[str], first: Sequence[str]) -> int:
    """Return the number of keys that choose a label in the page's list of groups.

    A digit chooses among the first nine labels of the list, if no label contains a digit. Otherwise letters are typed
    until the label comes first, and then Enter. The list begins with ``first``, and labels of ``keyed`` come last.

    The letters begin the label or one of its words. Then exact matches come first, then labels and words that begin
    with the letters, then other matches. Labels of ``keyed`` come last among matches of their kind.
    """
    rest = [one for one in sorted(labels) if one not in keyed and one not in first]
    shown = 1 if any(WITH_DIGIT.search(one) for one in labels) else MOST_LISTED
    if shown > 1 and label in [*first, *rest][:shown]:
        return 1
    texts = [(one.lower(), one in keyed) for one in sorted(labels)]
    words = {text: [found.start() for found in WORD.finditer(text)] for text, _ in texts}

    def rank(text: str, has_digit: bool, letters: str) -> float:
        if text == letters:
            return 0
        begins = any(text.startswith(letters, at) for at in words[text])
        place = 1 if text.startswith(letters) else 2 if begins else 3 if letters in text else math.inf
        return 2 * place + has_digit

    text = label.lower()
    for count in range(1, len(text)):
        for start in words[text]:
            letters = text[start : start + count]
            best = sorted(texts, key=lambda one: rank(*one, letters))[:shown]
            if text in [one for one, _ in best]:
                return count + 1
    return len(text) + 1


# -- the table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """One strategy on one dataset, over the seeds."""

    title: str
    efforts: tuple[Effort, ...]

    def cells(self, *, of_items: bool = False) -> list[str]:
        return [mean_of([effort.until(bar, of_items=of_items) for effort in self.efforts]) for bar in BARS]

    @property
    def keys(self) -> str:
        """Keys per name until 95% of the names are right."""
        return mean_of([effort.until(BARS[-1], keys=True) for effort in self.efforts])


def mean_of(values: Sequence[float | None]) -> str:
    """Return a mean with its standard deviation, or the number of runs that never reached the bar."""
    found = [value for value in values if value is not None]
    missed = f" ({len(values) - len(found)} of {len(values)} never)" if len(found) < len(values) else ""
    if not found:
        return "never"
    spread = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.3f}{spread}{missed}"


def arms(name: str, options: argparse.Namespace, work: Path) -> Iterator[Arm]:
    """Yield the strategies for one dataset."""
    reference = read_reference(options.data, name)
    found: dict[str, list[Effort]] = {}
    for seed in range(options.seeds):
        shuffled = reference.drawn(seed)
        folder = built(name, shuffled, seed, options, work)
        annotator = Annotator(
            folder,
            shuffled,
            mistakes=options.mistakes,
            seed=seed,
            are_given=not options.found,
            order=options.order,
            oracle=options.oracle,
        )
        learner, tables = Learner.of(folder / "stages"), BuildTables(folder)
        found.setdefault(MARGIN, []).append(margin_sampling(annotator, learner, tables.labels))
        found.setdefault("hgld review", []).append(annotator.work())
    for title, efforts in found.items():
        yield Arm(title, tuple(efforts))


def arguments() -> argparse.Namespace:
    parser = names_parser(__doc__, seeds=5, mistakes=0.0)
    parser.add_argument(
        "--order", choices=("items", "names"), default="items", help="order of the queue, like --order of hgld review"
    )
    parser.add_argument("--found", action="store_true", help="let hgld find the groups, in place of predefined groups")
    parser.add_argument("--oracle", type=float, help="share of right answers of a simulated language model")
    parser.add_argument("--work", type=Path, help="folder of the builds; default: a temporary folder")
    options = parser.parse_args()
    options.encoder = (options.encoder or ["lexical"])[-1]
    return options


def main() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    options = arguments()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        print(head("dataset", "strategy", "80% of names", "90%", "95%", "80% of items", "90%", "95%", "keys"))
        seconds, screens = list[float](), 0
        for name in options.sets.split(","):
            for arm in arms(name, options, work):
                print(row([name, arm.title, *arm.cells(), *arm.cells(of_items=True), arm.keys]), flush=True)
                seconds += [s for effort in arm.efforts for s in effort.seconds]
                screens += sum(effort.screens for effort in arm.efforts)
        print(f"screens seen: {screens}")
        print(f"a response takes {statistics.median(seconds) * 1e3:.0f} ms, at most {max(seconds) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
