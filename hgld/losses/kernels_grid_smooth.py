"""Ranks and gradients with sigmoids for all steps of one query after another in O(G log G), compiled, float32.

All sums over items are read from grids (:mod:`hgld.losses.kernels_spread`), one grid a grade, because hrank weighs
every pair of grades in its own way.
"""

import numpy as np

from hgld.losses.compiled import compiled
from hgld.losses.kernels_sorted import read_row
from hgld.losses.kernels_spread import NODES, PADDING, add_at, add_saturated, convolve, place, read_at


@compiled
def smooth_forward(
    keys: np.ndarray,
    scores: np.ndarray,
    grades: np.ndarray,
    gains: np.ndarray,
    step: np.ndarray,
    taps: np.ndarray,
    most_cells: np.int64,
    offsets: np.ndarray,
    found: np.ndarray,
) -> None:
    """Smooth hrank and rank of every positive.

    Args:
        keys: (q, G) sorted, of :func:`hgld.losses.kernels_sorted.fill_keys`.
        scores: (q, G) float32, -inf where an item is not ranked.
        grades: (q, G) uint8.
        gains: (q, L + 1) float64.
        step: (1,) float32: tau.
        taps: (2, taps) of :func:`hgld.losses.kernels_spread.taps`.
        most_cells: cells that the widest row takes.
        offsets: (q + 1,) where each row's positives begin in ``found``; they come by descending score.
        found: (5, P) float64, filled with hrank, rank, their derivatives by the positive's own score, and its gain.
    """
    size, num_grades = scores.shape[1], gains.shape[1]
    columns, ordered, grade = np.empty(size, np.int32), np.empty(size, np.float32), np.empty(size, np.uint8)
    cells, decays = np.empty(size, np.int32), np.empty(size, np.float32)
    weights = np.empty((size, NODES), np.float32)
    grid = np.empty((num_grades, most_cells + PADDING), np.float32)
    smooth, slopes = np.empty_like(grid), np.empty_like(grid)
    for row in range(scores.shape[0]):
        num = read_row(keys[row], scores[row], grades[row], columns, ordered, grade)
        place(ordered[:num], step[0], cells, weights, decays)
        nodes = np.int64(cells[0]) + NODES
        grid[:, : nodes + PADDING - NODES] = 0
        for j in range(num):
            add_at(grid[grade[j]], cells[j], weights[j], np.float32(1))
        for m in range(num_grades):
            convolve(grid[m], taps[0], nodes, smooth[m])
            add_saturated(grid[m], nodes, smooth[m])
            convolve(grid[m], taps[1], nodes, slopes[m])
        to = offsets[row]
        gain = gains[row]
        for k in range(num):
            own = np.int64(grade[k])
            if own > 0:
                hrank, rank = 0.5 * gain[own], 0.5  # a positive counts once, its sigmoid(0) below for a half
                hrank_slope, rank_slope = 0.0, 0.0
                for m in range(num_grades):
                    both = min(gain[m], gain[own]) * (m > 0)
                    total = read_at(smooth[m], cells[k], weights[k])
                    slope = read_at(slopes[m], cells[k], weights[k])
                    hrank += both * total
                    rank += total
                    hrank_slope += both * slope
                    rank_slope += slope
                found[0, to], found[1, to], found[4, to] = hrank, rank, gain[own]
                found[2, to], found[3, to] = -hrank_slope / step[0], -rank_slope / step[0]
                to += 1


@compiled
def smooth_backward(
    keys: np.ndarray,
    scores: np.ndarray,
    grades: np.ndarray,
    gains: np.ndarray,
    step: np.ndarray,
    taps: np.ndarray,
    most_cells: np.int64,
    offsets: np.ndarray,
    own: np.ndarray,
    by_hrank: np.ndarray,
    by_rank: np.ndarray,
    slopes: np.ndarray,
) -> None:
    """Gradient of the metric by every score.

    ``slopes`` (q, G) float32 is filled where an item is ranked. ``own`` (P,) is what reaches a positive through its own
    score's place in the differences, ``by_hrank`` and ``by_rank`` (P,) are the metric's derivatives by its hrank and
    rank, all float64; the other arguments are those of :func:`smooth_forward`.
    """
    size, num_grades = scores.shape[1], gains.shape[1]
    columns, ordered, grade = np.empty(size, np.int32), np.empty(size, np.float32), np.empty(size, np.uint8)
    cells, decays = np.empty(size, np.int32), np.empty(size, np.float32)
    weights = np.empty((size, NODES), np.float32)
    grid = np.empty((num_grades, most_cells + PADDING), np.float32)
    smooth = np.empty_like(grid)
    for row in range(scores.shape[0]):
        num = read_row(keys[row], scores[row], grades[row], columns, ordered, grade)
        place(ordered[:num], step[0], cells, weights, decays)
        nodes = np.int64(cells[0]) + NODES
        grid[:, : nodes + PADDING - NODES] = 0
        i = offsets[row]
        gain = gains[row]
        for k in range(num):
            if grade[k] > 0:
                for m in range(num_grades):
                    both = min(gain[m], gain[grade[k]]) * (m > 0)
                    add_at(grid[m], cells[k], weights[k], np.float32(by_rank[i] + both * by_hrank[i]))
                i += 1
        for m in range(num_grades):
            convolve(grid[m], taps[1], nodes, smooth[m])
        i = offsets[row]
        for j in range(num):
            slope = np.float64(read_at(smooth[grade[j]], cells[j], weights[j])) / step[0]
            if grade[j] > 0:
                slope += own[i]
                i += 1
            slopes[row, columns[j]] = np.float32(slope)
