"""Spherical k-means: unit rows in k clusters, each around the direction of its members' sum.

Dhillon and Modha, "Concept decompositions for large sparse text data using clustering", Machine Learning 42, 2001.
scikit-learn's ``KMeans``, best of several restarts, finds clusters of the rows' 64 leading axes (in all of them it
would take minutes). Its centres are means, shorter than 1, so that a loose cluster would draw rows more weakly than a
compact one of the same direction. So they are then taken over all axes, brought to unit length, and the rows moved to
the centre of highest cosine until nothing moves.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_array
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from ...stage import Progress, silent

MOST_ROUNDS = 100
CURVE_RESTARTS = 2  # enough to compare numbers of clusters; the chosen one is run again with all restarts
CURVE_STEPS = 16
AXES = 64
CURVE_SAMPLE = 2000


@dataclass(frozen=True)
class Curve:
    """The inertia and score of every number of clusters tried.

    Attributes:
        k: the numbers, ascending.
        inertia: mean squared distance of the rows to their cluster's mean, by weight.
        score: the criterion's value; the highest is chosen.
    """

    k: tuple[int, ...] = ()
    inertia: tuple[float, ...] = ()
    score: tuple[float, ...] = ()

    @property
    def best(self) -> int:
        """The number of clusters with the highest score, the smallest at a tie."""
        return self.k[int(np.argmax(self.score))]


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows scaled to length 1; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)


def sums(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray, k: int) -> np.ndarray:
    """Return the (k, D) weighted sums of the rows of every label 0..k-1."""
    places = (labels, np.arange(len(rows)))
    return csr_array((weights.astype(rows.dtype), places), shape=(k, len(rows))) @ rows


def spherical_kmeans(rows: np.ndarray, k: int, *, weights: np.ndarray, restarts: int, seed: int) -> np.ndarray:
    """Return clusters of unit rows.

    Args:
        rows: (N, D) float unit rows, at least k of them different.
        k: number of clusters.
        weights: (N,) positive weights of the rows.
        restarts: seedings (k-means++) that scikit-learn tries; the lowest inertia is taken.
        seed: of the seedings.

    Returns:
        (N,) int labels 0..k-1, none of them empty.
    """
    return _spherical_kmeans(rows, leading_axes(rows), k, weights, restarts, seed)


def leading_axes(rows: np.ndarray) -> np.ndarray:
    """Return (N, <= 64) float64 coordinates on the axes of the largest moments, which keep inner products best."""
    wide = rows.astype(np.float64)
    if rows.shape[1] <= AXES:
        return wide
    _, axes = np.linalg.eigh(wide.T @ wide)
    return wide @ axes[:, -AXES:]


def _spherical_kmeans(
    rows: np.ndarray, low: np.ndarray, k: int, weights: np.ndarray, restarts: int, seed: int
) -> np.ndarray:
    kmeans = KMeans(k, n_init=restarts, random_state=seed)  # pyright: ignore[reportArgumentType]  # an int is allowed
    return settle(rows, kmeans.fit_predict(low, sample_weight=weights), weights)


def settle(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Move every row to the centre of highest cosine, and the centres with them, until nothing moves.

    A round that would leave a cluster empty is not taken, so the number of clusters stays what it was.

    Args:
        rows: (N, D) unit rows.
        labels: (N,) labels 0..k-1 to start from.
        weights: (N,) positive weights.

    Returns:
        (N,) labels 0..k-1.
    """
    k = int(labels.max()) + 1
    for _ in range(MOST_ROUNDS):
        cosine = rows @ unit(sums(rows, labels, weights, k)).T
        moved = cosine.argmax(axis=1)
        # a row moves for a real gain only: ties and the last bits of a sum must not decide
        stays = np.take_along_axis(cosine, labels[:, None], axis=1)[:, 0] >= cosine.max(axis=1) - 1e-6
        moved = np.where(stays, labels, moved)
        if np.array_equal(moved, labels) or len(np.unique(moved)) < k:
            break
        labels = moved
    return labels


def k_curve(
    rows: np.ndarray,
    *,
    weights: np.ndarray,
    criterion: Literal["silhouette", "elbow"],
    seed: int,
    progress: Progress = silent,
) -> Curve:
    """Try numbers of clusters from 2 to twice the root of N, in steps of equal ratio.

    ``silhouette`` is the mean silhouette over cosine distances (Rousseeuw, J. Comput. Appl. Math. 20, 1987), on a
    sample of at most 2,000 rows. ``elbow`` is the height of the inertia's bend: how far it lies below the line from
    the curve's first point to its last, both axes scaled to 0..1 (Satopaa et al., "Finding a 'kneedle' in a
    haystack", 2011). Clusters are found on the 64 leading axes alone, and judged on all.

    Args:
        rows: (N, D) different unit rows.
        weights: (N,) positive weights; the silhouette does not use them.
        criterion: the score.
        seed: of the seedings and the sample.
        progress: told after every number.

    Returns:
        the curve; of one point for fewer than 4 rows, where there is nothing to choose.
    """
    steps = _steps(len(rows))
    if len(steps) < 2:
        return Curve((steps[0],), (0.0,), (0.0,))
    low = leading_axes(rows)
    directions = unit(low)
    sample = np.sort(np.random.default_rng(seed).permutation(len(rows))[:CURVE_SAMPLE])
    distances = np.clip(1 - rows[sample] @ rows[sample].T, 0, 2)
    np.fill_diagonal(distances, 0)
    inertia, score = [], []
    for done, k in enumerate(steps):
        progress("try numbers of clusters", done, len(steps))
        labels = _spherical_kmeans(directions, low, k, weights, CURVE_RESTARTS, seed)
        inertia.append(_inertia(rows, labels, weights, k))
        if criterion == "silhouette":
            score.append(_silhouette(distances, labels[sample]))
    progress("try numbers of clusters", len(steps), len(steps))
    if criterion == "elbow":
        score = _bend(np.array(steps, dtype=float), np.array(inertia)).tolist()
    return Curve(tuple(steps), tuple(inertia), tuple(score))


def _steps(n: int) -> list[int]:
    if n < 4:
        return [1]
    most = max(2, min(n - 1, round(2 * n**0.5)))
    return sorted({round(k) for k in np.geomspace(2, most, CURVE_STEPS)})


def _inertia(rows: np.ndarray, labels: np.ndarray, weights: np.ndarray, k: int) -> float:
    """Return the mean squared distance of unit rows to their cluster's mean: 1 less the means' mean squared length."""
    mass = np.bincount(labels, weights)
    length = np.linalg.norm(sums(rows, labels, weights, k).astype(np.float64), axis=1)
    return max(0.0, float(1 - (length**2 / mass).sum() / mass.sum()))


def _silhouette(distances: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean silhouette; 0, as it is not defined, where the sample has one cluster or one for every row."""
    if not 2 <= len(np.unique(labels)) < len(labels):
        return 0.0
    return float(silhouette_score(distances, labels, metric="precomputed"))


def _bend(k: np.ndarray, inertia: np.ndarray) -> np.ndarray:
    across = (k - k[0]) / (k[-1] - k[0])
    drop = inertia[0] - inertia[-1]
    down = (inertia - inertia[-1]) / drop if drop > 0 else 1 - across
    return 1 - across - down
