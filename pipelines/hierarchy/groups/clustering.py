"""Clustering of names: k-means clusters, each divided into sub-clusters, and a confidence for every name.

The steps, in this order:

1. Names of equal vectors are one point. Points are weighted by 1, or by their landmarks if asked.
2. Spherical k-means. k is given, or chosen by the criterion over its curve (``kmeans.py``), or, where the criterion is
   stability, twice the root of the points: then the clusters only save linkage over all names.
3. Every cluster is divided by average linkage over cosine distances: two parts stay one sub-cluster while the mean
   distance between their names is at most the threshold.
   Without a wanted number of groups it is divided at the threshold, and its parts are the groups. The default is 0.85
   of the mean cosine distance of all pairs, since encoders differ in how far apart they put unrelated names.
   With one, given by ``groups`` or said by the names' stability (``group_count.py``), the threshold is lowered until
   there are 1,000 parts, or 8 for every group; Ward's linkage, which weights each part by its names, joins the parts of
   all clusters into exactly that many groups, which then settle as in spherical k-means. Up to 1,000 names every name
   is a part of its own.

All sums are done by one thread, and names are taken in sorted order: the same names, vectors, options and seed give
the same groups, however the names were ordered and whatever the machine's number of cores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.linalg import eigsh
from threadpoolctl import threadpool_limits

from hgld.errors import ConfigError

from ...stage import Progress, silent
from ..config import ClusterConfig
from .group_count import StabilityCurve, stability_curve
from .kmeans import Curve, k_curve, settle, spherical_kmeans, sums, unit
from .ward_tree import ward


class Division:
    """The average-linkage dendrograms of all clusters, to be cut at any threshold.

    Args:
        rows: (N, D) unit rows.
        labels: (N,) their clusters, 0..k-1.
    """

    def __init__(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self._size = len(rows)
        self._members = [np.flatnonzero(labels == cluster) for cluster in range(int(labels.max()) + 1)]
        self._trees = [_average_linkage(rows[members]) for members in self._members]
        self._heights = np.sort(np.concatenate([tree[:, 2] for tree in self._trees]))

    def at(self, threshold: float) -> np.ndarray:
        """Return the (N,) sub-clusters at a threshold, numbered from 0 over all clusters."""
        labels = np.zeros(self._size, dtype=np.int64)
        start = 0
        for members, tree in zip(self._members, self._trees, strict=True):
            parts = fcluster(tree, threshold, "distance") if len(tree) else np.ones(len(members), dtype=np.int64)
            labels[members] = parts - 1 + start
            start += int(parts.max())
        return labels

    def threshold_for(self, parts: int) -> float:
        """Return the highest threshold that gives at least ``parts`` sub-clusters; -1, below all heights, if none."""
        joins = self._size - parts  # every join below the threshold makes one part fewer
        if joins >= len(self._heights):
            return float(self._heights[-1]) if len(self._heights) else -1.0
        if joins <= 0:
            return -1.0
        below = self._heights[self._heights < self._heights[joins]]
        return float(below[-1]) if below.size else -1.0


def _average_linkage(rows: np.ndarray) -> np.ndarray:
    """Return scipy's (n - 1, 4) linkage table by mean cosine distance; it has no rows for a single member."""
    if len(rows) < 2:
        return np.empty((0, 4))
    above = np.triu_indices(len(rows), 1)
    return linkage(np.clip(1 - (rows @ rows.T)[above], 0, 2).astype(np.float64), "average")


# -- the class graph mixed into the embeddings, so that distances are (1 - W) text + W graph ------------------------
#
# The graph's similarity of names (``ClassGraph.similarity``) is a weighted Jaccard index and as such positive definite:
# the names have places in a space where it is their cosine. Those places and the text's, side by side and scaled by
# sqrt(W) and sqrt(1 - W), are unit rows again whose cosine is the mixture; k-means and linkage need no special case.

AXES = 256  # of the graph's space; with fewer classes the places are exact
EXACT = 1000  # up to this many names all axes are computed at once
NEIGHBOURS = 5


def mix(embeddings: np.ndarray, similarity: np.ndarray, weight: float) -> np.ndarray:
    """Return rows whose cosine distance is ``(1 - weight) text + weight graph``.

    A name without a known class has no place in the graph: it takes the mean place of the 5 names nearest in the text
    that have one, by their similarity. Where no name has a class the text is all there is.

    Args:
        embeddings: (N, D) float32 unit rows of the text.
        similarity: (N, N) float32 in 0..1, diagonal 1; NaN rows and columns where the graph knows nothing.
        weight: W, 0..1; 0 gives the embeddings as they are.

    Returns:
        (N, D + A) float32 unit rows.
    """
    known = np.flatnonzero(~np.isnan(similarity.diagonal()))
    if weight == 0 or not known.size:
        return embeddings
    places = _places(similarity[np.ix_(known, known)])
    graph = np.zeros((len(embeddings), places.shape[1]), dtype=np.float32)
    graph[known] = places
    unknown = np.setdiff1d(np.arange(len(embeddings)), known)
    graph[unknown] = _borrowed(embeddings[unknown], embeddings[known], places)
    return np.hstack([embeddings * np.float32(1 - weight) ** 0.5, graph * np.float32(weight) ** 0.5])


