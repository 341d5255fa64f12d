"""Nearest neighbours of unit rows by cosine, block by block, in the order of cosine and then of place."""

import numpy as np

from ..groups.kmeans import leading_axes, unit

BLOCK = 1024  # rows at a time: 200 MB of cosines beside 50,000 others
DIRECT = 10_000  # up to here all axes count; beyond, the 64 leading ones find the neighbours


def nearest(rows: np.ndarray, others: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest of other rows for each row.

    Args:
        rows: (N, D) float32 unit rows.
        others: (M, D) float32 unit rows.
        count: how many; all M if there are fewer.

    Returns:
        (N, count) places in ``others``, nearest first, the lower place at a tie; (N, count) float32 cosines.
    """
    count = min(count, len(others))
    places = np.empty((len(rows), count), dtype=np.int64)
    cosines = np.empty((len(rows), count), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        places[block], cosines[block] = _best(rows[block] @ others.T, count)
    return places, cosines


def neighbours(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest other rows of each row, as :func:`nearest`; of more than 10,000 rows by their leading axes."""
    seen = rows if len(rows) <= DIRECT else unit(leading_axes(rows)).astype(np.float32)
    count = min(count, len(rows) - 1)
    places = np.empty((len(rows), count), dtype=np.int64)
    cosines = np.empty((len(rows), count), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(rows)))
        found = seen[block] @ seen.T
        found[block - start, block] = -np.inf
        places[block], cosines[block] = _best(found, count)
    return places, cosines


def _best(cosine: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places and values of the largest entries of each row, largest first, the lower place at a tie."""
    if not count:
        return np.empty((len(cosine), 0), dtype=np.int64), np.empty((len(cosine), 0), dtype=np.float32)
    least = np.partition(cosine, -count, axis=1)[:, -count, None]
    # of entries that equal the least one taken, the first ones in order: a partition alone would take any of them
    above = cosine > least
    tied = (cosine == least) & (np.cumsum(cosine == least, axis=1) <= count - above.sum(axis=1, keepdims=True))
    places = np.nonzero(above | tied)[1].reshape(len(cosine), count)
    order = np.argsort(-np.take_along_axis(cosine, places, axis=1), axis=1, kind="stable")
    places = np.take_along_axis(places, order, axis=1)
    return places, np.take_along_axis(cosine, places, axis=1)
