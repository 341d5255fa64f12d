"""Ranks and gradients with H^- of one query after another in O(G log G), compiled, float32.

A row is laid out by descending score. Counts at or above a positive (rank+, Hrank+, the half of H^- at t >= 0) and the
straight line beyond delta are running sums; sigmoid(t / tau) over all items of lower grade is read from a grid
(:mod:`hgld.losses.kernels_spread`); what it has beyond delta, where H^- is the line, is taken out again by its series
1 - e^-t + e^-2t - ..., every term of which is a running sum that decays from one positive to the next.
"""

import numpy as np

from hgld.losses.compiled import compiled
from hgld.losses.kernels_sorted import read_row
from hgld.losses.kernels_spread import NODES, PADDING, add_at, add_saturated, convolve, fall, place, read_at


@compiled
def _decay(far: np.ndarray, first: np.int64, step: np.float64) -> None:
    """Move the decaying sums, rows ``first`` and on of (.., L) ``far``, by e^-t = ``step``."""
    factor = 1.0
    for n in range(first, far.shape[0]):
        factor *= step
        for m in range(far.shape[1]):
            far[n, m] *= factor


@compiled
def _enter(far: np.ndarray, score: np.float64, grade: np.int64, term: np.float64) -> None:
    """Take an item beyond delta into the sums.

    Args:
        far: (2 + K, L) float64, for positives of the grades 1..L: count of the items of lower grade, the sum of their
            scores, K decaying sums.
        score: the item's.
        grade: the item's.
        term: e^-t, t its distance to the positive at hand in units of tau.
    """
    for m in range(grade, far.shape[1]):
        far[0, m] += 1.0
        far[1, m] += score
        factor = 1.0
        for n in range(2, far.shape[0]):
            factor *= term
            far[n, m] += factor


@compiled
def _series(far: np.ndarray, first: np.int64, m: np.int64) -> tuple[float, float]:
    """Sum of e^-t - e^-2t + ..., by which sigmoid falls short of 1, and of sigmoid' = e^-t - 2 e^-2t + ..."""
    value, slope, sign = 0.0, 0.0, 1.0
    for n in range(first, far.shape[0]):
        value += sign * far[n, m]
        slope += sign * (n - first + 1) * far[n, m]
        sign = -sign
    return value, slope


@compiled
def sup_forward(
    keys: np.ndarray,
    scores: np.ndarray,
    grades: np.ndarray,
    gains: np.ndarray,
    step: np.ndarray,
    num_terms: np.int64,
    taps: np.ndarray,
    most_cells: np.int64,
    offsets: np.ndarray,
    beyond: np.ndarray,
    found: np.ndarray,
) -> None:
    """Hrank+ and rank of every positive, H^- for the items of lower grade.

    Args:
        keys: (q, G) sorted, of :func:`hgld.losses.kernels_sorted.fill_keys`.
        scores: (q, G) float32, -inf where an item is not ranked.
        grades: (q, G) uint8.
        gains: (q, L + 1) float64.
        step: (4,) float32: tau, rho, delta and the value at delta.
        num_terms: K, terms of the sigmoid's series beyond delta.
        taps: (2, taps) of :func:`hgld.losses.kernels_spread.taps`.
        most_cells: cells that the widest row takes.
        offsets: (q + 1,) where each row's positives begin in ``beyond`` and ``found``; they come by descending score.
        beyond: (P,) int32, filled with how many items lie more than delta above a positive.
        found: (5, P) float64, filled with hrank, rank, their derivatives by the positive's own score, and its gain.
    """
    size, num_levels = scores.shape[1], gains.shape[1] - 1
    columns, ordered, grade = np.empty(size, np.int32), np.empty(size, np.float32), np.empty(size, np.uint8)
    cells, decays = np.empty(size, np.int32), np.empty(size, np.float32)
    weights = np.empty((size, NODES), np.float32)
    grid = np.empty((num_levels, most_cells + PADDING), np.float32)
    smooth, slopes = np.empty_like(grid), np.empty_like(grid)
    far = np.empty((2 + num_terms, num_levels), np.float64)
    counts = np.empty(num_levels + 1, np.float64)
    for row in range(scores.shape[0]):
        num = read_row(keys[row], scores[row], grades[row], columns, ordered, grade)
        place(ordered[:num], step[0], cells, weights, decays)
        nodes = np.int64(cells[0]) + NODES
        grid[:, : nodes + PADDING - NODES] = 0
        for j in range(num):
            if grade[j] < num_levels:
                add_at(grid[grade[j]], cells[j], weights[j], np.float32(1))
        for m in range(num_levels):
            if m > 0:
                grid[m, : nodes + PADDING - NODES] += grid[m - 1, : nodes + PADDING - NODES]
            convolve(grid[m], taps[0], nodes, smooth[m])
            add_saturated(grid[m], nodes, smooth[m])
            convolve(grid[m], taps[1], nodes, slopes[m])
        _rank_row(
            ordered[:num],
            grade,
            cells,
            decays,
            weights,
            smooth,
            slopes,
            gains[row],
            step,
            counts,
            far,
            beyond[offsets[row] : offsets[row + 1]],
            found[:, offsets[row] : offsets[row + 1]],
        )


