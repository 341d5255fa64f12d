"""Doubt: for every placement the probability that it is wrong, and how many placements are wrong in all.

A placement is *wrong* if the group that people would give the name is not the one that most names of its group have;
in groups that were given, if it is another group than the given one. Nothing here sees such groups: a placement is
described by a few marks (:func:`marks`) that mean the same in any data,

* *margins*: the place of its simplified silhouette among those of all names, by the joint evidence, by every single
  evidence and by the spelling of names;
* *resamples*: clusterings anew, of every evidence with some of its axes left out and from other starts: how far the
  name's own group leads in the clusters that it falls into, and how well the group stays together;
* *words*: how many head nouns the group has, and how common the name's own is among them;
* the group's size; in given groups in place of it and of words, the confidence of the placement, and whether the name
  has its group's words;

and a logistic model turns them into a probability. Its coefficients are in ``doubt.yaml``, with what they were fitted
on (``benchmarks/hierarchy_doubt.py --fit``); they are read, never learnt, at a build.

What the report and the review's page say is said by :mod:`hgld.pipelines.hierarchy.review.learning.votes`, before
the first decision and after it; these probabilities are one of the things that it knows.

Taxonomies differ in how often such placements are wrong, and errors come in groups. So a file of coefficients also has
how much the model's level differs between taxonomies it was not fitted on, and between the groups of one, by which
:func:`still_wrong` widens its interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy.special import expit, logit, ndtr
from scipy.stats import rankdata
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from threadpoolctl import threadpool_limits

from ..encoders.head_noun import head_noun
from .kmeans import sums, unit

MODEL = Path(__file__).with_name("doubt.yaml")
DOUBTFUL = 0.5  # a placement is doubtful where it is more likely wrong than right
AXES = 64  # of an evidence's space, for margins and resamples
LEAST, MOST = 0.005, 0.995  # nothing that nobody looked at is certain


# -- the model ------------------------------------------------------------------------------------------------------


class Spreads(NamedTuple):
    """Standard deviations of the level of log-odds, between taxonomies and between groups.

    Attributes:
        between_sets: standard deviation of the log-odds' level between taxonomies.
        between_groups: that of the level between the groups of one taxonomy.
    """

    between_sets: float
    between_groups: float


@dataclass(frozen=True)
class Model:
    """A logistic model of marks.

    Attributes:
        marks: (mean, scale, coefficient) of every mark.
        intercept: the log-odds of a placement whose marks are all at their means.
        spreads: how far taxonomies and groups stray from it.
    """

    marks: Mapping[str, tuple[float, float, float]]
    intercept: float
    spreads: Spreads

    @staticmethod
    @cache
    def read(kind: str) -> "Model":
        """Read the model for groups that were ``found`` or ``given``, as it ships with hgld."""
        return Model.of(yaml.safe_load(MODEL.read_text(encoding="utf-8"))[kind])

    @staticmethod
    def of(stated: Mapping[str, Any]) -> "Model":
        """Return the model of one section of the file."""
        spreads = Spreads(*(float(stated[name]) for name in Spreads._fields))
        marks = {name: (float(m["mean"]), float(m["scale"]), float(m["weight"])) for name, m in stated["marks"].items()}
        return Model(marks, float(stated["intercept"]), spreads)

    def probabilities(self, found: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return (N,) probabilities of being wrong by the marks of N placements."""
        odds = self.intercept + sum(
            weight * (found[name] - mean) / scale for name, (mean, scale, weight) in self.marks.items()
        )
        return np.clip(expit(odds), LEAST, MOST)


@dataclass(frozen=True, eq=False)
class Given:
    """The groups that names were put into, and how sure the placement was.

    Attributes:
        labels: the names of the G groups; empty for the group of names that fit none.
        confidence: (N,) of the placements, 0..1.
    """

    labels: Sequence[str]
    confidence: np.ndarray


