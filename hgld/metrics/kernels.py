"""The order statistics of rows of scores, compiled; :mod:`hgld.metrics.tensor` says the same in torch."""

import numpy as np

from hgld.metrics.compiled import compiled
from hgld.metrics.ordering import grade_bits, rank_row, scratch


@compiled
def _place_positives(
    grades: np.ndarray, ranks: np.ndarray, size: int, ends: np.ndarray, places: np.ndarray, listed: np.ndarray
) -> None:
    """Last positive of every positive's tie group, its place in the list (ties come last), the grade at every place."""
    for i in range(listed.shape[0]):
        listed[i] = 0
    end = size - 1
    for i in range(size - 1, -1, -1):
        end = end if ranks[i] == ranks[end] else i
        ends[i] = end
        places[i] = ranks[i] - end + i
        listed[np.uint32(places[i])] = grades[i]


@compiled
def _ap_sum(
    chosen: np.ndarray,
    grades: np.ndarray,
    ends: np.ndarray,
    ranks: np.ndarray,
    size: int,
    running: np.ndarray,
) -> float:
    """Sum of rank+ / rank over the positives whose grade is chosen, as if they were the only ones."""
    count = 0
    for i in range(size):
        count += chosen[np.uint32(grades[i])]
        running[i] = count
    total = 0.0
    for i in range(size):
        total += float(chosen[np.uint32(grades[i])] * running[np.uint32(ends[i])]) / ranks[i]
    return total


@compiled
def _exact_ap_sum(
    grade: int, grades: np.ndarray, ends: np.ndarray, ranks: np.ndarray, size: int, running: np.ndarray
) -> float:
    """The same for one grade, in a ranking that lacks the positives of the other grades."""
    count = 0
    for i in range(size):
        count += grades[i] == grade
        running[i] = count
    total = 0.0
    for i in range(size):
        if grades[i] == grade:
            found = running[ends[i]]
            total += found / (found + ranks[i] - ends[i] - 1)
    return total


@compiled
def _hap_sum(
    relevance: np.ndarray,
    ap: np.ndarray,
    grades: np.ndarray,
    ends: np.ndarray,
    ranks: np.ndarray,
    size: int,
    running: np.ndarray,
) -> float:
    """Sum of Hrank+ / rank.

    min(r_k, r_j) is the sum of the steps between the relevances, in ascending order, that neither r_k nor r_j lies
    below. So the sum is one of AP sums: for every step that of the items which do not lie below it. Where relevance
    grows with the grade, these are the items of at least some grade, whose sums are in ``ap`` already.
    """
    width = relevance.shape[0]
    chosen = np.empty(width, np.int64)
    total = 0.0
    below = 0.0
    for _ in range(1, width):
        step = np.inf
        for grade in range(1, width):
            if relevance[grade] > below:
                step = min(step, relevance[grade])
        if step == np.inf:
            break
        lowest = width
        upward = True
        chosen[0] = 0
        for grade in range(1, width):
            chosen[grade] = relevance[grade] >= step
            if chosen[grade] == 1:
                lowest = min(lowest, grade)
            elif lowest < width:
                upward = False
        part = ap[lowest - 1] if upward else _ap_sum(chosen, grades, ends, ranks, size, running)
        total += (step - below) * part
        below = step
    return float(total)


@compiled
def _dcg_sum(
    grades: np.ndarray,
    ranks: np.ndarray,
    size: int,
    gains: np.ndarray,
    discounts: np.ndarray,
    depths: np.ndarray,
    dcg_at: np.ndarray,
) -> float:
    """Sum of gain * discount, and what of it lies at ranks down to every depth."""
    total = 0.0
    i = 0
    for depth in range(depths.shape[0]):
        while i < size and ranks[i] <= depths[depth]:
            total += gains[grades[i]] * discounts[ranks[i]]
            i += 1
        dcg_at[depth] = total
    for rest in range(i, size):
        total += gains[np.uint32(grades[rest])] * discounts[np.uint32(ranks[rest])]
    return float(total)


@compiled
def _list_sums(
    grades: np.ndarray,
    places: np.ndarray,
    size: int,
    totals: np.ndarray,
    depths: np.ndarray,
    precision_r: np.ndarray,
    hits: np.ndarray,
    precision: np.ndarray,
) -> None:
    """Sums over the positives at the head of the list: down to the last depth, and to R of every level."""
    width = totals.shape[0]
    positives = np.zeros(width, np.int64)  # at or above each grade in the whole gallery
    for grade in range(width - 1, 0, -1):
        positives[grade] = totals[grade] + (positives[grade + 1] if grade < width - 1 else 0)
    end = max(positives[1], depths[-1] if depths.shape[0] else 0)
    counts = np.zeros(width, np.int64)
    at_least = np.zeros(width)
    running = np.zeros(width)
    depth = 0
    for i in range(size):
        place = places[i]
        while depth < depths.shape[0] and place > depths[depth]:
            _snapshot(counts, running, hits[depth], precision[depth])
            depth += 1
        if place > end:
            break
        grade = np.uint32(grades[i])
        counts[grade] += 1
        share = 1.0 / place
        for other in range(1, width):
            at_least[other] += 1.0 if other <= grade else 0.0
            term = at_least[other] * share if other <= grade else 0.0
            running[other] += term
            precision_r[other - 1] += term if place <= positives[other] else 0.0
    for rest in range(depth, depths.shape[0]):
        _snapshot(counts, running, hits[rest], precision[rest])


