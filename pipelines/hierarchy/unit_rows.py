"""Operations on unit rows, which represent names: scaling, sums by group, silhouettes, axes, nearest neighbours."""

import numpy as np
from scipy.sparse import csr_array

AXES = 64
_BLOCK = 1024  # number of rows at a time; their cosines with 50,000 rows take 200 MB


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows scaled to length 1; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)


def sums(rows: np.ndarray, labels: np.ndarray, k: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the (k, D) sums of the rows of every label 0..k-1, weighted if weights are given."""
    shares = np.ones(len(rows)) if weights is None else weights
    return csr_array((shares.astype(rows.dtype), (labels, np.arange(len(rows)))), shape=(k, len(rows))) @ rows


def silhouettes(
    rows: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the simplified silhouette of every row (Vendramin, Campello and Hruschka, 2010).

    The silhouette is (b - a) / max(a, b). Here a is the cosine distance to the centre of the other rows of the row's
    group, and b the distance to the nearest centre of another group. The silhouette is 0 for the only row of a group,
    and 1 if there is only one group.

    Args:
        rows: (N, D) unit rows.
        groups: (N,) labels 0..G-1.
        weights: (N,) positive weights of the rows in the centres; None: every row has weight 1.

    Returns:
        (N,) float32 silhouettes in -1..1; (N,) the nearest other group, -1 if there is only one group; (N,) float32
        cosines with the centre of the row's group.
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


def leading_axes(rows: np.ndarray, count: int = AXES) -> np.ndarray:
    """Return (N, <= count) float64 coordinates on the axes with the largest moments, which best keep inner products."""
    wide = rows.astype(np.float64)
    if rows.shape[1] <= count:
        return wide
    _, axes = np.linalg.eigh(wide.T @ wide)
    return wide @ axes[:, -count:]


def nearest(rows: np.ndarray, others: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row its nearest rows among other rows.

    Args:
        rows: (N, D) float32 unit rows.
        others: (M, D) float32 unit rows.
        count: number of neighbours per row; at most M are returned.

    Returns:
        (N, count) indices into ``others``, nearest first, then by index; (N, count) float32 cosines.
    """
    count = min(count, len(others))
    indices = np.empty((len(rows), count), dtype=np.int64)
    cosines = np.empty((len(rows), count), dtype=np.float32)
    for start in range(0, len(rows) if count else 0, _BLOCK):
        block = slice(start, start + _BLOCK)
        cosine = rows[block] @ others.T
        best = np.sort(np.argpartition(-cosine, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(-np.take_along_axis(cosine, best, axis=1), axis=1, kind="stable")
        indices[block] = np.take_along_axis(best, order, axis=1)
        cosines[block] = np.take_along_axis(cosine, indices[block], axis=1)
    return indices, cosines


def borrow(rows: np.ndarray, known: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return, for each row, a mean of the values of its ``count`` nearest known rows.

    The mean is weighted by cosine and normalised to length 1.

    Args:
        rows: (N, D) float32 unit rows.
        known: (M, D) float32 unit rows, at least one.
        values: (M, E) values, one row per known row.
        count: number of neighbours.
    """
    indices, cosines = nearest(rows, known, count)
    near = np.maximum(cosines, np.float32(1e-3))[:, :, None]
    return unit((values[indices] * near).sum(axis=1) / near.sum(axis=1))
