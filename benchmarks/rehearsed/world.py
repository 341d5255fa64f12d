"""Synthetic landmarks of a rehearsal: their types, numbers of photographs, and entries in the wikis.

The counts at scale 1 are GLDv2's (docs/tutorials/h-gldv2.md has their sources).
The landmarks depend only on the seed and the scale.
"""

import csv
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from hgld.pipelines.hierarchy import sample

LANDMARKS = {"train": 203_094, "index": 101_302}
CLEAN_LANDMARKS, NAMES, SCORED = 81_313, 5_700, 1_129
IMAGES = {"train": 1_580_470, "index": 761_757, "test": 117_577}
PUBLIC = 379 / 1_129
FOUND = {"train": 129_100 / 203_094, "index": 68_100 / 101_302}  # share of landmarks with a class in the wikis
# minimum numbers of names and of scored images, so that groups and means are meaningful at small scales
LEAST_NAMES, LEAST_SCORED = 120, 112
SETS = ("train", "index")
LEVELS = ("landmark_id", "hierarchical_label", "natural_or_human_made")

MODIFIERS = """former,ruined,Gothic,Baroque,Romanesque,medieval,Roman,Ottoman,wooden,brick,stone,small,state,national,
municipal,private,public,royal,imperial,protected,listed,historic,abandoned,underground,coastal,alpine,urban,rural
""".replace("\n", "").split(",")
PLACES = ["", "in France", "in Germany", "in Italy", "in Japan", "in Norway", "in Poland", "of Bavaria", "of Scotland"]
ITEM, CATEGORY_ITEM, MERGED_ITEM, CLASS_ITEM = 20_000_000, 40_000_000, 60_000_000, 90_000_000
# Ways from a category to its item in the wikis, with their shares among landmarks that have a name.
ROADS = {"linked": 0.80, "stated": 0.06, "main topic": 0.05, "merged": 0.02, "moved": 0.03, "template": 0.04}
NOTHING = {"no item": 0.80, "no instance of": 0.12, "missing": 0.08}  # reasons for a missing name, with their shares
SEVERAL = 0.02  # share of the named landmarks with two classes
SYLLABLES = [
    "bel",
    "cor",
    "dun",
    "fal",
    "gar",
    "hel",
    "kar",
    "lin",
    "mar",
    "nor",
    "pel",
    "ros",
    "sal",
    "tor",
    "Åul",
    "žu",
]


@dataclass(frozen=True)
class Name:
    """A type of place in Wikidata: label, item, superclasses and group."""

    text: str
    item: str
    parents: tuple[str, ...]
    group: int


@dataclass(frozen=True)
class Landmarks:
    """The landmarks of a list, one row each.

    Attributes:
        place: number over both lists; titles and items are derived from it.
        name: index of the landmark's type, or -1 if the wikis have no type.
        second: index of a second type, or -1.
        road: index into ROADS + NOTHING: the way from the category to the item.
        images: number of photographs.
    """

    place: np.ndarray
    name: np.ndarray
    second: np.ndarray
    road: np.ndarray
    images: np.ndarray

    @property
    def labelled(self) -> np.ndarray:
        """Mask of the landmarks with exactly one name; the published rule labels only these."""
        return (self.name >= 0) & (self.second < 0)


