"""Finder of duplicate classes and of classes under the wrong parent.

Each pair of classes, and each class with its parent, has features: from the model of the classes
(:mod:`hgld.label_audit.class_model`) and from nearest items. To learn the features of an error, errors are planted in
the same data: a class is split into halves, or moved to another parent. Most of the classes in the dataset are correct.
A logistic regression finds the direction that separates planted errors from the dataset's classes. Along this
direction, each group is modelled by Student's t with 15 degrees of freedom around its median, which outliers do not
move. The share of errors is the largest that the scores allow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression

from hgld.label_audit.class_model import ClassModel

FEWEST = 8  # minimum number of pairs, and of planted errors, to estimate probabilities from
_MOST_FAULTS = 0.1  # largest believable share of classes with an error of one kind
_NEAREST = 5  # number of nearest classes that each class is compared with
_MOST_ITEMS = 200  # items per class; a larger class is sampled
_MOST_PLANTED = 400
_LEAST_ITEMS = 6  # classes with fewer items are not split to plant errors
_NEAR = 3  # number of nearest items that are counted per item
_VOTERS = 10
_FREEDOM = 15
_TAILS = np.linspace(0.1, 0.9, 17)  # quantiles of the planted errors' scores; each bounds the share of errors
_TO_DEVIATION = 1.4826  # standard deviation of a Gaussian divided by its median absolute deviation


@dataclass(frozen=True, eq=False)
class ClassFault:
    """An error of the hierarchy: two classes that should be one, or a class under the wrong parent.

    Attributes:
        kind: ``one``: the class and ``other`` should be one class; ``parent``: the class belongs under ``other``, a
            class of the next coarser level.
        level: column of the class's level.
        label: id of the class that may be wrong.
        other: id of the other class of the pair.
        score: similarity to planted errors.
        probability: probability of the error.
        evidence: measured features by name.
        parts: indices of items of the two classes; for ``parent`` the second class is the proposed parent.
    """

    kind: Literal["one", "parent"]
    level: int
    label: int
    other: int
    score: float
    probability: float
    evidence: dict[str, float]
    parts: tuple[np.ndarray, np.ndarray]


def find_class_faults(embeddings: np.ndarray, classes: np.ndarray, ancestors: np.ndarray) -> Iterator[ClassFault]:
    """Find errors of the hierarchy at every level.

    Args:
        embeddings: (N, D) unit rows.
        classes: (N,) finest class of every item.
        ancestors: (C, L) class of each finest class at every level; column 0 is 0 ... C - 1.

    Yields:
        every examined pair, including unlikely errors; nothing for a level with too few classes.
    """
    for level in range(ancestors.shape[1]):
        labels = ancestors[classes, level]
        model = ClassModel.fit(embeddings, labels)
        groups = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
        generator = np.random.default_rng(0)
        items = [np.sort(generator.permutation(group)[:_MOST_ITEMS]) for group in groups]
        yield from _find_one(model, items, level)
        if level + 1 < ancestors.shape[1]:
            above = np.zeros(len(items), np.int64)
            above[ancestors[:, level]] = ancestors[:, level + 1]
            yield from _find_parents(model, above, items, ancestors[classes, level + 1], level)


# -- duplicate classes -------------------------------------------------------------------------------------------------


def apartness(items: np.ndarray, in_second: np.ndarray) -> float:
    """Return how separate two samples are: 0 for random halves of one sample, 1 if all neighbours are of one sample.

    Schilling's statistic is the share of the :data:`_NEAR` nearest items that are of an item's own sample (Multivariate
    two-sample tests based on nearest neighbors, Journal of the American Statistical Association 1986). The result is
    (statistic - e) / (1 - e), where e is its expectation for random halves.

    Args:
        items: (N, D) embeddings of both samples.
        in_second: (N,) whether an item is in the second sample; each sample has at least 2 items.
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


