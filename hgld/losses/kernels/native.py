"""The rank metrics over all (positive, item) pairs on the CPU: float32, compiled by numba, in torch's threads.

A row is laid out by ascending grade, so that the items below a positive are one contiguous run and no inner loop has a
mask. Forward kernels write the smooth hrank and rank of every positive, and their derivatives with respect to its own
score. Backward kernels turn the metric's derivatives with respect to hrank and rank into derivatives with respect to
the scores of all items.

The compiler may reorder sums to vectorise them, because a loss needs only be accurate within error bounds. The metrics
(:mod:`hgld.evaluation.ranks`) must be reproducible, so their sums keep their order.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError
from hgld.evaluation.ranks import njit
from hgld.losses.kernels.objectives import Objective, Positives, Sigmoid, Surrogate, pack_surrogate

# The compiler vectorises sums only if it may reorder them and contract products. Infinities keep their meaning, because
# -inf is the score of an item that is not ranked.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, like :func:`hgld.evaluation.ranks.compiled` but with reordered sums."""
    return njit(function, fastmath=_FASTMATH)


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that compiled functions call, like :func:`hgld.evaluation.ranks.helper`."""
    return njit(function, fastmath=_FASTMATH, entry=False)


def _product(a: Any, b: Any) -> Any:
    """Multiply without reordering: (s_j - s_k) b must not become s_j b - s_k b, which cancels and overflows."""
    return a * b


product = njit(_product, entry=False)


@helper
def exp_float32(x: Any) -> Any:
    """Return e^x for a float32 of |x| <= 80, with a relative error below 1e-6 for |x| < 17.

    The result is 2^n times a polynomial on [-1/2, 1/2]. The computation vectorises without Intel's SVML.
    """
    y = x * np.float32(1.4426950408889634)
    whole = np.floor(y + np.float32(0.5))
    f = y - whole
    power = np.float32(1.535336188319500e-4)
    power = power * f + np.float32(1.339887440266574e-3)
    power = power * f + np.float32(9.618437357674640e-3)
    power = power * f + np.float32(5.550332471162809e-2)
    power = power * f + np.float32(2.402264791363012e-1)
    power = power * f + np.float32(6.931472028550421e-1)
    power = power * f + np.float32(1.0)
    return power * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@helper
def sigmoid(t: Any) -> Any:
    """Return 1 / (1 + e^-t) and its derivative, in float32."""
    decay = exp_float32(-min(abs(t), np.float32(80)))  # at most 1, so that no order of the multiplications overflows
    upper = np.float32(1) / (np.float32(1) + decay)
    lower = decay * upper
    return upper if t >= 0 else lower, lower * upper


# For a pair with t = (s_j - s_k) / tau, e^-t is the product of a factor per item and a factor per positive. Both are
# relative to a center near s_k, so there is one exponential per item instead of one per pair. While s_k is within _NEAR
# tau of the center, an item that is cut off at _REACH tau is at least 21 tau away from s_k. There the sigmoid is
# saturated, and no product overflows float32.
_NEAR, _REACH = np.float32(33), np.float32(54)


@helper
def fill_decays(scores: np.ndarray, here: Any, center: Any, inverse: Any, decays: np.ndarray) -> Any:
    """Fill ``decays[j]`` with e^-((scores[j] - here) / tau) and return ``here``, if ``here`` is far from the center.

    Args:
        scores: (n,) float32 scores.
        here: score of a positive.
        center: the center that the last call returned; infinite in the first call.
        inverse: 1 / tau.
        decays: (n,) float32, filled with one factor per item.

    Returns:
        the center that ``decays`` is relative to.
    """
    if abs(product(here - center, inverse)) <= _NEAR:
        return center
    for j in range(scores.shape[0]):
        t = product(scores[j] - here, inverse)
        decays[j] = exp_float32(-max(min(t, _REACH), -_REACH))
    return here


@compiled
def by_grade(
    scores: np.ndarray, grades: np.ndarray, columns: np.ndarray, ordered: np.ndarray, starts: np.ndarray
) -> None:
    """Order every row by ascending grade.

    Args:
        scores: (q, G) float32, -inf where an item is not ranked.
        grades: (q, G) uint8 in 0..L.
        columns: (q, G) int32, filled with the original columns of a row's ranked items.
        ordered: (q, G), filled with the scores of a row's ranked items.
        starts: (q, L + 2) int64, filled with the start of each grade and, at the end, the number of ranked items.
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
    """Compute the H-rank and the rank of every positive; items of lower grade count with SupRank's surrogate of a step.

    Args:
        ordered: (q, G) array of :func:`by_grade`.
        starts: (q, L + 2) array of :func:`by_grade`.
        gains: (q, L + 1) float64, gain of each grade.
        step: (4,) float32: tau, rho and delta of SupRank's step, and the step's value at delta.
        offsets: (q + 1,) where each row's positives begin in ``found``.
        found: (5, P) float64, filled with hrank, rank, their derivatives with respect to the positive's own score, and
            the gain.
    """
    zero, half, one = np.float32(0), np.float32(0.5), np.float32(1)  # Python numbers would turn the sums into float64
    inverse, rho, delta, line = one / step[0], step[1], step[2], step[3]
    decays = np.empty(ordered.shape[1], np.float32)
    for row in range(ordered.shape[0]):
        start, gain, score = starts[row], gains[row], ordered[row]
        to, center = offsets[row], np.float32(np.inf)
        for grade in range(1, gain.shape[0]):
            lower = score[: start[grade]]
            for k in range(start[grade], start[grade + 1]):
                here = score[k]
                center = fill_decays(score[: start[gain.shape[0] - 1]], here, center, inverse, decays)
                factor = exp_float32(product(here - center, inverse))
                rank, slope = zero, zero
                for j in range(lower.shape[0]):
                    x = lower[j] - here
                    value = one / (one + decays[j] * factor)
                    near = value + (half if x >= 0 else zero)
                    rank += product(x - delta, rho) + line if x > delta else near
                    # The compiler may turn decay value^2 / tau into infinity times 0.
                    derivative = value - value * value
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
    """Compute the gradient of the metric with respect to every score.

    Args:
        ordered: (q, G) array of :func:`by_grade`.
        columns: (q, G) array of :func:`by_grade`.
        starts: (q, L + 2) array of :func:`by_grade`.
        step: (4,) float32: tau, rho and delta of SupRank's step, and the step's value at delta.
        offsets: (q + 1,) where each row's positives begin in ``by_self`` and ``by_rank``.
        by_self: (P,) float32, derivative of the metric with respect to each positive's own score, which is in all score
            differences of the positive.
        by_rank: (P,) float32, derivatives of the metric with respect to the ranks.
        slopes: (q, G) output: the derivative of the metric with respect to each score; entries of items with score -inf
            are not written.
    """
    one, rho, delta = np.float32(1), step[1], step[2]
    inverse = one / step[0]
    gradient, decays = np.empty(ordered.shape[1], np.float32), np.empty(ordered.shape[1], np.float32)
    for row in range(ordered.shape[0]):
        start, score, center = starts[row], ordered[row], np.float32(np.inf)
        num_ranked = start[start.shape[0] - 1]
        for j in range(num_ranked):  # assigning a slice makes numba compile much more
            gradient[j] = by_self[offsets[row] + j - start[1]] if j >= start[1] else np.float32(0)
        for grade in range(1, start.shape[0] - 1):
            lower = score[: start[grade]]
            for k in range(start[grade], start[grade + 1]):
                here = score[k]
                center = fill_decays(score[: start[start.shape[0] - 2]], here, center, inverse, decays)
                factor = exp_float32(product(here - center, inverse))
                weight = by_rank[offsets[row] + k - start[1]]
                near, far = weight * inverse, weight * rho
                for j in range(lower.shape[0]):
                    x = lower[j] - here
                    value = one / (one + decays[j] * factor)
                    derivative = value - value * value
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

    ``step`` is (1,) float32: tau, the width of the sigmoid. The other arguments are the same as in :func:`sup_forward`.
    """
    zero, inverse = np.float32(0), np.float32(1) / step[0]
    for row in range(ordered.shape[0]):
        start, gain, score = starts[row], gains[row], ordered[row]
        to = offsets[row]
        for grade in range(1, gain.shape[0]):
            for k in range(start[grade], start[grade + 1]):
                here = score[k]
                # a positive counts itself as 1: 0.5 here, and sigmoid(0) = 0.5 in the loop
                hrank, rank = 0.5 * gain[grade], 0.5
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
    """Compute the gradient of the metric with respect to every score, with a sigmoid for every step.

    The arguments are the same as in :func:`sup_backward`, plus ``by_hrank``: (P,) derivatives of the metric with
    respect to hrank.
    """
    inverse = np.float32(1) / step[0]
    gradient = np.empty(ordered.shape[1], np.float32)
    for row in range(ordered.shape[0]):
        start, gain, score = starts[row], gains[row], ordered[row]
        num_ranked = start[start.shape[0] - 1]
        for j in range(num_ranked):  # assigning a slice makes numba compile much more
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


# -- the metric -------------------------------------------------------------------------------------------------------

_MOST_ITEMS = 1 << 19  # (query, item) pairs per block: the workspace stays below 100 MB

EachPart = Callable[[Callable[[int, int], None], int], None]


def native_rank_metric(
    scores: Tensor, grades: Tensor, gains: Tensor, norms: Tensor, objective: Objective, surrogate: Surrogate
) -> tuple[Tensor, Tensor]:
    """Compute the metric of every query and its gradient, as :func:`hgld.losses.kernels.eager.rank_metric_by_pairs`.

    Args:
        scores: (Q, G) float32, finite, or -inf for items that are not ranked.
        grades: (Q, G) integers in 0..L, 0 for items that are not ranked.
        gains: (Q, L + 1) float64, gain of every grade.
        norms: (Q,) float64, the objective's normalizers.
        objective: function of a positive's rank that gives the positive's contribution to the metric.
        surrogate: surrogate of the step function.

    Returns:
        metric (Q,) and d metric / d scores (Q, G), both float32.

    Raises:
        InputError: a grade exceeds the number of levels.
    """
    table = (scores.detach().numpy(), grades.numpy(), gains.numpy(), norms.numpy())
    num_levels, highest = gains.shape[1] - 1, int(table[1].max(initial=0))
    if highest > num_levels:
        raise InputError(f"grades run to {highest}; expected 0..{num_levels} for {num_levels} levels.")
    num_positives = (table[1] > 0).sum(axis=1)
    finite = (table[0] < np.inf).all(axis=1)  # NaN compares false; -inf is an item that is not ranked
    ranked = np.flatnonzero(finite & (num_positives > 0) & np.isfinite(table[3]))
    values, slopes = np.zeros(len(scores)), np.zeros_like(table[0])
    most_rows = max(1, _MOST_ITEMS // max(1, scores.shape[1]))
    with _threads(torch.get_num_threads()) as each_part:
        for start in range(0, len(ranked), most_rows):
            rows = ranked[start : start + most_rows]
            consecutive = rows[-1] - rows[0] + 1 == len(rows)
            some = slice(rows[0], rows[-1] + 1) if consecutive else rows  # a slice makes a view, an index array a copy
            parts = (part[some] for part in (*table, num_positives))
            values[some], slopes[some] = _block_metric(
                *parts, objective=objective, surrogate=surrogate, each_part=each_part
            )
    values[~finite], slopes[~finite] = np.nan, np.nan
    return torch.from_numpy(values).to(scores.dtype), torch.from_numpy(slopes)


def _block_metric(
    scores: np.ndarray,
    grades: np.ndarray,
    gains: np.ndarray,
    norms: np.ndarray,
    num_positives: np.ndarray,
    objective: Objective,
    surrogate: Surrogate,
    each_part: EachPart,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the metric (q,) float64 and its gradient (q, G) of q queries, each of which has positives.

    ``scores`` and ``grades`` are (q, G), ``gains`` (q, L + 1), ``norms`` and ``num_positives`` (q,).
    """
    size = len(scores)
    is_smooth, step = isinstance(surrogate, Sigmoid), np.array(pack_surrogate(surrogate), np.float32)
    offsets = np.concatenate([[0], np.cumsum(num_positives)])
    columns, ordered = np.empty(scores.shape, np.int32), np.empty(scores.shape, np.float32)
    starts = np.empty((size, gains.shape[1] + 1), np.int64)
    # rows: hrank, rank, their derivatives with respect to the positive's score, gain
    found = np.empty((5, offsets[-1]))

    def forward(start: int, stop: int) -> None:
        part = slice(start, stop)
        by_grade(scores[part], grades[part], columns[part], ordered[part], starts[part])
        rank = smooth_forward if is_smooth else sup_forward
        rank(ordered[part], starts[part], gains[part], step, offsets[start : stop + 1], found)

    each_part(forward, size)
    hrank, rank, hrank_slope, rank_slope, gain = torch.from_numpy(found)
    norm = torch.from_numpy(np.repeat(norms, num_positives))
    query = torch.from_numpy(np.repeat(np.arange(size), num_positives))
    terms = objective.terms(Positives(hrank, rank, gain, norm, query))
    own_slope = terms.by_hrank * hrank_slope + terms.by_rank * rank_slope
    by_self, by_hrank, by_rank = (part.float().numpy() for part in (own_slope, terms.by_hrank, terms.by_rank))
    slopes = np.zeros_like(scores)

    def backward(start: int, stop: int) -> None:
        part, ends = slice(start, stop), offsets[start : stop + 1]
        rows = (ordered[part], columns[part], starts[part])
        if is_smooth:
            smooth_backward(*rows, gains[part], step, ends, by_self, by_hrank, by_rank, slopes[part])
        else:
            sup_backward(*rows, step, ends, by_self, by_rank, slopes[part])

    each_part(backward, size)
    return np.add.reduceat(terms.values.numpy(), offsets[:-1]), slopes


@contextmanager
def _threads(num_threads: int) -> Iterator[EachPart]:
    """Yield a function that splits rows into consecutive parts and runs a function on each part in a thread."""
    if num_threads == 1:
        yield lambda work, size: work(0, size)
        return
    with ThreadPoolExecutor(num_threads) as pool:

        def each_part(work: Callable[[int, int], None], size: int) -> None:
            edges = np.linspace(0, size, min(num_threads, size) + 1).astype(int).tolist()
            list(pool.map(work, edges[:-1], edges[1:]))

        yield each_part