@compiled
def _snapshot(counts: np.ndarray, running: np.ndarray, hits: np.ndarray, precision: np.ndarray) -> None:
    for grade in range(1, counts.shape[0]):
        hits[grade] = counts[grade]
        precision[grade - 1] = running[grade]


@compiled
def _set_intersection(listed: np.ndarray, totals: np.ndarray) -> float:
    """ASI: mean over n up to the number of positives of what the first n share with an ideal list's first n."""
    width = totals.shape[0]
    found = np.zeros(width, np.int64)
    ideal = np.zeros(width, np.int64)
    ideal_end = 0
    shared = 0
    total = 0.0
    for ideal_grade in range(width - 1, 0, -1):
        start = ideal_end
        ideal_end += totals[ideal_grade]
        for n in range(start + 1, ideal_end + 1):
            grade = np.uint32(listed[n])
            shared += (grade > 0) & (found[grade] < ideal[grade])
            found[grade] += 1
            shared += ideal[ideal_grade] < found[ideal_grade]
            ideal[ideal_grade] += 1
            total += shared / n
    return total / ideal_end if ideal_end > 0 else np.nan


def rank_rows(
    scores: np.ndarray,
    grades: np.ndarray,
    floors: np.ndarray,
    totals: np.ndarray,
    relevance: np.ndarray,
    gains: np.ndarray,
    discounts: np.ndarray,
    depths: np.ndarray,
    exact: bool,
    sums: tuple[np.ndarray, ...],
) -> None:
    """Order every row and fill the sums of :class:`hgld.metrics.statistics.OrderStatistics`.

    Args:
        scores: (q, G) float32, finite, or -inf for items out of the ranking.
        grades: (q, G) uint8, 0 for items out of the ranking.
        floors: (q,) float32; what lies below is not needed.
        totals: (q, L + 1) int64 items of every grade.
        relevance: (q, L + 1) float64, H-AP's.
        gains: (L + 1,) float64, NDCG's.
        discounts: (G + 1,) float64 by rank.
        depths: (K,) int64, ascending.
        exact: whether ``exact_ap`` is wanted.
        sums: the arrays to fill, in the order of the fields.
    """
    size, num_levels = scores.shape[1], totals.shape[1] - 1
    memory = scratch(size, num_levels)
    found = tuple(np.empty(size + 1, dtype) for dtype in (np.uint8, *[np.int32] * 4, np.uint8))
    bits = grade_bits(num_levels)
    _rank_rows(scores, grades, floors, totals, relevance, gains, discounts, depths, exact, bits, memory, found, sums)


@compiled
def _rank_rows(
    scores: np.ndarray,
    grades: np.ndarray,
    floors: np.ndarray,
    totals: np.ndarray,
    relevance: np.ndarray,
    gains: np.ndarray,
    discounts: np.ndarray,
    depths: np.ndarray,
    exact: bool,
    bits_of_grade: np.uint64,
    memory: tuple[np.ndarray, ...],
    found: tuple[np.ndarray, ...],
    sums: tuple[np.ndarray, ...],
) -> None:
    ap, exact_ap, precision_r, hap, dcg, asi, hits, precision, grade_at, dcg_at = sums
    positive_grades, ranks, ends, places, running, listed = found
    size, width = scores.shape[1], totals.shape[1]
    chosen = np.empty(width, np.int64)
    for row in range(scores.shape[0]):
        num = rank_row(scores[row], grades[row], floors[row], bits_of_grade, memory, positive_grades, ranks)
        _place_positives(positive_grades, ranks, num, ends, places, listed)
        for grade in range(1, width):
            for other in range(width):
                chosen[other] = other >= grade
            ap[row, grade - 1] = _ap_sum(chosen, positive_grades, ends, ranks, num, running)
            if exact:
                exact_ap[row, grade - 1] = _exact_ap_sum(grade, positive_grades, ends, ranks, num, running)
        hap[row] = _hap_sum(relevance[row], ap[row], positive_grades, ends, ranks, num, running)
        dcg[row] = _dcg_sum(positive_grades, ranks, num, gains, discounts, depths, dcg_at[row])
        _list_sums(positive_grades, places, num, totals[row], depths, precision_r[row], hits[row], precision[row])
        for k in range(depths.shape[0]):
            grade_at[row, k] = listed[depths[k]] if depths[k] <= size else 0
        asi[row] = _set_intersection(listed, totals[row])
