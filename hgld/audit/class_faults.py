"""Classes that are one, classes that are two, and classes under the wrong parent.

Marks are taken in the model of the classes (:mod:`hgld.audit.class_model`) and among nearest items; probabilities
are those of :mod:`hgld.audit.posterior`, with halves of classes, joined classes and other parents as planted faults.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hgld.audit.class_model import ClassModel
from hgld.audit.posterior import planted_posterior

_MOST_FAULTS = 0.1  # of the classes: more faults of a kind are not believed
_NEAREST = 5  # classes that a class is compared with
_MOST_ITEMS = 200  # of a class that are compared item by item
_MOST_PLANTED = 400
_LEAST_ITEMS = 6  # of a class that is cut in two, here or in truth
_NEAR = 3  # nearest items that are counted
_VOTERS = 10
_ROUNDS = 20

Kind = Literal["one", "two", "parent"]


@dataclass(frozen=True, eq=False)
class ClassFault:
    """A class, or two, that are probably not what the hierarchy says.

    Attributes:
        kind: ``one``: the class and ``other`` are one; ``two``: the class is two; ``parent``: it belongs under
            ``other``, a class of the next coarser level.
        level: column of the class's level.
        label: the class.
        other: see ``kind``; -1 for ``two``.
        score: how much it is like planted faults, to rank by.
        probability: of the fault.
        evidence: measured marks by name.
        parts: indices of the items on either side: of both classes (one), of the two halves (two), of the class and
            of the proposed parent (parent).
    """

    kind: Kind
    level: int
    label: int
    other: int
    score: float
    probability: float
    evidence: dict[str, float]
    parts: tuple[np.ndarray, np.ndarray]


def find_class_faults(embeddings: np.ndarray, classes: np.ndarray, ancestors: np.ndarray) -> Iterator[ClassFault]:
    """Find faults of the hierarchy at every level.

    Args:
        embeddings: (N, D) unit rows.
        classes: (N,) finest class of every item.
        ancestors: (C, L) class of each finest class at every level; column 0 is 0 ... C - 1.

    Yields:
        all that was examined, also what is unlikely a fault; nothing of a level with too few classes.
    """
    for level in range(ancestors.shape[1]):
        labels = ancestors[classes, level]
        model = ClassModel.fit(embeddings, labels)
        items = _items_of(labels)
        near = _nearest_pairs(model, items)
        yield from _one(model, items, near, level)
        yield from _two(model, items, near, level)
        if level + 1 < ancestors.shape[1]:
            above = np.zeros(len(model.counts), np.int64)
            above[ancestors[:, level]] = ancestors[:, level + 1]
            yield from _parents(model, above, items, classes, ancestors, level)


def _items_of(labels: np.ndarray) -> list[np.ndarray]:
    """Return the indices of every class's items, at most :data:`_MOST_ITEMS` of them, drawn with seed 0."""
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(labels))[:-1])
    generator = np.random.default_rng(0)
    return [
        np.sort(generator.choice(group, _MOST_ITEMS, replace=False)) if len(group) > _MOST_ITEMS else group
        for group in groups
    ]


# -- one and two ------------------------------------------------------------------------------------------------------


def apartness(items: np.ndarray, in_second: np.ndarray) -> float:
    """Return how far two samples keep apart: 0 as halves of one, 1 if no item has a near one of the other sample.

    Schilling's statistic, the share of the :data:`_NEAR` nearest items that are of an item's own sample (Multivariate
    two-sample tests based on nearest neighbors, Journal of the American Statistical Association 1986), less its
    expectation for halves of one, divided by what is left.

    Args:
        items: (N, D).
        in_second: (N,) which of the two samples an item is in; each has 2 items at least.
    """
    count = len(items)
    squares = (items**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * items @ items.T
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, : min(_NEAR, count - 1)]
    own = (in_second[near] == in_second[:, None]).mean()
    sizes = np.bincount(in_second.astype(np.int64), minlength=2)
    expected = (sizes * (sizes - 1)).sum() / (count * (count - 1))
    return float((own - expected) / (1 - expected))


