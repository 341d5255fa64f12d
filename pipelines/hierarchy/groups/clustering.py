"""Grouping of names by their vectors, and a confidence for every name.

Names of equal vectors are one point that weighs as many names. Points are joined by Ward's linkage, whose tree is cut
into the wanted number of groups, or divided by k-means. Then every point moves to the group whose centre has the
highest cosine until nothing moves (spherical k-means: Dhillon and Modha, Machine Learning 42, 2001). More than 6,000
points are first joined by k-means into at least 2,000 parts.

Without a wanted number, numbers of a geometric series up to half the points are tried, and the one with the highest
mean simplified silhouette is taken (:func:`silhouettes`). The levels above the groups are found in the same way, from
the mean vectors of the groups (:func:`coarsen`).

All sums are done by one thread, so that the number of cores does not change the groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.cluster import KMeans, MiniBatchKMeans
from threadpoolctl import threadpool_limits

from hgld.errors import ConfigError

from ...stage import Progress, silent
from ..config import ClusterConfig
from ..unit_rows import leading_axes, sums, unit

MOST_LINKED = 6000  # points: 150 MB of distances
_LEAST_PARTS, _PARTS_PER_GROUP = 2000, 4
_MOST_COPIES = 2000  # of points, by which the linkage is told their weights
_MOST_TRIED = 24
_MOST_ROUNDS = 100
_TRIAL_RESTARTS = 2  # enough to compare numbers of groups


@dataclass(frozen=True, eq=False)
class Clustering:
    """The group of every name, in the order in which the names were given.

    Attributes:
        groups: (N,) int32 groups, numbered in the order of their first names.
        confidence: (N,) float32, 0..1: the simplified silhouette, 0 if that is negative.
        next_groups: (N,) int32 the nearest other group; -1 if there is none.
        centrality: (N,) float32 cosine with the centre of the own group.
        tried: the score of every number of groups that was tried; empty if the number was given.
    """

    groups: np.ndarray
    confidence: np.ndarray
    next_groups: np.ndarray
    centrality: np.ndarray
    tried: dict[int, float] = field(default_factory=dict)


def cluster_names(rows: np.ndarray, config: ClusterConfig, progress: Progress = silent) -> Clustering:
    """Group names by their embeddings.

    Args:
        rows: (N, D) unit rows, one per name, N at least 1.
        config: number of groups, method and seed.
        progress: told what is being done.

    Raises:
        ConfigError: more groups than there are different vectors.
    """
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    _, first, point = np.unique(np.round(rows, 6), axis=0, return_index=True, return_inverse=True)
    point = np.argsort(np.argsort(first))[point.ravel()]  # points in the order of their first rows
    points, weights = unit(rows[np.sort(first)]), np.bincount(point).astype(np.float64)
    if config.groups > len(points):
        raise ConfigError(
            f"--groups {config.groups} is more than the {len(points)} names of different meaning to this encoder "
            f"({len(rows)} names). Ask for at most {len(points)}."
        )
    progress("group the names", 0, 1)
    with threadpool_limits(limits=1):
        part, parts, mass = _parts(points, weights, config)
        numbers = [config.groups] if config.groups else numbers_to_try(len(parts))
        if config.method == "kmeans":
            restarts = 10 if config.groups else _TRIAL_RESTARTS
            cuts = [kmeans(parts, k, weights=mass, restarts=restarts, seed=config.seed) for k in numbers]
        else:
            cuts = ward_cuts(parts, mass, numbers)
        best, scores = _best(unit(parts), cuts, mass)
        groups = _numbered(settle(points, cuts[best][part], weights)[point])
        score, following, own = silhouettes(rows, groups)
    progress("group the names", 1, 1)
    return Clustering(
        groups.astype(np.int32),
        np.clip(score, 0, 1),
        following.astype(np.int32),
        own,
        {} if config.groups else dict(zip(numbers, scores, strict=True)),
    )


def coarsen(rows: np.ndarray, units: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Join groups into coarser groups by Ward's linkage of their names' mean rows.

    Args:
        rows: (N, D) unit rows of names.
        units: (N,) the group of every name, 0..U-1, none of them empty.
        wanted: number of coarser groups; 0: as the data give; more than U is U.

    Returns:
        (U,) the coarser group of every group, numbered in the order of their first groups, and (U,) float32 margins,
        0..1, to the next coarser group.
    """
    mass = np.bincount(units).astype(np.float64)
    with threadpool_limits(limits=1):
        means = sums(rows.astype(np.float64), units, len(mass)) / mass[:, None]
        cuts = ward_cuts(means, mass, [min(wanted, len(mass))] if wanted else numbers_to_try(len(mass)))
        centres = unit(means)
        labels = _numbered(cuts[_best(centres, cuts, mass)[0]])
        return labels, np.clip(silhouettes(centres, labels, mass)[0], 0, 1)