def wrong_probabilities(
    rows: np.ndarray,
    groups: np.ndarray,
    names: Sequence[str],
    *,
    blocks: Sequence[np.ndarray] = (),
    given: Given | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Return for every placement the probability that it is wrong, (N,) float32.

    A group of one gets the probability that such groups have, and no name is certain. The order of the names does not
    matter.

    Args:
        rows: (N, D) unit rows by which the names were grouped; a name of which nothing is known may have a zero row.
        groups: (N,) labels 0..G-1.
        names: the N names.
        blocks: the single evidences in the rows, (N, D_b) unit rows each, zero where unknown.
        given: the groups, where names were put into given ones; None: groups were found.
        seed: of the resamples.
    """
    found = marks(rows, groups, names, blocks=blocks, given=given, seed=seed)
    kind = "found" if given is None else "given"
    return Model.read(kind).probabilities(found).astype(np.float32)


# -- marks of placements --------------------------------------------------------------------------------------------

RUNS = 4  # resampled clusterings of each evidence
KEPT = 0.7  # share of the axes that a resample keeps
ROUNDS = 8
MOST_SAMPLED = 6000  # names that a resample's centres are found on


def marks(
    rows: np.ndarray,
    groups: np.ndarray,
    names: Sequence[str],
    *,
    blocks: Sequence[np.ndarray] = (),
    given: Given | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return the marks of placements, (N,) float64 each, by name; the arguments are :func:`wrong_probabilities`'."""
    order = np.array(sorted(range(len(names)), key=names.__getitem__))
    rows, groups = rows[order], np.asarray(groups, dtype=np.int64)[order]
    names = [names[place] for place in order.tolist()]
    blocks = [block[order] for block in blocks]
    count = int(groups.max()) + 1 if given is None else len(given.labels)
    sizes = np.bincount(groups, minlength=count)
    with threadpool_limits(limits=1):
        spaces = [_leading(rows)]
        spaces += [_leading(block) for block in (blocks if len(blocks) > 1 else ())]
        spaces.append(_spelling(names))
        found = _margin_marks(spaces, groups, count)
        found |= _resample_marks(spaces, groups, sizes, seed)
        if given is None:
            found |= _word_marks(names, groups, sizes)
            found["alone"] = (sizes[groups] == 1).astype(float)
            found["size"] = np.log(sizes[groups] * np.count_nonzero(sizes) / len(groups))
        else:
            found = {"margins": found["margins"], "lead": found["lead"]}
            found |= _given_marks(names, groups, given, given.confidence[order])
    back = np.argsort(order)
    return {name: values[back] for name, values in found.items()}


def _leading(rows: np.ndarray) -> np.ndarray:
    """Return (N, <= 64) float32 coordinates on the axes of the largest moments, scaled to unit length."""
    wide = np.asarray(rows, dtype=np.float32)
    if wide.shape[1] > AXES:
        _, axes = np.linalg.eigh((wide.T @ wide).astype(np.float64))
        wide = wide @ axes[:, -AXES:].astype(np.float32)
    return unit(np.ascontiguousarray(wide))


def _spelling(names: Sequence[str]) -> np.ndarray:
    """Return unit rows of names by their words and letter n-grams alone; zero rows where they share nothing."""
    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, max_features=100_000)
    texts = [f"{name} {head_noun(name)}" for name in names]
    if not any(map(grams.build_analyzer(), texts)):
        return np.zeros((len(names), 1), dtype=np.float32)
    features = grams.fit_transform(texts)
    axes = min(AXES, features.shape[1] - 1, len(names) - 1)
    if axes < 1:
        return np.zeros((len(names), 1), dtype=np.float32)
    return unit(TruncatedSVD(axes, n_iter=3, random_state=0).fit_transform(features).astype(np.float32))


