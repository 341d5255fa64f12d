"""Ranks and gradients of one query after another in O(G log G), compiled, float32: a sort, running sums and a grid."""

import numpy as np

from hgld.losses.kernels.compiled import compiled, exp_float32, helper, product

# -- rows by descending score -----------------------------------------------------------------------------------------


@compiled
def fill_keys(scores: np.ndarray, keys: np.ndarray) -> None:
    """Fill (q, G) uint64 ``keys``, which ascend with descending (q, G) float32 ``scores`` and end with the column."""
    bits = scores.view(np.int32)
    for row in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            ordered = np.uint32(bits[row, j] ^ ((bits[row, j] >> np.int32(31)) & np.int32(0x7FFFFFFF)))
            descending = (ordered ^ np.uint32(0x7FFFFFFF)) & np.uint32(0xFFFFFFFF)
            keys[row, j] = (np.uint64(descending) << np.uint64(32)) | np.uint64(j)


@helper
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


# -- sums of sigmoids -------------------------------------------------------------------------------------------------
#
# A sum of sigmoids over many items is a convolution: spread on a grid, convolve, interpolate.
#
# The sum over items j of w_j f((s_j - x) / tau) for a smooth f is taken in three steps, each linear in the items or in
# the nodes: every item's weight is spread over the eight nodes around it with Lagrange's weights, the nodes are
# convolved with f, and the result is read at x with the same weights. With nodes 0.3 tau apart this is exact to 2e-7 of
# a sigmoid.