def _pair_features(model: ClassModel, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return two features of two sets: scaled log Bayes factor that they are one class, and minus :func:`apartness`."""
    both = np.concatenate([first, second])
    ratio = model.log_ratio(model.items[first], model.items[second]) / (2 * len(first) * len(second) / len(both))
    return np.array([np.arcsinh(ratio), -apartness(model.items[both], np.arange(len(both)) >= len(first))])


def _find_one(model: ClassModel, items: list[np.ndarray], level: int) -> Iterator[ClassFault]:
    several = np.flatnonzero([len(part) > 1 for part in items])
    means = model.class_means()[several]
    count = min(_NEAREST, len(several) - 1)
    if count < 1:
        return
    pairs = set()
    for row, mean in enumerate(means):
        distances = ((means - mean) ** 2).sum(axis=1)
        distances[row] = np.inf
        pairs |= {tuple(sorted((row, int(p)))) for p in np.argpartition(distances, count - 1)[:count]}
    near = [(int(several[a]), int(several[b])) for a, b in sorted(pairs)]
    large = [part for part in items if len(part) >= _LEAST_ITEMS]
    spread = np.unique(np.linspace(0, len(large) - 1, min(_MOST_PLANTED, len(large))).astype(int))
    mixed = [np.random.default_rng(0).permutation(large[place]) for place in spread]
    found = np.array([_pair_features(model, items[a], items[b]) for a, b in near])
    halves = [(part[: len(part) // 2], part[len(part) // 2 :]) for part in mixed]
    planted = np.array([_pair_features(model, *pair) for pair in halves]).reshape(-1, 2)
    likely = planted_posterior(found, planted, _MOST_FAULTS * len(items) / len(near))
    for (a, b), features, score, probability in zip(near, found, *likely, strict=True):
        if np.isfinite(score):
            said = {"log Bayes factor per item": float(np.sinh(features[0])), "kept apart": float(-features[1])}
            yield ClassFault("one", level, a, b, float(score), float(probability), said, (items[a], items[b]))


# -- parents -----------------------------------------------------------------------------------------------------------


def _find_parents(
    model: ClassModel, above: np.ndarray, items: list[np.ndarray], parents_of_items: np.ndarray, level: int
) -> Iterator[ClassFault]:
    parents, own = np.unique(above, return_inverse=True)
    if len(parents) < 2:
        return
    support = _parent_support(model.class_means(), own, len(parents))
    rows = np.arange(len(own))
    judged = np.bincount(own)[own] > 1  # a parent with one class cannot be compared with the class

    def against(present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the best other parent of every class, and its features relative to the current parent."""
        total = support.sum(axis=2)
        total[rows, present] = -np.inf
        best = total.argmax(axis=1)
        return best, (support[rows, best] - support[rows, present])[judged]

    best, found = against(own)
    drawn = (own + np.random.default_rng(0).integers(1, len(parents), len(own))) % len(parents)
    likely = planted_posterior(found, against(drawn)[1], _MOST_FAULTS)
    for label, features, score, probability in zip(rows[judged].tolist(), found, *likely, strict=True):
        if np.isfinite(score):
            parent = int(parents[best[label]])
            under = np.flatnonzero(parents_of_items == parent)[:_MOST_ITEMS]
            said = {"log odds in the model": float(features[0]), "log odds among near classes": float(features[1])}
            parts = (items[label], under)
            yield ClassFault("parent", level, label, parent, float(score), float(probability), said, parts)


def _parent_support(means: np.ndarray, own: np.ndarray, count: int) -> np.ndarray:
    """Return (C, P, 2) support of every class for every parent: from the model of parents, and from nearest classes."""
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


# -- probabilities -----------------------------------------------------------------------------------------------------


def planted_posterior(found: np.ndarray, planted: np.ndarray, most: float) -> tuple[np.ndarray, np.ndarray]:
    """Return how similar each pair is to the planted errors, and the probability that it is an error.

    Args:
        found: (M, F) features of existing pairs.
        planted: (K, F) features of planted errors.
        most: largest plausible share of errors.

    Returns:
        (M,) scores and (M,) probabilities; NaN if there are fewer than :data:`FEWEST` pairs or planted errors.
    """
    if min(len(found), len(planted)) < FEWEST:
        return np.full(len(found), np.nan), np.full(len(found), np.nan)
    marks, is_planted = np.concatenate([found, planted]), np.arange(len(found) + len(planted)) >= len(found)
    marks = (marks - marks.mean(axis=0)) / np.maximum(marks.std(axis=0), 1e-9)
    scores = LogisticRegression(class_weight="balanced", max_iter=1000).fit(marks, is_planted).decision_function(marks)
    return scores[: len(found)], mixture_posterior(scores[: len(found)], scores[len(found) :], most)


def mixture_posterior(found: np.ndarray, planted: np.ndarray, most: float) -> np.ndarray:
    """Return the probability that each score belongs to an error: it rises with the score and is 0 below the median.

    Args:
        found: (M,) scores of existing pairs.
        planted: (K,) scores of planted errors.
        most: largest share of errors in ``found``, below 0.5: the median score must belong to a correct pair.
    """
    sound, fault = _density(found, found, 1), _density(found, planted, -1)
    share = min(most, share_of_faults(found, planted))
    likely = share * fault / (share * fault + (1 - share) * sound)
    likely[found <= np.median(found)] = 0.0
    order = np.argsort(found, kind="stable")
    likely[order] = np.maximum.accumulate(likely[order])
    return likely


def share_of_faults(found: np.ndarray, planted: np.ndarray) -> float:
    """Return an upper bound on the share of errors among the existing pairs.

    Above any threshold, the share of existing pairs is at least the share of errors times the share of planted
    errors. So the result is the smallest ratio of the two shares over several thresholds.

    Args:
        found: (M,) scores of existing pairs.
        planted: (K,) scores of planted errors.
    """
    bounds = np.quantile(planted, _TAILS)
    above = (found[:, None] >= bounds).sum(axis=0)
    tails = (above + 1) / (len(found) + 1)  # Laplace's rule: a sample without errors does not prove that there are none
    return float(min(1.0, (tails / (planted[:, None] >= bounds).mean(axis=0)).min()))


def _density(scores: np.ndarray, sample: np.ndarray, side: int) -> np.ndarray:
    """Return the density of the scores under a Student's t distribution fitted to one side of a sample.

    The distribution is centred at the sample's median. Its scale is the spread on one side of the median. Clearly
    correct or clearly wrong pairs are on the other side, perhaps far away, and would widen the density.
    """
    middle = np.median(sample)
    beyond = side * (sample - middle)
    scale = max(_TO_DEVIATION * np.median(beyond[beyond >= 0]), 1e-6)
    return student.pdf((scores - middle) / scale, _FREEDOM) / scale + 1e-300