def _margin_marks(spaces: Sequence[np.ndarray], groups: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Return the places of silhouettes among all, 0..1: by the joint evidence, and the mean over all evidences."""
    places = []
    for space in spaces:
        known = np.linalg.norm(space, axis=1) > 0
        place = np.full(len(groups), 0.5)
        if known.any():
            place[known] = (rankdata(_silhouettes(space, groups, count)[known]) - 0.5) / known.sum()
        places.append(place)
    return {"margin": places[0], "margins": np.mean(places, axis=0)}


def _silhouettes(space: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Return the simplified silhouette of each row, -1..1, its own place in its group's centre left out."""
    ones = np.ones(len(space))
    total = sums(space, groups, ones, count)
    a = 1 - (space * unit(total[groups] - space)).sum(axis=1)
    b = np.empty_like(a)
    centres = unit(total)
    for part in _parts(len(space), count):
        cosine = space[part] @ centres.T
        np.put_along_axis(cosine, groups[part][:, None], -1.0, axis=1)
        b[part] = 1 - cosine.max(axis=1)
    return ((b - a) / np.maximum(np.maximum(a, b), 1e-6)).round(5)


def _parts(rows: int, columns: int) -> list[slice]:
    step = max(1, 20_000_000 // max(columns, 1))
    return [slice(start, start + step) for start in range(0, rows, step)]


def _resample_marks(
    spaces: Sequence[np.ndarray], groups: np.ndarray, sizes: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """Return what clusterings of resampled evidence say about each placement.

    ``lead``: in its cluster, the share of its own group less that of the largest other one, the name itself left out.
    ``kept``: the mean over its group of the share of the group that stays with a name.
    """
    n = len(groups)
    rng = np.random.default_rng(seed)
    wanted = int(np.clip(np.count_nonzero(sizes), 2, max(2, n // 2)))
    lead, kept = np.zeros(n), np.zeros(n)
    for space in spaces:
        for _ in range(RUNS):
            axes = rng.random(space.shape[1]) < KEPT
            labels = _quick_clusters(space[:, axes] if axes.sum() > 1 else space, wanted, rng)
            of_run = _against(labels, groups, sizes)
            lead += of_run[0]
            kept += of_run[1]
    runs = RUNS * len(spaces)
    together = np.bincount(groups, kept / runs, len(sizes)) / np.maximum(sizes, 1)
    return {"lead": lead / runs, "kept": together[groups]}


def _quick_clusters(space: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Return (N,) labels of a spherical k-means of few rounds, its centres found on a sample."""
    space = unit(space)
    sample = space if len(space) <= MOST_SAMPLED else space[np.sort(rng.permutation(len(space))[:MOST_SAMPLED])]
    wanted = min(wanted, len(sample))
    centres = sample[np.sort(rng.permutation(len(sample))[:wanted])]
    labels = np.full(len(sample), -1)
    for _ in range(ROUNDS):
        moved = _nearest(sample, centres)
        if np.array_equal(moved, labels):
            break
        labels = moved
        total = sums(sample, labels, np.ones(len(sample)), wanted)
        empty = np.flatnonzero(np.bincount(labels, minlength=wanted) == 0)
        total[empty] = sample[rng.integers(0, len(sample), len(empty))]
        centres = unit(total)
    return _nearest(space, centres)


def _nearest(space: np.ndarray, centres: np.ndarray) -> np.ndarray:
    nearest = np.empty(len(space), dtype=np.int64)
    for part in _parts(len(space), len(centres)):
        nearest[part] = (space[part] @ centres.T).argmax(axis=1)
    return nearest


def _against(labels: np.ndarray, groups: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``lead`` and the share of the own group that stays together, for one clustering."""
    own, pair, of_cluster, counts = _together(labels, groups)
    width = int(labels.max()) + 1
    in_cluster = np.bincount(labels, minlength=width)[labels]
    order = np.lexsort((-counts, of_cluster))  # of every cluster its groups, the largest first
    starts = np.searchsorted(of_cluster[order], np.arange(width + 1))
    largest = order[np.minimum(starts[:-1], len(order) - 1)]
    next_one = order[np.minimum(starts[:-1] + 1, len(order) - 1)]
    second = np.where(starts[1:] - starts[:-1] > 1, counts[next_one], 0)
    other = np.where(largest[labels] == pair, second[labels], counts[largest[labels]])
    lead = np.where(in_cluster > 1, (own - 1 - other) / np.maximum(in_cluster - 1, 1), 0.0)
    kept = np.where(sizes[groups] > 1, (own - 1) / np.maximum(sizes[groups] - 1, 1), 0.0)
    return lead, kept


def _word_marks(names: Sequence[str], groups: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the entropy of a group's head nouns, and the share of the others in it that have a name's own."""
    heads = [head_noun(name) for name in names]
    own = sizes[groups]
    with_head, _, of_group, counts = _together(groups, _numbers(heads))
    shares = counts / sizes[of_group]
    entropy = np.bincount(of_group, -shares * np.log(shares), len(sizes))
    same = np.where(own > 1, (with_head - 1) / np.maximum(own - 1, 1), 0.0)
    return {"heads": entropy[groups], "same_head": same}


def _numbers(texts: Sequence[str]) -> np.ndarray:
    return np.unique(np.array(texts, dtype=object), return_inverse=True)[1].ravel()


def _together(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return for each name how many have both its labels, and the pair that they are; for each pair label and count."""
    width = int(second.max()) + 1
    pairs, pair, counts = np.unique(first * width + second, return_inverse=True, return_counts=True)
    return counts[pair.ravel()], pair.ravel(), pairs // width, counts


def _given_marks(
    names: Sequence[str], groups: np.ndarray, given: Given, confidence: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the place of the confidence among all, and whether a name has its group's words, or no group."""
    words = [frozenset(label.casefold().split()) for label in given.labels]
    own_words = (frozenset(name.casefold().split()) for name in names)
    named = [bool(words[g]) and words[g] <= of for g, of in zip(groups.tolist(), own_words, strict=True)]
    return {
        "confidence": (rankdata(confidence.round(5)) - 0.5) / len(names),
        "named": np.array(named, dtype=float),
        "fits_none": np.array([not given.labels[g] for g in groups.tolist()], dtype=float),
    }


# -- all placements together ----------------------------------------------------------------------------------------

NODES = 41
REACH = 3.5  # standard deviations of the level on either side
INTERVAL = 0.8
STEPS = 60


class Expected(NamedTuple):
    """The expected number of wrong placements, or of their items, and its 80% interval.

    Attributes:
        mean: the expected number.
        low: it is below this with a probability of .1.
        high: it is above this with a probability of .1.
    """

    mean: float
    low: float
    high: float


def still_wrong(
    wrong: np.ndarray, spreads: Spreads, *, weights: np.ndarray | None = None, groups: np.ndarray | None = None
) -> Expected:
    """Return how many placements are wrong.

    Errors are not independent. The level of all log-odds is uncertain by as much as taxonomies differ from the model,
    and the level of each group by as much as groups do. Given the level, the number is taken as normal, with the
    variance of independent names and of the groups' levels.

    Args:
        wrong: (N,) probabilities.
        spreads: of the level of their log-odds.
        weights: (N,) items of each name; None: names are counted.
        groups: (N,) labels 0..G-1, within which errors go together; None: all are of one group each.
    """
    if not len(wrong):
        return Expected(0.0, 0.0, 0.0)
    counted = np.ones(len(wrong)) if weights is None else np.asarray(weights, dtype=np.float64)
    odds = logit(np.clip(np.asarray(wrong, dtype=np.float64), LEAST / 10, 1 - LEAST / 10))
    nodes = np.linspace(-REACH, REACH, NODES)
    mass = np.exp(-(nodes**2) / 2)
    mass /= mass.sum()
    means, variances = np.empty(NODES), np.empty(NODES)
    for place, node in enumerate(nodes):
        p = expit(odds + spreads.between_sets * node)
        means[place] = counted @ p
        variances[place] = (counted**2) @ (p * (1 - p))
        if groups is not None:
            variances[place] += ((spreads.between_groups * np.bincount(groups, counted * p * (1 - p))) ** 2).sum()
    ends = [
        _quantile((1 - INTERVAL) / 2, means, variances, mass),
        _quantile((1 + INTERVAL) / 2, means, variances, mass),
    ]
    total = float(counted.sum())
    low, high = (float(np.clip(end, 0, total)) for end in ends)
    return Expected(float(np.clip(mass @ means, low, high)), low, high)


def _quantile(share: float, means: np.ndarray, variances: np.ndarray, mass: np.ndarray) -> float:
    """Return the quantile of a mixture of normal distributions, by halving."""
    deviations = np.sqrt(np.maximum(variances, 1e-12))
    low, high = float((means - 6 * deviations).min()), float((means + 6 * deviations).max())
    for _ in range(STEPS):
        middle = (low + high) / 2
        below = float(mass @ ndtr((middle - means) / deviations))
        low, high = (middle, high) if below < share else (low, middle)
    return (low + high) / 2