def _marks(model: ClassModel, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the marks of two sets of items as one class: log Bayes factor an item, how near they are to each other."""
    both = np.concatenate([first, second])
    ratio = model.log_ratio(model.items[first], model.items[second]) / (2 * len(first) * len(second) / len(both))
    return np.array([np.arcsinh(ratio), -apartness(model.items[both], np.arange(len(both)) >= len(first))])


def _one(model: ClassModel, items: list[np.ndarray], pairs: list[tuple[int, int]], level: int) -> Iterator[ClassFault]:
    found = np.array([_marks(model, items[a], items[b]) for a, b in pairs]).reshape(-1, 2)
    planted = np.array([_marks(model, *_halves(part)) for part in _chosen(items)]).reshape(-1, 2)
    most = _MOST_FAULTS * len(items) / max(len(pairs), 1)
    likely = planted_posterior(found, planted, most)
    for (a, b), marks, score, probability in zip(pairs, found, *likely, strict=True):
        if np.isfinite(score):
            parts = items[a], items[b]
            yield ClassFault("one", level, a, b, float(score), float(probability), _said(marks), parts)


def _said(marks: np.ndarray) -> dict[str, float]:
    return {"log Bayes factor an item": float(np.sinh(marks[0])), "kept apart": float(-marks[1])}


def _nearest_pairs(model: ClassModel, items: list[np.ndarray]) -> list[tuple[int, int]]:
    """Return pairs of classes with several items whose means are near, each pair once."""
    several = np.flatnonzero([len(part) > 1 for part in items])
    means = model.class_means()[several]
    squares = (means**2).sum(axis=1)
    count = min(_NEAREST, len(several) - 1)
    if count < 1:
        return []
    pairs = set()
    for row, mean in enumerate(means):
        distances = squares - 2 * means @ mean
        distances[row] = np.inf
        pairs |= {(min(row, int(p)), max(row, int(p))) for p in np.argpartition(distances, count - 1)[:count]}
    return [(int(several[a]), int(several[b])) for a, b in sorted(pairs)]


def _chosen(items: list[np.ndarray]) -> list[np.ndarray]:
    """Choose classes that can be cut in two, spread evenly over all."""
    large = [part for part in items if len(part) >= _LEAST_ITEMS]
    places = np.unique(np.linspace(0, len(large) - 1, min(_MOST_PLANTED, len(large))).astype(int))
    return [large[place] for place in places]


def _halves(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mixed = np.random.default_rng(0).permutation(part)
    return mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]


def _two(model: ClassModel, items: list[np.ndarray], pairs: list[tuple[int, int]], level: int) -> Iterator[ClassFault]:
    large = [label for label, part in enumerate(items) if len(part) >= _LEAST_ITEMS]
    cuts = {label: cut_in_two(_weighted(model, items[label])) for label in large}
    found = np.array([_cut_marks(model, items[label], cuts[label]) for label in large]).reshape(-1, 3)
    near = [pair for pair in pairs if set(pair) <= set(large)]
    planted = np.array(list(_joined_marks(model, items, large, near))).reshape(-1, 3)
    likely = planted_posterior(found, planted, _MOST_FAULTS)
    for label, marks, score, probability in zip(large, found, *likely, strict=True):
        if np.isfinite(score):
            parts = items[label][~cuts[label]], items[label][cuts[label]]
            said = _said(marks) | {"share of the smaller part": float(marks[2])}
            yield ClassFault("two", level, label, -1, float(score), float(probability), said, parts)


def _joined_marks(
    model: ClassModel, items: list[np.ndarray], large: list[int], near: list[tuple[int, int]]
) -> Iterator[np.ndarray]:
    """Yield marks of pairs of large classes that are joined and cut: near ones, and as many drawn at random."""
    generator = np.random.default_rng(0)
    near = [near[place] for place in generator.permutation(len(near))[: _MOST_PLANTED // 2]]
    pool = np.array(large)
    drawn = [tuple(generator.choice(pool, 2, replace=False)) for _ in near] if len(pool) > 1 else []
    for a, b in [*near, *drawn]:
        halves = [_halves(items[label])[0] for label in (a, b)]  # a joined class is then no larger than others
        joined = np.concatenate(halves)
        yield _cut_marks(model, joined, cut_in_two(_weighted(model, joined)))


def _weighted(model: ClassModel, part: np.ndarray) -> np.ndarray:
    """Return items with the dimensions in which classes differ counting most."""
    return model.items[part] * np.sqrt(model.between / (1 + model.between))


def _cut_marks(model: ClassModel, part: np.ndarray, cut: np.ndarray) -> np.ndarray:
    if min(cut.sum(), (~cut).sum()) < 2:
        return np.array([3.0, 0.0, 0.0])  # no cut: one class
    return np.append(_marks(model, part[~cut], part[cut]), min(cut.mean(), 1 - cut.mean()))


def cut_in_two(items: np.ndarray) -> np.ndarray:
    """Cut a set of items by 2-means, begun along its first principal axis: (N,) bool."""
    centred = items - items.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    cut = centred @ axes[0] > 0
    for _ in range(_ROUNDS):
        if not 0 < cut.sum() < len(cut):
            break
        first, second = centred[~cut].mean(axis=0), centred[cut].mean(axis=0)
        again = centred @ (second - first) > (second**2 - first**2).sum() / 2
        if (again == cut).all():
            break
        cut = again
    return cut


# -- parents ----------------------------------------------------------------------------------------------------------


def _parents(
    model: ClassModel,
    above: np.ndarray,
    items: list[np.ndarray],
    classes: np.ndarray,
    ancestors: np.ndarray,
    level: int,
) -> Iterator[ClassFault]:
    here = np.flatnonzero([len(part) > 0 for part in items])
    parents, own = np.unique(above[here], return_inverse=True)
    if len(parents) < 2:
        return
    table = _parent_table(model.class_means()[here], own, len(parents))
    rows = np.arange(len(here))
    judged = np.bincount(own)[own] > 1  # an only child says nothing of its parent
    others = table.sum(axis=2)
    others[rows, own] = -np.inf
    best = others.argmax(axis=1)
    found = _against(table, own, best)[judged]
    generator = np.random.default_rng(0)
    drawn = (own + generator.integers(1, len(parents), len(own))) % len(parents)
    rest = table.sum(axis=2)
    rest[rows, drawn] = -np.inf
    planted = _against(table, drawn, rest.argmax(axis=1))[judged]
    likely = planted_posterior(found, planted, _MOST_FAULTS)
    for row, marks, score, probability in zip(rows[judged], found, *likely, strict=True):
        if np.isfinite(score):
            label, parent = int(here[row]), int(parents[best[row]])
            under = np.flatnonzero(ancestors[classes, level + 1] == parent)[:_MOST_ITEMS]
            said = {"log odds in the model": float(marks[0]), "log odds among near classes": float(marks[1])}
            yield ClassFault(
                "parent", level, label, parent, float(score), float(probability), said, (items[label], under)
            )


def _against(table: np.ndarray, present: np.ndarray, proposed: np.ndarray) -> np.ndarray:
    """Return (C, 2) marks for the proposed parents against the present ones."""
    rows = np.arange(len(table))
    return table[rows, proposed] - table[rows, present]


def _parent_table(means: np.ndarray, own: np.ndarray, count: int) -> np.ndarray:
    """Return (C, P, 2) support of every class for every parent, by the model of parents and by near classes."""
    scores = ClassModel.fit(means, own).scores(np.arange(len(means)))
    scores -= scores.max(axis=1, keepdims=True)
    unit = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -np.inf)
    voters = np.argsort(-alike, axis=1, kind="stable")[:, : min(_VOTERS, len(means) - 1)]
    nearest = np.take_along_axis(alike, voters, axis=1)
    votes = np.exp((nearest - nearest[:, :1]) / 0.1)
    shares = np.zeros((len(means), count))
    np.add.at(shares, (np.arange(len(means))[:, None], own[voters]), votes / votes.sum(axis=1, keepdims=True))
    return np.stack([scores, np.log(shares + 0.1 * np.bincount(own, minlength=count) / len(own))], axis=2)