NODE_DISTANCE = 0.3  # in units of tau; with eight nodes an item the error is 2e-7, at 0.4 ten times as much
NODES = 8
REACH = 60  # nodes on either side: sigmoid(-18) is 1.5e-8
_UNROLLED = 4  # taps a sweep: one load and store of the result for four products
_NUM_TAPS = -(-(2 * REACH + 1) // _UNROLLED) * _UNROLLED
PADDING = _NUM_TAPS + NODES  # nodes that a grid has beyond the cells of its items

_FALL = np.append(np.exp(-NODE_DISTANCE * np.arange(256)), 0.0)  # e^-t at the nodes, nothing beyond t = 77


def taps() -> np.ndarray:
    """Return the sigmoid and its derivative at the nodes -REACH..REACH, (2, taps) float32, zeros to a multiple of 4."""
    t = np.arange(-REACH, REACH + 1) * NODE_DISTANCE
    value = 1 / (1 + np.exp(-t))
    both = np.zeros((2, _NUM_TAPS), np.float32)
    both[:, : len(t)] = value, value * (1 - value)
    return both


@helper
def place(scores: np.ndarray, tau: np.float32, cells: np.ndarray, weights: np.ndarray, decays: np.ndarray) -> None:
    """Find every item's place on the grid.

    Args:
        scores: (n,) float32 by descending score.
        tau: width of the sigmoid.
        cells: (n,) int32, filled with the first node of an item.
        weights: (n, 8) float32, filled with the weights of its nodes.
        decays: (n,) float32, filled with e^-t for t the distance to the cell's begin, in units of tau.
    """
    lowest = np.float64(scores[scores.shape[0] - 1])
    inverse = 1 / (NODE_DISTANCE * np.float64(tau))
    for j in range(scores.shape[0]):
        u = product(np.float64(scores[j]) - lowest, inverse)  # in float32 its rounding would exceed the grid's error
        cell = np.int32(u)
        f = np.float32(u - np.float64(cell))
        cells[j] = cell
        decays[j] = exp_float32(f * np.float32(-NODE_DISTANCE))
        a3, a2, a1 = f + np.float32(3), f + np.float32(2), f + np.float32(1)
        b1, b2, b3, b4 = f - np.float32(1), f - np.float32(2), f - np.float32(3), f - np.float32(4)
        left, right = a1 * f, b1 * b2
        outer_left, outer_right = a3 * a2, b3 * b4
        near, ends = left * right, outer_left * outer_right
        weights[j, 0] = a2 * near * outer_right * np.float32(-1 / 5040)
        weights[j, 1] = a3 * near * outer_right * np.float32(1 / 720)
        weights[j, 2] = f * right * ends * np.float32(-1 / 240)
        weights[j, 3] = a1 * right * ends * np.float32(1 / 144)
        weights[j, 4] = left * b2 * ends * np.float32(-1 / 144)
        weights[j, 5] = left * b1 * ends * np.float32(1 / 240)
        weights[j, 6] = outer_left * near * b4 * np.float32(-1 / 720)
        weights[j, 7] = outer_left * near * b3 * np.float32(1 / 5040)


@helper
def fall(above: np.int32, below: np.int32, ratio: np.float64) -> np.float64:
    """Return e^-t for two items' distance in units of tau, from their cells and the ratio of their ``decays``."""
    return _FALL[min(np.int64(above) - np.int64(below), 256)] * ratio


@helper
def add_at(grid: np.ndarray, cell: np.int32, weights: np.ndarray, factor: np.float32) -> None:
    """Spread an item of weight ``factor``; ``grid`` has REACH zeros before its first node."""
    at = np.int64(cell) + np.int64(REACH)
    for r in range(NODES):
        grid[at + r] += factor * weights[r]


@helper
def add_row(grid: np.ndarray, more: np.ndarray, size: np.int64) -> None:
    """Add the first ``size`` nodes of another grid; assigning slices makes numba compile half its strings."""
    for i in range(size):
        grid[i] += more[i]


@helper
def read_at(values: np.ndarray, cell: np.int32, weights: np.ndarray) -> np.float32:
    """Interpolate the result of :func:`convolve` at an item's place."""
    at = np.int64(cell)
    total = values[at] * weights[0]
    for r in range(1, NODES):
        total += values[at + r] * weights[r]
    return total


@helper
def convolve(grid: np.ndarray, kernel: np.ndarray, num_nodes: np.int64, out: np.ndarray) -> None:
    """Fill ``out[i] = sum_r kernel[r] grid[i + r]`` for ``num_nodes`` nodes.

    Args:
        grid: (>= num_nodes + taps,) float32.
        kernel: (taps,) float32, a multiple of four.
        num_nodes: how many.
        out: filled.
    """
    out[:num_nodes] = 0
    for r in range(0, kernel.shape[0], 4):
        k0, k1, k2, k3 = kernel[r], kernel[r + 1], kernel[r + 2], kernel[r + 3]
        w0, w1, w2, w3 = grid[r:], grid[r + 1 :], grid[r + 2 :], grid[r + 3 :]
        for i in range(num_nodes):
            out[i] += k0 * w0[i] + k1 * w1[i] + k2 * w2[i] + k3 * w3[i]


@helper
def add_saturated(grid: np.ndarray, num_nodes: np.int64, out: np.ndarray) -> None:
    """Add the nodes more than REACH above, where the sigmoid is 1, to the result of :func:`convolve`."""
    above = 0.0
    for i in range(num_nodes - 1, -1, -1):
        if i + REACH + 1 < num_nodes:
            above += grid[i + 2 * REACH + 1]
        out[i] += np.float32(above)


# -- sigmoids for all steps -------------------------------------------------------------------------------------------
#
# All sums over items are read from grids, one a grade, because hrank weighs every pair of grades in its own way.


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
    """Compute the smooth hrank and rank of every positive.

    Args:
        keys: (q, G) sorted, of :func:`hgld.losses.kernels.grid.fill_keys`.
        scores: (q, G) float32, -inf where an item is not ranked.
        grades: (q, G) uint8.
        gains: (q, L + 1) float64.
        step: (1,) float32: tau.
        taps: (2, taps) of :func:`hgld.losses.kernels.grid.taps`.
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
            grade_k = np.int64(grade[k])
            if grade_k > 0:
                hrank, rank = 0.5 * gain[grade_k], 0.5  # a positive counts once, its sigmoid(0) below for a half
                hrank_slope, rank_slope = 0.0, 0.0
                for m in range(num_grades):
                    both = min(gain[m], gain[grade_k]) * (m > 0)
                    total = read_at(smooth[m], cells[k], weights[k])
                    slope = read_at(slopes[m], cells[k], weights[k])
                    hrank += both * total
                    rank += total
                    hrank_slope += both * slope
                    rank_slope += slope
                found[0, to], found[1, to], found[4, to] = hrank, rank, gain[grade_k]
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
    by_self: np.ndarray,
    by_hrank: np.ndarray,
    by_rank: np.ndarray,
    slopes: np.ndarray,
) -> None:
    """Compute the gradient of the metric by every score.

    ``slopes`` (q, G) float32 is filled where an item is ranked. ``by_self`` (P,) is the metric's derivative by a
    positive's own score in all differences, ``by_hrank`` and ``by_rank`` (P,) those by its hrank and rank, all float64;
    the other arguments are those of :func:`smooth_forward`.
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
                slope += by_self[i]
                i += 1
            slopes[row, columns[j]] = np.float32(slope)


# -- H^- for items of lower grade -------------------------------------------------------------------------------------
#
# A row is laid out by descending score. Counts at or above a positive (rank+, Hrank+, the half of H^- at t >= 0) and
# the straight line beyond delta are running sums; sigmoid(t / tau) over all items of lower grade is read from a grid;
# the part beyond delta, where H^- is the line, is taken out again by its series 1 - e^-t + e^-2t - ..., every term of
# which is a running sum that decays from one positive to the next.


@helper
def _decay(far: np.ndarray, first: np.int64, step: np.float64) -> None:
    """Move the decaying sums, rows ``first`` and on of (.., L) ``far``, by e^-t = ``step``."""
    factor = 1.0
    for n in range(first, far.shape[0]):
        factor *= step
        for m in range(far.shape[1]):
            far[n, m] *= factor


@helper
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


@helper
def _series(far: np.ndarray, first: np.int64, m: np.int64) -> tuple[float, float]:
    """Sum up e^-t - e^-2t + ..., by which sigmoid falls short of 1, and sigmoid' = e^-t - 2 e^-2t + ..."""
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
    """Compute Hrank+ and rank of every positive, with H^- for the items of lower grade.

    Args:
        keys: (q, G) sorted, of :func:`hgld.losses.kernels.grid.fill_keys`.
        scores: (q, G) float32, -inf where an item is not ranked.
        grades: (q, G) uint8.
        gains: (q, L + 1) float64.
        step: (4,) float32: tau, rho, delta and the value at delta.
        num_terms: K, terms of the sigmoid's series beyond delta.
        taps: (2, taps) of :func:`hgld.losses.kernels.grid.taps`.
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
                add_row(grid[m], grid[m - 1], nodes + PADDING - NODES)
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


@helper
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
            grade_k = np.int64(grade[k])
            if grade_k > 0:
                count = far[0, grade_k - 1]
                short, short_slope = _series(far, 2, grade_k - 1)
                rank = rho * (far[1, grade_k - 1] - (here + delta) * count) + (line - 1.5) * count + short
                rank += read_at(smooth[grade_k - 1], cells[k], weights[k])
                slope = rho * count + (read_at(slopes[grade_k - 1], cells[k], weights[k]) - short_slope) * inverse
                hrank = 0.0
                for m in range(counts.shape[0]):
                    rank += counts[m] * (1.0 if m >= grade_k else 0.5)
                    hrank += counts[m] * min(gain[m], gain[grade_k]) * (m > 0)
                beyond[to] = entered
                found[0, to], found[1, to], found[2, to], found[3, to], found[4, to] = (
                    hrank,
                    rank,
                    0.0,
                    -slope,
                    gain[grade_k],
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
    by_self: np.ndarray,
    by_rank: np.ndarray,
    slopes: np.ndarray,
) -> None:
    """Compute the gradient of the metric by every score.

    ``slopes`` (q, G) float32 is filled where an item is ranked. ``by_self`` (P,) is the metric's derivative by a
    positive's own score in all differences, ``by_rank`` (P,) that by its rank, both float64; the other arguments are
    those of :func:`sup_forward`.
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
                add_row(grid[m], grid[m + 1], nodes + PADDING - NODES)
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
            by_self[part],
            by_rank[part],
            slopes[row],
        )


@helper
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
    by_self: np.ndarray,
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
            slope += by_self[at]
            at -= 1
        out[columns[j]] = np.float32(slope)


@helper
def _enter_positive(far: np.ndarray, grade: np.int64, by_rank: np.float64, term: np.float64) -> None:
    """Add a positive, ``term`` = e^-t for the item at hand, to the sums (1 + K, L) of the items of grade 0..L - 1."""
    for m in range(grade):
        far[0, m] += by_rank
        factor = by_rank
        for n in range(1, far.shape[0]):
            factor *= term
            far[n, m] += factor