def _places(similarity: np.ndarray) -> np.ndarray:
    """Return (n, A) unit rows whose inner products approximate the similarities as well as A axes can."""
    n = len(similarity)
    if n <= EXACT:
        values, axes = np.linalg.eigh(similarity.astype(np.float64))
    else:
        values, axes = eigsh(similarity, k=AXES, v0=np.ones(n, dtype=similarity.dtype))
    largest = np.argsort(-values)[:AXES]
    return unit(axes[:, largest] * np.sqrt(np.maximum(values[largest], 0))).astype(np.float32)


def _borrowed(text: np.ndarray, known_text: np.ndarray, places: np.ndarray) -> np.ndarray:
    cosine = text @ known_text.T
    nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :NEIGHBOURS]
    near = np.maximum(np.take_along_axis(cosine, nearest, axis=1), 1e-6)
    return unit((places[nearest] * near[:, :, None]).sum(axis=1))


# -- names in groups -----------------------------------------------------------------------------------------------

DIVIDE = 0.85  # default threshold, as a share of the mean distance of all pairs of names
BY_STABILITY = ("auto", "stability")  # a build of landmarks replaces auto by silhouette
LEAST_PARTS, PARTS_A_GROUP = 1000, 8


@dataclass(frozen=True, eq=False)
class Clustering:
    """The cluster and group of every name, in the order in which the names were given.

    Attributes:
        clusters: (N,) int32 k-means clusters, numbered in the order of their first names.
        groups: (N,) int32 groups, numbered likewise.
        confidence: (N,) float32, 0..1: the margin to the next group (:func:`margins`).
        next_groups: (N,) int32 the nearest other group; -1 where there is none.
        centrality: (N,) float32 cosine with the centre of the own group.
        curve: the numbers of clusters tried; empty if k was given or the criterion is stability.
        stability: the numbers of groups tried, if the criterion is stability and no number or threshold was given.
        k: number of k-means clusters.
        threshold: mean cosine distance at which clusters were divided; below 0 if into single names.
        rows: (N, D) float32 unit rows that were clustered: the embeddings, with the class graph mixed in if asked.
    """

    clusters: np.ndarray
    groups: np.ndarray
    confidence: np.ndarray
    next_groups: np.ndarray
    centrality: np.ndarray
    curve: Curve
    stability: StabilityCurve | None
    k: int
    threshold: float
    rows: np.ndarray