@compiled
def _rank_row(
    ordered: np.ndarray,
    grade: np.ndarray,
    cells: np.ndarray,
    decays: np.ndarray,
    weights: np.ndarray,
    smooth: np.ndarray,
    slopes: np.ndarray,
    gain: np.ndarray,
    step: np.ndarray,
    counts: np.ndarray,
    far: np.ndarray,
    beyond: np.ndarray,
    found: np.ndarray,
) -> None:
    """Walk down a row; groups of equal scores see one another."""
    inverse, rho, delta, line = 1 / np.float64(step[0]), np.float64(step[1]), np.float64(step[2]), np.float64(step[3])
    counts[:] = 0
    far[:] = 0
    entered, previous = np.int64(0), np.int64(0)
    to, start, num = 0, 0, ordered.shape[0]
    while start < num:
        here, stop, highest = ordered[start], start, 0
        while stop < num and ordered[stop] == here:
            counts[grade[stop]] += 1.0
            highest = max(highest, np.int64(grade[stop]))
            stop += 1
        if highest > 0:
            rise = 1 / np.float64(decays[start])
            _decay(far, 2, fall(cells[previous], cells[start], decays[previous] * rise))
            previous = start
            while entered < num and ordered[entered] - here > step[2]:
                term = fall(cells[entered], cells[start], decays[entered] * rise)
                _enter(far, np.float64(ordered[entered]), np.int64(grade[entered]), term)
                entered += 1
        for k in range(start, stop):
            own = np.int64(grade[k])
            if own > 0:
                count = far[0, own - 1]
                short, short_slope = _series(far, 2, own - 1)
                rank = rho * (far[1, own - 1] - (here + delta) * count) + (line - 1.5) * count + short
                rank += read_at(smooth[own - 1], cells[k], weights[k])
                slope = rho * count + (read_at(slopes[own - 1], cells[k], weights[k]) - short_slope) * inverse
                hrank = 0.0
                for m in range(counts.shape[0]):
                    rank += counts[m] * (1.0 if m >= own else 0.5)
                    hrank += counts[m] * min(gain[m], gain[own]) * (m > 0)
                beyond[to] = entered
                found[0, to], found[1, to], found[2, to], found[3, to], found[4, to] = (
                    hrank,
                    rank,
                    0.0,
                    -slope,
                    gain[own],
                )
                to += 1
        start = stop


