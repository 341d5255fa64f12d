"""Diagnostics of an embedding beside retrieval: clusters, distances, batches against the whole, smoothed ranks."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.evaluation.metric import Metric
from hgld.evaluation.scores import prepare_embeddings


@dataclass(frozen=True)
class ClassDistances:
    """Mean cosine distances (1 - cosine, half the squared Euclidean distance of unit vectors) over pairs of items.

    Attributes:
        intra: over the pairs of the same class; NaN if there are none.
        inter: over the pairs of different classes; NaN if there are none.
    """

    intra: float
    inter: float


def class_distances(embeddings: Tensor | np.ndarray, labels: Tensor | np.ndarray) -> ClassDistances:
    """Compute the mean intra-class and inter-class distance, exact over all pairs in O(N D).

    They are the diagnostics of PNP (Li et al., "Rethinking the Optimization of Average Precision", AAAI 2022).

    Args:
        embeddings: (N, D) floating; normalised here.
        labels: (N,) integers; items with negative labels are left out.

    Returns:
        both means.

    Raises:
        InputError: embeddings or labels of the wrong shape or dtype, NaN, Inf, zero vectors, no labelled item.
    """
    unit, classes = _labelled(embeddings, labels)
    num_classes = int(classes.max()) + 1
    sums = np.zeros((num_classes, unit.shape[1]))
    np.add.at(sums, classes, unit)
    counts = np.bincount(classes).astype(np.float64)
    same_pairs = float((counts * (counts - 1)).sum())
    all_pairs = float(len(unit)) * (len(unit) - 1)
    squares = float((unit * unit).sum())  # N, but for the rounding of the norms
    same = float((sums * sums).sum()) - squares
    every = float((sums.sum(axis=0) ** 2).sum()) - squares
    other_pairs = all_pairs - same_pairs
    return ClassDistances(
        intra=1 - same / same_pairs if same_pairs else float("nan"),
        inter=1 - (every - same) / other_pairs if other_pairs else float("nan"),
    )


def intra_class_distance(embeddings: Tensor | np.ndarray, labels: Tensor | np.ndarray) -> float:
    """Compute the metric ``dists@intra``; see :func:`class_distances`."""
    return class_distances(embeddings, labels).intra


def inter_class_distance(embeddings: Tensor | np.ndarray, labels: Tensor | np.ndarray) -> float:
    """Compute the metric ``dists@inter``; see :func:`class_distances`."""
    return class_distances(embeddings, labels).inter


def clustering_nmi(
    embeddings: Tensor | np.ndarray, labels: Tensor | np.ndarray, *, num_clusters: int | None = None, seed: int = 0
) -> float:
    """Compute the normalised mutual information of a k-means clustering with the classes: 2 I / (H_1 + H_2).

    Args:
        embeddings: (N, D) floating; normalised here.
        labels: (N,) integers; items with negative labels are left out.
        num_clusters: k; the number of classes if None.
        seed: of k-means++.

    Returns:
        0 (independent) to 1 (the same partition).

    Raises:
        InputError: as for :func:`class_distances`.
        ConfigError: a number of clusters that k-means cannot make.
    """
    from sklearn.cluster import KMeans  # slow to import, and no other metric needs it
    from sklearn.metrics import normalized_mutual_info_score

    unit, classes = _labelled(embeddings, labels)
    k = int(classes.max()) + 1 if num_clusters is None else num_clusters
    if not 1 <= k <= len(unit):
        raise ConfigError(f"num_clusters is {k} for {len(unit)} items; expected 1..{len(unit)}.")
    clusters = KMeans(n_clusters=k, init="k-means++", n_init="auto", random_state=seed)
    found = clusters.fit_predict(unit.astype(np.float32))
    return float(normalized_mutual_info_score(classes, found))


def decomposability_gap(
    embeddings: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    batches: Iterable[np.ndarray],
    *,
    metrics: Iterable[str | Metric] = ("AP",),
    **options: Any,
) -> dict[str, float]:
    """Compute the decomposability gap: the mean of a metric over batches less its value on everything.

    Source: Ramzi et al., "Robust and Decomposable Average Precision for Image Retrieval", NeurIPS 2021, Eq. 6.

    Args:
        embeddings: (N, D) floating.
        labels: (N, L) or (N,) integers.
        batches: for every batch the indices of its items; each is evaluated leave-one-out.
        metrics: names of metrics.
        options: of :func:`hgld.evaluate`.

    Returns:
        the gap of every metric; batches in which a metric is undefined are left out of its mean.

    Raises:
        InputError: there are no batches, or one has fewer than two items.
    """
    from hgld.evaluation.evaluate import evaluate  # imports this package's other modules

    names = list(metrics)
    whole = evaluate(embeddings, labels, metrics=names, **options)
    values: dict[str, list[float]] = {name: [] for name in whole.values}
    for number, batch in enumerate(batches):
        if len(batch) < 2:
            raise InputError(f"batch {number} has {len(batch)} items; expected at least two, a query and its gallery.")
        found = evaluate(embeddings[batch], labels[batch], metrics=names, **options)
        for name, value in found.values.items():
            values[name].append(value)
    if not any(values.values()):
        raise InputError("there are no batches; expected at least one.")
    return {name: _mean(part) - whole.values[name] for name, part in values.items()}


def decomposability_bound(
    positives: np.ndarray,
    negatives: np.ndarray,
    *,
    good_positives: int = 0,
    bad_negatives: np.ndarray | None = None,
) -> float:
    """Bound the decomposability gap of a query for which every batch is ranked perfectly.

    1 - AP of the worst ranking that puts the positives of every batch before its negatives: the j-th positive may come
    behind the negatives of all batches whose positives are before it. Source: Ramzi et al., "Robust and Decomposable
    Average Precision for Image Retrieval", NeurIPS 2021, whose bound it is for batches of equal counts; for others the
    order of the batches does not matter here.

    Scores that are calibrated across batches bound it further: if ``good_positives`` score above alpha, and all
    negatives but the ``bad_negatives`` below beta < alpha, these alone can come before the good positives.

    Args:
        positives: (M,) positives of the query in every batch.
        negatives: (M,) its negatives there.
        good_positives: positives that score above alpha, in all batches together.
        bad_negatives: (M,) negatives that score above beta; None: all.

    Returns:
        0..1; NaN without a positive.
    """
    total = int(positives.sum())
    if not total:
        return float("nan")
    before = _most_before(positives, negatives, total)
    if bad_negatives is not None:
        before[:good_positives] = _most_before(positives, bad_negatives, total)[:good_positives]
    place = np.arange(1, total + 1)
    return float(1 - (place / (place + before)).mean())


def _most_before(positives: np.ndarray, negatives: np.ndarray, total: int) -> np.ndarray:
    """Return (total,) the most negatives of batches that have at most 0, 1, ..., total - 1 positives together."""
    most = np.zeros(total)
    for own, added in zip(positives.tolist(), negatives.tolist(), strict=True):
        if own < total:
            most[own:] = np.maximum(most[own:], most[: total - own] + added)
    return most


@dataclass(frozen=True)
class GapOverBatches:
    """Decomposability gap of AP in batches of one size; means over queries.

    Attributes:
        size: items of a batch.
        whole: AP in the whole set.
        batches: AP in the batches that have a positive, averaged for each query.
        gap: the difference, ``batches - whole``.
        bound: of the gap if every batch were ranked perfectly (:func:`decomposability_bound`).
        calibrated: the same bound with as many positives above alpha and negatives above beta as there are.
    """

    size: int
    whole: float
    batches: float
    gap: float
    bound: float
    calibrated: float


def gap_over_batches(
    embeddings: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    sizes: Sequence[int],
    *,
    images_per_class: int = 4,
    alpha: float = 0.9,
    beta: float = 0.6,
    queries: int = 500,
    seed: int = 0,
) -> list[GapOverBatches]:
    """Compute the decomposability gap of AP and its bounds, query by query, for batches of several sizes.

    The items are dealt to batches by :func:`class_batches`, and every query ranks each of them, itself left out.

    Args:
        embeddings: (N, D) floating; normalised here.
        labels: (N,) integers of one level; items with negative labels are left out.
        sizes: items of a batch.
        images_per_class: of a class in a batch, where it has so many.
        alpha: score above which a positive is good (the threshold of the pair loss).
        beta: score above which a negative is bad.
        queries: at most so many are drawn, among those that have a positive.
        seed: of batches and queries.

    Raises:
        InputError: as for :func:`class_distances`, or no class has two items.
    """
    unit, classes = _labelled(embeddings, labels)
    chosen = _queries(classes, queries, seed)
    dealt = {size: class_batches(classes, size, images_per_class, seed) for size in sizes}
    rows: dict[int, list[tuple[float, ...]]] = {size: [] for size in sizes}
    for query in chosen:
        scores = unit @ unit[query]
        others = np.arange(len(unit)) != query
        positive = (classes == classes[query]) & others
        negative = others & ~positive
        whole = _average_precision(scores[positive], scores[negative])
        good, bad = int((scores[positive] > alpha).sum()), negative & (scores > beta)
        for size, batch in dealt.items():
            count = int(batch.max()) + 1
            numbers = [np.bincount(batch[part], minlength=count) for part in (positive, negative, bad)]
            parts = [
                _average_precision(scores[positive & (batch == b)], scores[negative & (batch == b)])
                for b in np.flatnonzero(numbers[0])
            ]
            bound = decomposability_bound(numbers[0], numbers[1])
            near = decomposability_bound(numbers[0], numbers[1], good_positives=good, bad_negatives=numbers[2])
            rows[size].append((whole, float(np.mean(parts)), bound, near))
    found = []
    for size, values in rows.items():
        whole, batches, bound, near = np.mean(values, axis=0).tolist()
        found.append(GapOverBatches(size, whole, batches, batches - whole, bound, near))
    return found


def class_batches(classes: np.ndarray, size: int, images_per_class: int, seed: int = 0) -> np.ndarray:
    """Deal items to batches, some of a class together: (N,) number of each item's batch.

    Every class is cut into groups of ``images_per_class`` at random, the last one smaller; the groups are shuffled and
    laid one behind the other, and the row is cut into as many parts of equal length as there are batches of ``size``.
    """
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(classes))
    ordered = shuffled[np.argsort(classes[shuffled], kind="stable")]
    starts = np.flatnonzero(np.diff(classes[ordered], prepend=-1))
    place = np.arange(len(classes)) - np.repeat(starts, np.diff(starts, append=len(classes)))
    group = np.cumsum((place % images_per_class) == 0) - 1
    lot = rng.permutation(int(group[-1]) + 1)
    row = ordered[np.argsort(lot[group], kind="stable")]
    batch = np.empty(len(classes), np.int64)
    for number, part in enumerate(np.array_split(row, max(1, round(len(classes) / size)))):
        batch[part] = number
    return batch


@dataclass(frozen=True)
class SmoothingError:
    """Smooth-AP beside AP at one width of the sigmoid; means over queries.

    Attributes:
        tau: width of the sigmoid.
        error: mean absolute difference of smooth AP and AP.
        operating: share of the differences of scores that lie where the sigmoid has a slope.
    """

    tau: float
    error: float
    operating: float


def smoothing_errors(
    embeddings: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    taus: Sequence[float],
    *,
    batch: int = 64,
    images_per_class: int = 4,
    least_slope: float = 0.01,
    seed: int = 0,
) -> list[SmoothingError]:
    """Compute how far Smooth-AP is from AP in batches, and how many pairs it learns from, for several tau.

    Of both, Brown et al. ("Smooth-AP", ECCV 2020) say that a wide sigmoid gives more pairs a gradient and is further
    from AP. The operating region is where the sigmoid's slope is at least ``least_slope`` of its steepest, so up to
    tau x 2 arcosh(least_slope^-1/2); the pairs are those of a positive and any other item of the batch.

    Args:
        embeddings: (N, D) floating; normalised here.
        labels: (N,) integers of one level; items with negative labels are left out.
        taus: widths of the sigmoid, above 0.
        batch: items of a batch (:func:`class_batches`).
        images_per_class: of a class in a batch, where it has so many.
        least_slope: share of the steepest slope at which the operating region ends.
        seed: of the batches.

    Raises:
        InputError: as for :func:`class_distances`, or no class has two items in a batch.
        ConfigError: a tau that is not above 0.
    """
    from hgld.losses import SmoothAP

    unit, classes = _labelled(embeddings, labels)
    losses = [SmoothAP(tau, exclude_self=True, reduction="none") for tau in taus]
    edge = 2 * math.acosh(least_slope**-0.5) * np.asarray(taus)
    errors: list[list[np.ndarray]] = [[] for _ in taus]
    inside, pairs = np.zeros(len(taus)), 0
    dealt = class_batches(classes, batch, images_per_class, seed)
    for number in range(int(dealt.max()) + 1):
        items = np.flatnonzero(dealt == number)
        same = classes[items][:, None] == classes[items]
        np.fill_diagonal(same, val=False)
        asking = np.flatnonzero(same.any(axis=1))
        scores = unit[items] @ unit[items].T
        exact = np.empty(len(asking))
        for row, query in enumerate(asking):
            others = np.arange(len(items)) != query
            negative = others & ~same[query]
            exact[row] = _average_precision(scores[query, same[query]], scores[query, negative])
            differences = np.abs(scores[query, same[query], None] - scores[query, others])
            inside += (differences[None] <= edge[:, None, None]).sum(axis=(1, 2)) - len(differences)  # not with itself
            pairs += differences.size - len(differences)
        if len(asking):
            given = torch.from_numpy(unit[items]), torch.from_numpy(classes[items])
            for at, loss in enumerate(losses):
                values, _ = loss(*given)
                errors[at].append(np.abs(1 - values.numpy()[asking] - exact))
    if not pairs:
        raise InputError("no class has two items in a batch; expected labels that repeat, or larger batches.")
    return [
        SmoothingError(float(tau), float(np.concatenate(parts).mean()), float(share))
        for tau, parts, share in zip(taus, errors, inside / pairs, strict=True)
    ]


def _average_precision(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return AP of the scores of positives and negatives, ties against the query."""
    order = np.sort(positive)
    above = len(order) - np.searchsorted(order, order)
    wrong = len(negative) - np.searchsorted(np.sort(negative), order)
    return float((above / (above + wrong)).mean())


def _queries(classes: np.ndarray, most: int, seed: int) -> np.ndarray:
    asking = np.flatnonzero(np.bincount(classes)[classes] > 1)
    if not len(asking):
        raise InputError("no class has two items; expected labels that repeat.")
    return np.sort(np.random.default_rng(seed).permutation(asking)[:most])


def _mean(values: list[float]) -> float:
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")


def _labelled(embeddings: Tensor | np.ndarray, labels: Tensor | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return unit rows in float64, and their classes as 0, 1, ..., of the items with labels."""
    unit = prepare_embeddings(embeddings, "item").cpu().double().numpy()
    column = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if column.shape != (len(unit),) or not np.issubdtype(column.dtype, np.integer):
        raise InputError(
            f"labels have shape {column.shape} and dtype {column.dtype}; expected ({len(unit)},) integers: one level."
        )
    if not (column >= 0).any():
        raise InputError("no item has a known label; expected labels from 0.")
    return unit[column >= 0], np.unique(column[column >= 0], return_inverse=True)[1]
