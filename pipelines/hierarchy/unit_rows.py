"""Rows of unit length that stand for names: scaling, sums by group, leading axes, nearest neighbours."""

import numpy as np
from scipy.sparse import csr_array

AXES = 64
_BLOCK = 1024  # rows at a time: 200 MB of cosines beside 50,000 others


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows scaled to length 1; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)


def sums(rows: np.ndarray, labels: np.ndarray, k: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the (k, D) sums of the rows of every label 0..k-1, weighted if weights are given."""
    shares = np.ones(len(rows)) if weights is None else weights
    return csr_array((shares.astype(rows.dtype), (labels, np.arange(len(rows)))), shape=(k, len(rows))) @ rows


def leading_axes(rows: np.ndarray) -> np.ndarray:
    """Return (N, <= 64) float64 coordinates on the axes of the largest moments, which keep inner products best."""
    wide = rows.astype(np.float64)
    if rows.shape[1] <= AXES:
        return wide
    _, axes = np.linalg.eigh(wide.T @ wide)
    return wide @ axes[:, -AXES:]


def nearest(rows: np.ndarray, others: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest of other rows for each row.

    Args:
        rows: (N, D) float32 unit rows.
        others: (M, D) float32 unit rows.
        count: number of neighbours per row; at most M are returned.

    Returns:
        (N, count) indices into ``others``, nearest first, the lower index at a tie; (N, count) float32 cosines.
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
    """Return the unit mean of the values of each row's ``count`` nearest known rows, weighted by cosine.

    Args:
        rows: (N, D) float32 unit rows.
        known: (M, D) float32 unit rows, at least one.
        values: (M, E), one row per known row.
        count: number of neighbours.
    """
    indices, cosines = nearest(rows, known, count)
    near = np.maximum(cosines, np.float32(1e-3))[:, :, None]
    return unit((values[indices] * near).sum(axis=1) / near.sum(axis=1))