def cluster_names(
    embeddings: np.ndarray,
    names: Sequence[str],
    *,
    config: ClusterConfig,
    weights: Sequence[int] | np.ndarray | None = None,
    similarity: np.ndarray | None = None,
    progress: Progress = silent,
) -> Clustering:
    """Group names by their embeddings.

    Args:
        embeddings: (N, D) unit rows, one a name.
        names: N different names; they decide numbering and ties, nothing else.
        config: the options; ``weighted`` asks for ``weights``, ``structure`` for ``similarity``.
        weights: (N,) landmarks of every name.
        similarity: (N, N) similarity by the class graph, NaN where it is not known (``ClassGraph.similarity``).
        progress: told what is being done.

    Raises:
        ConfigError: options out of range, or more clusters or groups than there are different vectors.
        ValueError: shapes that do not fit together, or no name.
    """
    rows = np.ascontiguousarray(embeddings, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(names) or not len(names) or len(set(names)) != len(names):
        raise ValueError(
            f"{len(names)} names with embeddings of shape {rows.shape}; expected a row for each of some different names"
        )
    check_options(config)
    order = np.array(sorted(range(len(names)), key=names.__getitem__))
    rows = rows[order]
    landmarks = np.ones(len(names)) if weights is None else np.maximum(np.asarray(weights, dtype=np.float64), 1)[order]
    with threadpool_limits(limits=1):
        if config.structure > 0 and similarity is not None:
            rows = mix(rows, similarity[np.ix_(order, order)], config.structure)
        shares = landmarks if config.weighted else np.ones(len(names))
        clusters, groups, curve, stability, threshold = _partition(rows, shares, config, progress)
        confidence, next_groups, centrality = margins(rows, groups, shares)
    back = np.argsort(order)
    return Clustering(
        clusters=clusters[back].astype(np.int32),
        groups=groups[back].astype(np.int32),
        confidence=confidence[back],
        next_groups=next_groups[back].astype(np.int32),
        centrality=centrality[back],
        curve=curve,
        stability=stability,
        k=int(clusters.max()) + 1,
        threshold=threshold,
        rows=rows[back],
    )


def check_options(config: ClusterConfig) -> None:
    """Refuse options that no data could serve.

    Raises:
        ConfigError: which option, its value and its range.
    """
    ranges = {
        "clusters": (0, np.inf),
        "groups": (0, np.inf),
        "threshold": (0, 2),
        "structure": (0, 1),
        "restarts": (1, 1000),
        "seed": (0, 2**32 - 1),
    }
    for option, (low, high) in ranges.items():
        value = getattr(config, option)
        if not low <= value <= high:
            most = "" if np.isinf(high) else f" to {high}"
            raise ConfigError(f"--{option} is {value}; expected a number from {low}{most}.")


def margins(rows: np.ndarray, groups: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the margin by which every name is nearer to its own group's centre than to the next one.

    The simplified silhouette (Vendramin, Campello and Hruschka, 2010): with cosine distances a to the centre of the
    own group, the name itself left out, and b to the nearest other centre, (b - a) / max(a, b), 0 if that is negative.
    A name that is alone in its group has no company to be near to: 0, as in Rousseeuw's silhouette. With one group in
    all there is nothing to doubt: 1.

    Args:
        rows: (N, D) unit rows.
        groups: (N,) labels 0..G-1.
        weights: (N,) positive weights of the rows in the centres.

    Returns:
        confidence (N,) float32, the next group (N,) with -1 for none, cosine with the own group's centre (N,) float32.
    """
    count = int(groups.max()) + 1
    total = sums(rows, groups, weights, count)
    cosine = rows @ unit(total).T
    own = np.take_along_axis(cosine, groups[:, None], axis=1)[:, 0].astype(np.float32)
    if count == 1:
        return np.ones(len(rows), dtype=np.float32), np.full(len(rows), -1), own
    others = unit(total[groups] - rows * weights[:, None].astype(rows.dtype))
    a = 1 - (rows * others).sum(axis=1)
    np.put_along_axis(cosine, groups[:, None], -np.inf, axis=1)
    following = cosine.argmax(axis=1)
    b = 1 - cosine.max(axis=1)
    larger = np.maximum(np.maximum(a, b), np.float32(1e-6))
    confidence = np.clip((b - a) / larger, 0, 1).astype(np.float32)
    confidence[np.bincount(groups)[groups] == 1] = 0
    return confidence, following, own


def _partition(
    rows: np.ndarray, shares: np.ndarray, config: ClusterConfig, progress: Progress
) -> tuple[np.ndarray, np.ndarray, Curve, StabilityCurve | None, float]:
    """Return clusters and groups of the rows, numbered by first rows; the curves; the threshold of the division."""
    _, first, point = np.unique(np.round(rows, 6), axis=0, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))  # points in the order of their first rows, not of their coordinates
    point = rank[point.ravel()]
    points = unit(rows[np.sort(first)])
    weights = np.bincount(point, shares)
    for option, wanted in (("clusters", config.clusters), ("groups", config.groups)):
        if wanted > len(points):
            raise ConfigError(
                f"--{option} {wanted} is more than the {len(points)} names of different meaning to this encoder "
                f"({len(rows)} names). Ask for at most {len(points)}."
            )
    k, curve = _number_of_clusters(points, weights, config, progress)
    progress("k-means", 0, 1)
    clusters = spherical_kmeans(points, k, weights=weights, restarts=config.restarts, seed=config.seed)
    progress("k-means", 1, 1)
    division = Division(points, clusters)
    wanted, stability = config.groups, None
    if not (wanted or config.threshold or config.clusters) and config.criterion in BY_STABILITY:
        parts = division.at(division.threshold_for(min(len(points), LEAST_PARTS)))
        means, mass = _parts(points, weights, parts)
        stability = stability_curve(means, mass, names=len(rows), seed=config.seed, progress=progress)
        wanted = stability.best or 0
    if wanted:
        threshold = division.threshold_for(min(len(points), max(LEAST_PARTS, PARTS_A_GROUP * wanted)))
        groups = _joined(points, weights, division.at(threshold), wanted)
    else:
        threshold = config.threshold or DIVIDE * _mean_distance(points)
        groups = division.at(threshold)
    return _numbered(clusters[point]), _numbered(groups[point]), curve, stability, threshold


def _number_of_clusters(
    points: np.ndarray, weights: np.ndarray, config: ClusterConfig, progress: Progress
) -> tuple[int, Curve]:
    if config.clusters:
        return config.clusters, Curve()
    if config.criterion not in ("silhouette", "elbow"):
        return max(1, min(len(points) - 1, round(2 * len(points) ** 0.5))), Curve()
    curve = k_curve(points, weights=weights, criterion=config.criterion, seed=config.seed, progress=progress)
    return curve.best, curve


def _parts(points: np.ndarray, weights: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted mean of every part, (P, D) float64, and its weight."""
    mass = np.bincount(parts, weights)
    return sums(points.astype(np.float64), parts, weights, len(mass)) / mass[:, None], mass


def _joined(points: np.ndarray, weights: np.ndarray, parts: np.ndarray, groups: int) -> np.ndarray:
    means, mass = _parts(points, weights, parts)
    return settle(points, ward(means, mass, groups)[parts], weights)


def _mean_distance(points: np.ndarray) -> float:
    """Return the mean cosine distance over all pairs of different points, from the length of their sum."""
    n = len(points)
    if n < 2:
        return 0.0
    length = float(np.square(points.sum(axis=0, dtype=np.float64)).sum())
    return max(0.0, 1 - (length - n) / (n * (n - 1)))


def _numbered(labels: np.ndarray) -> np.ndarray:
    """Return the same partition with labels in the order of their first occurrence."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
