"""Rows by descending score, compiled: sort keys, and what comes back from them."""

import numpy as np

from hgld.losses.compiled import compiled


@compiled
def fill_keys(scores: np.ndarray, keys: np.ndarray) -> None:
    """Fill (q, G) uint64 ``keys``, which ascend with descending (q, G) float32 ``scores`` and end with the column."""
    bits = scores.view(np.int32)
    for row in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            ordered = np.uint32(bits[row, j] ^ ((bits[row, j] >> np.int32(31)) & np.int32(0x7FFFFFFF)))
            descending = (ordered ^ np.uint32(0x7FFFFFFF)) & np.uint32(0xFFFFFFFF)
            keys[row, j] = (np.uint64(descending) << np.uint64(32)) | np.uint64(j)


@compiled
def read_row(
    keys: np.ndarray,
    scores: np.ndarray,
    grades: np.ndarray,
    columns: np.ndarray,
    ordered: np.ndarray,
    grade: np.ndarray,
) -> np.int64:
    """Bring a row into the order of its sorted ``keys``.

    Args:
        keys: (G,) sorted.
        scores: (G,) float32, -inf where an item is not ranked.
        grades: (G,) uint8.
        columns: (G,) int32, filled with where the items were.
        ordered: (G,) float32, filled with their scores.
        grade: (G,) uint8, filled with their grades.

    Returns:
        how many are ranked; they come first.
    """
    num_ranked = np.int64(0)
    for j in range(keys.shape[0]):
        column = np.uint32(keys[j])
        columns[j] = np.int32(column)
        ordered[j] = scores[column]
        grade[j] = grades[column]
        num_ranked += ordered[j] > -np.inf
    return num_ranked