@dataclass(frozen=True)
class World:
    """The landmarks of both lists at a scale."""

    scale: float
    seed: int

    def rng(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, round(self.scale * 1e6), *what])

    def count(self, full: int) -> int:
        return max(1, round(full * self.scale))

    @cached_property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """Label and top of every group of the sample that hgld ships."""
        rows = _table(sample.EXPECTED_GROUPS)
        return tuple(sorted({(row["group"], row["natural_or_human_made"]) for row in rows}))

    @cached_property
    def names(self) -> tuple[Name, ...]:
        """Types of places, most frequent first: the sample's types, then the same types with modifiers and places."""
        rows, known = _table(sample.EXPECTED_GROUPS), {row["label"]: row for row in _table(sample.GRAPH)}
        rng = self.rng(0)
        wanted = min(NAMES, max(LEAST_NAMES, round(NAMES * self.scale**0.5)))
        group_of = {label: number for number, (label, _) in enumerate(self.groups)}
        basic = [rows[i] for i in rng.permutation(len(rows))]
        anchor = {row["group"]: known[row["name"]] for row in rows if row["name"] in known}  # one class per group
        made: list[Name] = []
        for number, row in enumerate(basic):
            graph = known.get(row["name"])
            parents = (graph or anchor[row["group"]])["parents" if graph else "class_id"]
            item = graph["class_id"] if graph else f"Q{CLASS_ITEM + number}"
            made.append(Name(row["name"], item, tuple(filter(None, parents.split("|"))), group_of[row["group"]]))
        pairs = list(product(MODIFIERS, range(len(basic)), PLACES))
        for number, chosen in enumerate(rng.permutation(len(pairs))[: max(0, wanted - len(made))]):
            modifier, base, place = pairs[chosen]
            text = " ".join(filter(None, (modifier, made[base].text, place)))
            made.append(Name(text, f"Q{CLASS_ITEM + 1000 + number}", (made[base].item,), made[base].group))
        return tuple(made[:wanted])

    @cached_property
    def ancestors(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Label and superclasses of every class; the key is the class's item."""
        above = {
            row["class_id"]: (row["label"], tuple(filter(None, row["parents"].split("|"))))
            for row in _table(sample.GRAPH)
        }
        return above | {name.item: (name.text, name.parents) for name in self.names}

    @cached_property
    def landmarks(self) -> dict[str, Landmarks]:
        """Landmarks of each list; the lists share no place."""
        found, first = {}, 0
        for number, which in enumerate(SETS):
            rng, count = self.rng(1, number), self.count(LANDMARKS[which])
            frequency = 1 / np.arange(1, len(self.names) + 1) ** 0.8
            kinds = rng.choice(len(self.names), (2, count), p=frequency / frequency.sum())
            named = rng.random(count) < FOUND[which]
            road = np.where(named, _choose(rng, ROADS, count), len(ROADS) + _choose(rng, NOTHING, count))
            images = np.zeros(count, np.int64)
            seen = rng.permutation(count)[: self.count(CLEAN_LANDMARKS)] if which == "train" else np.arange(count)
            images[np.sort(seen)] = _long_tail(rng, len(seen), self.count(IMAGES[which]))
            several = named & (rng.random(count) < SEVERAL) & (kinds[0] != kinds[1])
            found[which] = Landmarks(
                first + np.arange(count),
                np.where(named, kinds[0], -1),
                np.where(several, kinds[1], -1),
                road,
                images,
            )
            first += count
        return found

    @cached_property
    def kinds(self) -> np.ndarray:
        """Type of every place, even if the wikis have no entry, because photographs show it."""
        told = np.concatenate([self.landmarks[which].name for which in SETS])
        return np.where(told < 0, self.rng(2).integers(0, len(self.names), len(told)), told)

    @cached_property
    def place_groups(self) -> np.ndarray:
        """Group of every place."""
        return np.array([name.group for name in self.names])[self.kinds]

    def title(self, place: int) -> str:
        """The title of a place's Commons category, without its namespace."""
        rest, words = place * 2_654_435_761 % 2**32, []
        for _ in range(2):
            rest, a = divmod(rest, len(SYLLABLES))
            rest, b = divmod(rest, len(SYLLABLES))
            words.append((SYLLABLES[a] + SYLLABLES[b]).capitalize())
        return f"{words[0]}, {words[1]}'s {self.names[self.kinds[place]].text} {place}"


def _table(path: object) -> list[dict[str, str]]:
    with open(str(path), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _choose(rng: np.random.Generator, shares: dict[str, float], count: int) -> np.ndarray:
    return rng.choice(len(shares), count, p=np.array(list(shares.values())) / sum(shares.values()))


def _long_tail(rng: np.random.Generator, count: int, total: int) -> np.ndarray:
    """Return sizes of classes, at least 1, that sum to ``total``: lognormal, so that few classes have most images."""
    weights = rng.lognormal(0.0, 1.2, count)
    edges = np.round(np.cumsum(weights) / weights.sum() * (total - count)).astype(np.int64)
    return 1 + np.diff(edges, prepend=0)