@compiled
def sup_backward(
    keys: np.ndarray,
    scores: np.ndarray,
    grades: np.ndarray,
    step: np.ndarray,
    num_terms: np.int64,
    num_levels: np.int64,
    taps: np.ndarray,
    most_cells: np.int64,
    offsets: np.ndarray,
    beyond: np.ndarray,
    own: np.ndarray,
    by_rank: np.ndarray,
    slopes: np.ndarray,
) -> None:
    """Gradient of the metric by every score.

    ``slopes`` (q, G) float32 is filled where an item is ranked. ``own`` (P,) is what reaches a positive through its own
    score's place in the differences, ``by_rank`` (P,) the metric's derivative by its rank, both float64; the other
    arguments are those of :func:`sup_forward`.
    """
    size = scores.shape[1]
    columns, ordered, grade = np.empty(size, np.int32), np.empty(size, np.float32), np.empty(size, np.uint8)
    cells, decays = np.empty(size, np.int32), np.empty(size, np.float32)
    weights = np.empty((size, NODES), np.float32)
    grid = np.empty((num_levels, most_cells + PADDING), np.float32)
    smooth = np.empty_like(grid)
    far = np.empty((1 + num_terms, num_levels), np.float64)
    for row in range(scores.shape[0]):
        num = read_row(keys[row], scores[row], grades[row], columns, ordered, grade)
        place(ordered[:num], step[0], cells, weights, decays)
        nodes = np.int64(cells[0]) + NODES
        grid[:, : nodes + PADDING - NODES] = 0
        i = offsets[row]
        for k in range(num):
            if grade[k] > 0:
                add_at(grid[grade[k] - 1], cells[k], weights[k], np.float32(by_rank[i]))
                i += 1
        for m in range(num_levels - 1, -1, -1):
            if m < num_levels - 1:
                grid[m, : nodes + PADDING - NODES] += grid[m + 1, : nodes + PADDING - NODES]
            convolve(grid[m], taps[1], nodes, smooth[m])
        part = slice(offsets[row], offsets[row + 1])
        _spread_row(
            ordered[:num],
            grade,
            columns,
            cells,
            decays,
            weights,
            smooth,
            step,
            far,
            beyond[part],
            own[part],
            by_rank[part],
            slopes[row],
        )


@compiled
def _spread_row(
    ordered: np.ndarray,
    grade: np.ndarray,
    columns: np.ndarray,
    cells: np.ndarray,
    decays: np.ndarray,
    weights: np.ndarray,
    smooth: np.ndarray,
    step: np.ndarray,
    far: np.ndarray,
    beyond: np.ndarray,
    own: np.ndarray,
    by_rank: np.ndarray,
    out: np.ndarray,
) -> None:
    """Walk up a row; a positive enters the sums of the items that lie more than delta above it."""
    inverse, rho = 1 / np.float64(step[0]), np.float64(step[1])
    far[:] = 0
    num, num_levels = ordered.shape[0], far.shape[1]
    previous = num - 1
    k, i, at = num - 1, beyond.shape[0] - 1, beyond.shape[0] - 1
    for j in range(num - 1, -1, -1):
        slope = 0.0
        m = np.int64(grade[j])
        if m < num_levels:
            _decay(far, 1, fall(cells[j], cells[previous], decays[j] / np.float64(decays[previous])))
            previous = j
            while i >= 0 and beyond[i] > j:
                while grade[k] == 0:
                    k -= 1
                term = fall(cells[j], cells[k], decays[j] / np.float64(decays[k]))
                _enter_positive(far, np.int64(grade[k]), by_rank[i], term)
                k -= 1
                i -= 1
            slope = rho * far[0, m] + (read_at(smooth[m], cells[j], weights[j]) - _series(far, 1, m)[1]) * inverse
        if m > 0:
            slope += own[at]
            at -= 1
        out[columns[j]] = np.float32(slope)


@compiled
def _enter_positive(far: np.ndarray, grade: np.int64, by_rank: np.float64, term: np.float64) -> None:
    """Add a positive, ``term`` = e^-t for the item at hand, to the sums (1 + K, L) of the items of grade 0..L - 1."""
    for m in range(grade):
        far[0, m] += by_rank
        factor = by_rank
        for n in range(1, far.shape[0]):
            factor *= term
            far[n, m] += factor
