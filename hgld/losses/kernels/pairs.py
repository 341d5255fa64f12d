"""Ranks and gradients of one query after another by all (positive, item) pairs, compiled, float32.

A row is laid out by ascending grade, so that the items below a positive are one contiguous run and no inner loop has a
mask. Forward kernels write, for every positive, its smooth hrank and rank and their derivatives by its own score;
backward kernels take the metric's derivatives by hrank and rank back to the scores of all items.
"""

import numpy as np

from hgld.losses.kernels.compiled import compiled, product, sigmoid


@compiled
def by_grade(
    scores: np.ndarray, grades: np.ndarray, columns: np.ndarray, ordered: np.ndarray, starts: np.ndarray
) -> None:
    """Order every row by ascending grade.

    Args:
        scores: (q, G) float32, -inf where an item is not ranked.
        grades: (q, G) uint8 in 0..L.
        columns: (q, G) int32, filled with where the items of a row were; those that are not ranked are missing.
        ordered: (q, G), filled with their scores.
        starts: (q, L + 2) int64, filled with where each grade starts and with the number of ranked items.
    """
    for row in range(scores.shape[0]):
        start = starts[row]
        start[:] = 0
        for j in range(scores.shape[1]):
            start[np.int64(grades[row, j]) + 1] += scores[row, j] > -np.inf
        for grade in range(1, start.shape[0]):
            start[grade] += start[grade - 1]
        place = start.copy()
        for j in range(scores.shape[1]):
            if scores[row, j] > -np.inf:
                to = place[grades[row, j]]
                place[grades[row, j]] = to + 1
                columns[row, to] = j
                ordered[row, to] = scores[row, j]


@compiled
def sup_forward(
    ordered: np.ndarray,
    starts: np.ndarray,
    gains: np.ndarray,
    step: np.ndarray,
    offsets: np.ndarray,
    found: np.ndarray,
) -> None:
    """Compute Hrank+ and rank of every positive, with H^- for the items of lower grade.

    Args:
        ordered: (q, G) of :func:`by_grade`.
        starts: (q, L + 2) of :func:`by_grade`.
        gains: (q, L + 1) float64.
        step: (4,) float32: tau, rho, delta and the value at delta.
        offsets: (q + 1,) where each row's positives begin in ``found``.
        found: (5, P) float64, filled with hrank, rank, their derivatives by the positive's own score, and its gain.
    """
    zero, half, one = np.float32(0), np.float32(0.5), np.float32(1)  # plain numbers would be float64
    inverse, rho, delta, line = one / step[0], step[1], step[2], step[3]
    for row in range(ordered.shape[0]):
        start, gain, score = starts[row], gains[row], ordered[row]
        to = offsets[row]
        for grade in range(1, gain.shape[0]):
            lower = score[: start[grade]]
            for k in range(start[grade], start[grade + 1]):
                here = score[k]
                rank, slope = zero, zero
                for j in range(lower.shape[0]):
                    x = lower[j] - here
                    value, derivative = sigmoid(product(x, inverse))
                    near = value + (half if x >= 0 else zero)
                    rank += product(x - delta, rho) + line if x > delta else near
                    slope += rho if x > delta else derivative * inverse
                hrank, total = 0.0, float(rank)
                for other in range(1, gain.shape[0]):
                    run = score[start[other] : start[other + 1]]
                    count = np.int32(0)
                    for j in range(run.shape[0]):
                        count += np.int32(run[j] >= here)
                    hrank += count * min(gain[grade], gain[other])
                    total += count if other >= grade else 0
                found[0, to], found[1, to], found[2, to], found[3, to] = hrank, total, 0.0, -slope
                found[4, to] = gain[grade]
                to += 1


