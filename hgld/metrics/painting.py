"""Grades of a block of queries on the CPU, compiled."""

import numpy as np

from hgld.metrics.compiled import compiled


@compiled
def paint_grades(members: np.ndarray, starts: np.ndarray, codes: np.ndarray, grades: np.ndarray) -> None:
    """Fill (q, G) uint8 ``grades`` from the gallery's members of every class.

    Args:
        members: (L, G) gallery indices ordered by class, one row a level, finest first.
        starts: (L, C + 1) where in that row each of up to C classes starts.
        codes: (q, L) the queries' classes; -1 where unknown or without members.
        grades: filled with L - c for the finest level c that matches, 0 elsewhere.
    """
    num_levels = members.shape[0]
    for row in range(codes.shape[0]):
        out = grades[row]
        out[:] = 0
        for level in range(num_levels - 1, -1, -1):
            code = codes[row, level]
            if code >= 0:
                for i in range(starts[level, code], starts[level, code + 1]):
                    out[np.uint32(members[level, i])] = np.uint8(num_levels - level)


@compiled
def count_grades(grades: np.ndarray, counts: np.ndarray) -> None:
    """Fill (q, L) int64 ``counts`` with how often the grades 1..L occur in each row of (q, G) uint8 ``grades``."""
    for row in range(grades.shape[0]):
        values = grades[row]
        for grade in range(1, counts.shape[1] + 1):
            count = np.int32(0)
            for item in range(values.shape[0]):
                count += np.int32(values[item] == grade)
            counts[row, grade - 1] = count
