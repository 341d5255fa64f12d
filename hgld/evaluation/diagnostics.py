"""Diagnostics of an embedding beside retrieval: distances of classes and clusters."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hgld.errors import InputError
from hgld.evaluation.scores import prepare_embeddings
from hgld.labels import Array


@dataclass(frozen=True)
class ClassDistances:
    """Mean cosine distances (1 - cosine, half the squared Euclidean distance of unit vectors) over pairs of items.

    Attributes:
        intra: over the pairs of the same class; NaN if there are none.
        inter: over the pairs of different classes; NaN if there are none.
    """

    intra: float
    inter: float


def class_distances(embeddings: Array, labels: Array) -> ClassDistances:
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


def intra_class_distance(embeddings: Array, labels: Array) -> float:
    """Compute the metric ``dists@intra``; see :func:`class_distances`."""
    return class_distances(embeddings, labels).intra


def inter_class_distance(embeddings: Array, labels: Array) -> float:
    """Compute the metric ``dists@inter``; see :func:`class_distances`."""
    return class_distances(embeddings, labels).inter


def clustering_nmi(embeddings: Array, labels: Array, *, seed: int = 0) -> float:
    """Compute the normalised mutual information of a k-means clustering with the classes: 2 I / (H_1 + H_2).

    Args:
        embeddings: (N, D) floating; normalised here.
        labels: (N,) integers; items with negative labels are left out. There are as many clusters as classes.
        seed: seed of k-means++.

    Returns:
        0 (independent) to 1 (the same partition).

    Raises:
        InputError: as for :func:`class_distances`.
    """
    from sklearn.cluster import KMeans  # slow to import, and no other metric needs it
    from sklearn.metrics import normalized_mutual_info_score

    unit, classes = _labelled(embeddings, labels)
    clusters = KMeans(n_clusters=int(classes.max()) + 1, init="k-means++", n_init="auto", random_state=seed)
    found = clusters.fit_predict(unit.astype(np.float32))
    return float(normalized_mutual_info_score(classes, found))


def _labelled(embeddings: Array, labels: Array) -> tuple[np.ndarray, np.ndarray]:
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