@compiled
def sup_backward(
    ordered: np.ndarray,
    columns: np.ndarray,
    starts: np.ndarray,
    step: np.ndarray,
    offsets: np.ndarray,
    by_self: np.ndarray,
    by_rank: np.ndarray,
    slopes: np.ndarray,
) -> None:
    """Compute the gradient of the metric by every score.

    Args:
        ordered: (q, G) of :func:`by_grade`.
        columns: (q, G) of :func:`by_grade`.
        starts: (q, L + 2) of :func:`by_grade`.
        step: (4,) as in :func:`sup_forward`.
        offsets: (q + 1,) where each row's positives begin in ``by_self`` and ``by_rank``.
        by_self: (P,) float32, derivatives of the metric by the positives' own scores in all differences.
        by_rank: (P,) float32, derivatives of the metric by the ranks.
        slopes: (q, G), filled where an item is ranked.
    """
    inverse, rho, delta = np.float32(1) / step[0], step[1], step[2]
    gradient = np.empty(ordered.shape[1], np.float32)
    for row in range(ordered.shape[0]):
        start, score = starts[row], ordered[row]
        num_ranked = start[start.shape[0] - 1]
        for j in range(num_ranked):  # an assignment of slices makes numba compile half its strings
            gradient[j] = by_self[offsets[row] + j - start[1]] if j >= start[1] else np.float32(0)
        for grade in range(1, start.shape[0] - 1):
            lower = score[: start[grade]]
            for k in range(start[grade], start[grade + 1]):
                here = score[k]
                weight = by_rank[offsets[row] + k - start[1]]
                near, far = weight * inverse, weight * rho
                for j in range(lower.shape[0]):
                    x = lower[j] - here
                    derivative = sigmoid(product(x, inverse))[1]
                    gradient[j] += far if x > delta else derivative * near
        for j in range(num_ranked):
            slopes[row, columns[row, j]] = gradient[j]


@compiled
def smooth_forward(
    ordered: np.ndarray,
    starts: np.ndarray,
    gains: np.ndarray,
    step: np.ndarray,
    offsets: np.ndarray,
    found: np.ndarray,
) -> None:
    """Compute hrank and rank of every positive, with a sigmoid for every step.

    Arguments are those of :func:`sup_forward`, but for ``step``: (1,), tau.
    """
    zero, inverse = np.float32(0), np.float32(1) / step[0]
    for row in range(ordered.shape[0]):
        start, gain, score = starts[row], gains[row], ordered[row]
        to = offsets[row]
        for grade in range(1, gain.shape[0]):
            for k in range(start[grade], start[grade + 1]):
                here = score[k]
                hrank, rank = 0.5 * gain[grade], 0.5  # a positive counts once, its sigmoid(0) below for a half
                hrank_slope, rank_slope = 0.0, 0.0
                for other in range(gain.shape[0]):
                    run = score[start[other] : start[other + 1]]
                    total, slope = zero, zero
                    for j in range(run.shape[0]):
                        value, derivative = sigmoid(product(run[j] - here, inverse))
                        total += value
                        slope += derivative
                    both = min(gain[grade], gain[other]) * (other > 0)
                    hrank += both * total
                    rank += total
                    hrank_slope += both * slope
                    rank_slope += slope
                found[0, to], found[1, to], found[4, to] = hrank, rank, gain[grade]
                found[2, to], found[3, to] = -hrank_slope * inverse, -rank_slope * inverse
                to += 1


@compiled
def smooth_backward(
    ordered: np.ndarray,
    columns: np.ndarray,
    starts: np.ndarray,
    gains: np.ndarray,
    step: np.ndarray,
    offsets: np.ndarray,
    by_self: np.ndarray,
    by_hrank: np.ndarray,
    by_rank: np.ndarray,
    slopes: np.ndarray,
) -> None:
    """Compute the gradient of the metric by every score, with a sigmoid for every step.

    Arguments are those of :func:`sup_backward`, and the derivatives by the hranks.
    """
    inverse = np.float32(1) / step[0]
    gradient = np.empty(ordered.shape[1], np.float32)
    for row in range(ordered.shape[0]):
        start, gain, score = starts[row], gains[row], ordered[row]
        num_ranked = start[start.shape[0] - 1]
        for j in range(num_ranked):  # an assignment of slices makes numba compile half its strings
            gradient[j] = by_self[offsets[row] + j - start[1]] if j >= start[1] else np.float32(0)
        for grade in range(1, gain.shape[0]):
            for k in range(start[grade], start[grade + 1]):
                here = score[k]
                i = offsets[row] + k - start[1]
                for other in range(gain.shape[0]):
                    both = np.float32(min(gain[grade], gain[other]) * (other > 0))
                    weight = (by_rank[i] + by_hrank[i] * both) * inverse
                    run, out = score[start[other] : start[other + 1]], gradient[start[other] : start[other + 1]]
                    for j in range(run.shape[0]):
                        out[j] += weight * sigmoid(product(run[j] - here, inverse))[1]
        for j in range(num_ranked):
            slopes[row, columns[row, j]] = gradient[j]