def numbers_to_try(count: int) -> list[int]:
    """Return the numbers of groups to try for some points: a geometric series from 2 to half of them."""
    if count <= 2:
        return [count]
    return sorted({round(number) for number in np.geomspace(2, max(2, count // 2), _MOST_TRIED)})


def ward_cuts(points: np.ndarray, weights: np.ndarray, numbers: Sequence[int]) -> list[np.ndarray]:
    """Join weighted points by Ward's criterion and cut the tree at several numbers of groups.

    scipy's linkage knows no weights, so a point is repeated as often as it weighs, at most some 2,000 times in all.

    Args:
        points: (n, D) points.
        weights: (n,) positive weights.
        numbers: numbers of groups, each 1..n.

    Returns:
        (n,) labels per number.
    """
    if len(points) == 1:
        return [np.zeros(1, dtype=np.int64) for _ in numbers]
    copies = np.maximum(1, np.round(weights * min(1, _MOST_COPIES / weights.sum()))).astype(np.int64)
    tree = linkage(np.repeat(points, copies, axis=0).astype(np.float64), "ward")
    first = np.cumsum(copies) - copies
    order = np.arange(len(tree), dtype=np.float64)  # cut by the order of merges: equal heights give no other number
    return [fcluster(tree, number, "maxclust_monocrit", monocrit=order)[first] - 1 for number in numbers]


def kmeans(rows: np.ndarray, k: int, *, weights: np.ndarray, restarts: int, seed: int) -> np.ndarray:
    """Return (N,) labels 0..k-1 of unit rows by scikit-learn's k-means on their 64 leading axes, then settled."""
    found = KMeans(k, n_init=restarts, random_state=seed)  # pyright: ignore[reportArgumentType]  # an int is allowed
    return settle(unit(rows), found.fit_predict(leading_axes(rows), sample_weight=weights), weights)


def settle(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Move every row to the centre of highest cosine, and the centres with them, until nothing moves.

    A round that would leave a group empty is not taken, so the number of groups stays what it was.

    Args:
        rows: (N, D) unit rows.
        labels: (N,) labels 0..k-1 to start from.
        weights: (N,) positive weights.

    Returns:
        (N,) labels 0..k-1.
    """
    k = int(labels.max()) + 1
    for _ in range(_MOST_ROUNDS):
        cosine = rows @ unit(sums(rows, labels, k, weights)).T
        own = np.take_along_axis(cosine, labels[:, None], axis=1)[:, 0]
        # a row moves for a real gain only: ties and the last bits of a sum must not decide
        moved = np.where(own >= cosine.max(axis=1) - 1e-6, labels, cosine.argmax(axis=1))
        if np.array_equal(moved, labels) or len(np.unique(moved)) < k:
            break
        labels = moved
    return labels


def silhouettes(
    rows: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the simplified silhouette of every row (Vendramin, Campello and Hruschka, 2010).

    With cosine distances a to the centre of the own group, the row itself left out, and b to the nearest other centre,
    it is (b - a) / max(a, b). It is 0 for a row alone in its group, and 1 for all rows if there is one group.

    Args:
        rows: (N, D) unit rows.
        groups: (N,) labels 0..G-1.
        weights: (N,) positive weights of the rows in the centres; None: 1 each.

    Returns:
        silhouettes (N,) float32 in -1..1, the next group (N,) with -1 for none, cosine with the own group's centre
        (N,) float32.
    """
    count = int(groups.max()) + 1
    shares = np.ones(len(rows)) if weights is None else weights
    total = sums(rows, groups, count, shares)
    cosine = rows @ unit(total).T
    own = np.take_along_axis(cosine, groups[:, None], axis=1)[:, 0].astype(np.float32)
    if count == 1:
        return np.ones(len(rows), dtype=np.float32), np.full(len(rows), -1), own
    a = 1 - (rows * unit(total[groups] - rows * shares[:, None].astype(rows.dtype))).sum(axis=1)
    np.put_along_axis(cosine, groups[:, None], -np.inf, axis=1)
    b = 1 - cosine.max(axis=1)
    score = ((b - a) / np.maximum(np.maximum(a, b), 1e-6)).astype(np.float32)
    score[np.bincount(groups)[groups] == 1] = 0
    return score, cosine.argmax(axis=1), own


def _parts(points: np.ndarray, weights: np.ndarray, config: ClusterConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the part of every point, and the parts' means and weights; up to 6,000 points are parts of their own."""
    if len(points) <= MOST_LINKED:
        return np.arange(len(points)), points, weights
    wanted = min(len(points), max(_LEAST_PARTS, _PARTS_PER_GROUP * config.groups))
    found = MiniBatchKMeans(
        wanted,
        n_init=1,  # pyright: ignore[reportArgumentType]  # an int is allowed
        batch_size=4096,
        random_state=config.seed,
        reassignment_ratio=0,
    )
    part = np.unique(found.fit_predict(leading_axes(points), sample_weight=weights), return_inverse=True)[1]
    mass = np.bincount(part, weights)
    return part, (sums(points, part, len(mass), weights) / mass[:, None]).astype(np.float32), mass


def _best(rows: np.ndarray, cuts: Sequence[np.ndarray], weights: np.ndarray) -> tuple[int, list[float]]:
    """Return the index of the cut with the highest mean silhouette, the first at a tie, and all scores."""
    if len(cuts) == 1:
        return 0, [0.0]
    means = [np.average(np.clip(silhouettes(rows, cut, weights)[0], 0, 1), weights=weights) for cut in cuts]
    scores = [round(float(mean), 6) for mean in means]
    return scores.index(max(scores)), scores


def _numbered(labels: np.ndarray) -> np.ndarray:
    """Return the same partition with labels in the order of their first occurrence."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.ravel()]
