"""Compiled loops of the evaluator on the CPU: grades, the order of the positives, and order statistics."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

# -- compilers --------------------------------------------------------------------------------------------------------


def njit(function: Callable[..., Any], *, entry: bool = True, **options: Any) -> Callable[..., Any]:
    """Compile a function with numba at its first call; it runs without the GIL.

    Args:
        function: function to compile.
        entry: whether Python calls the function. If so, its machine code, with all helpers, is kept in a folder of
            numba's cache. Helpers are compiled with their callers; a wrapper and a cache file for each helper would
            double the compile time.
        options: options of numba.
    """
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy", **options}
    kept: dict[str, Any] = {"cache": True} if entry else {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    try:
        return numba.njit(**(settings | kept))(function)
    except RuntimeError:  # numba's "cannot cache function": neither the package's nor the user's folder is writable
        return numba.njit(**settings)(function)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, and keep its machine code.

    numba compiles again if the file of ``function`` changes, but not if the file of a helper changes. So after an edit
    of another module's helper, delete the .nbi files in __pycache__. Importing this module imports numba, which takes
    longer than the rest of hgld. So import this module only inside the functions that use it.
    """
    return njit(function)


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that only compiled functions call."""
    return njit(function, entry=False)


# -- grades of a block of queries -------------------------------------------------------------------------------------


@compiled
def paint_grades(query: np.ndarray, members: np.ndarray, starts: np.ndarray, grades: np.ndarray) -> None:
    """Fill (q, G) uint8 ``grades`` with L - c for the finest level c at which classes match, 0 if none does.

    Args:
        query: (q, L) int32 classes, -1 if unknown.
        members: (L, G) gallery items of each level, ordered by class.
        starts: (L, C + 1) index in ``members`` of the first item of each class; its items end where the next class's
            items begin.
        grades: array to fill.
    """
    num_levels = members.shape[0]
    for row in range(query.shape[0]):
        out = grades[row]
        out[:] = 0
        for level in range(num_levels - 1, -1, -1):
            code = query[row, level]
            if code >= 0:
                for i in range(starts[level, code], starts[level, code + 1]):
                    out[np.uint32(members[level, i])] = np.uint8(num_levels - level)


@compiled
def count_grades(grades: np.ndarray, counts: np.ndarray) -> None:
    """Fill (q, L) int64 ``counts`` with the number of items of each grade 1..L in each row of (q, G) ``grades``."""
    for row in range(grades.shape[0]):
        values = grades[row]
        for grade in range(1, counts.shape[1] + 1):
            count = np.int32(0)
            for item in range(values.shape[0]):
                count += np.int32(values[item] == grade)
            counts[row, grade - 1] = count


# -- the order of the positives ---------------------------------------------------------------------------------------
#
# Metrics read only the positives (grade > 0) of a ranking, in list order, and their ranks. A row with many positives is
# sorted as a whole by exact keys of score and grade, by numpy, whose sort takes many keys of 32 bits at once.

_KEYS_AT_ONCE = 1 << 21  # number of keys to sort in one call
_INFINITE = np.int32(0x7F800000)  # bits of infinity: an excluded item has the score -inf


@compiled
def find_spans(scores: np.ndarray, spans: np.ndarray) -> None:
    """Find the range of the magnitudes of each row's scores.

    Args:
        scores: (q, G) float32, finite, or -inf for items that are not ranked.
        spans: (q, 2) int64, filled with the smallest magnitude above 0 (the bits of the float32 number as an integer),
            and the number of integers from it to the greatest magnitude.
    """
    for row in range(scores.shape[0]):
        bits = scores[row].view(np.uint32)
        # the differences below wrap around, so that min ignores scores of 0, and max ignores infinity
        least, most = np.uint32(0xFFFFFFFF), np.uint32(0)
        for i in range(bits.shape[0]):
            magnitude = bits[i] & np.uint32(0x7FFFFFFF)
            least = min(least, np.uint32(magnitude - np.uint32(1)))
            most = max(most, np.uint32(magnitude - np.uint32(_INFINITE)))
        first = min(np.int64(least) + 1, np.int64(_INFINITE))
        last = np.int64(np.uint32(most + np.uint32(_INFINITE))) if most > 0 else np.int64(0)
        spans[row, 0] = first
        spans[row, 1] = max(np.int64(1), last - first + 1)


@compiled
def fill_narrow_keys(
    scores: np.ndarray, grades: np.ndarray, spans: np.ndarray, bits_of_grade: np.uint64, keys: np.ndarray
) -> None:
    """Fill (q, G) uint32 keys with the order of :func:`fill_wide_keys`, for rows whose keys fit into 32 bits."""
    shift = np.uint32(bits_of_grade)
    for row in range(scores.shape[0]):
        bits, out, grade = scores[row].view(np.int32), keys[row], grades[row]
        before, span = np.int32(spans[row, 0] - 1), np.int32(spans[row, 1])
        for i in range(bits.shape[0]):
            magnitude = bits[i] & np.int32(0x7FFFFFFF)
            step = max(magnitude - before, np.int32(0))  # step is 0 for the scores 0.0 and -0.0
            step = min(step, span + np.int32(1))  # step is span + 1 for -inf
            place = span + step if bits[i] < np.int32(0) else span - step
            out[i] = (np.uint32(place) << shift) | np.uint32(grade[i])


@compiled
def fill_wide_keys(scores: np.ndarray, grades: np.ndarray, bits_of_grade: np.uint64, keys: np.ndarray) -> None:
    """Fill (q, G) uint64 keys that order by descending score, then ascending grade."""
    for row in range(scores.shape[0]):
        bits = scores[row].view(np.int32)
        for i in range(bits.shape[0]):
            bit = np.int32(0) if bits[i] == np.int32(-0x80000000) else bits[i]  # -0.0 equals 0.0
            ascending = np.uint32(bit ^ ((bit >> np.int32(31)) & np.int32(0x7FFFFFFF))) ^ np.uint32(0x80000000)
            keys[row, i] = (np.uint64(~ascending & np.uint32(0xFFFFFFFF)) << bits_of_grade) | np.uint64(grades[row, i])


def _sorted_keys(scores: np.ndarray, grades: np.ndarray, bits_of_grade: np.uint64, room: np.ndarray) -> np.ndarray:
    """Return the (q, G) keys of rows in ascending order: by descending score, then ascending grade.

    Keys have 32 bits if the range of the scores' magnitudes leaves enough bits for the grade, else 64.
    """
    spans = np.empty((len(scores), 2), np.int64)
    find_spans(scores, spans)
    if (2 * int(spans[:, 1].max(initial=0)) + 2) << int(bits_of_grade) <= 1 << 32:
        keys = room.view(np.uint32)[: scores.size].reshape(scores.shape)
        fill_narrow_keys(scores, grades, spans, bits_of_grade, keys)
    else:
        keys = room[: scores.size].reshape(scores.shape)
        fill_wide_keys(scores, grades, bits_of_grade, keys)
    keys.sort(axis=1)
    return keys


@helper
def _walk_sorted(keys: np.ndarray, num: int, bits_of_grade: np.uint64, grades: np.ndarray, ranks: np.ndarray) -> None:
    """Store grades and ranks of the ``num`` positives of a sorted row; equal scores share their last rank.

    The positives are stored from index 1 on. Items before the first positive are written to index 0, which saves a
    condition in the loop.
    """
    mask = (np.uint64(1) << bits_of_grade) - np.uint64(1)
    size = keys.shape[0]
    rank = np.int32(size)
    score = np.uint64(keys[size - 1]) >> bits_of_grade
    left = np.uint64(num)
    for i in range(size, 0, -1):
        key = np.uint64(keys[np.uint64(i - 1)])
        here = key >> bits_of_grade
        rank = rank if here == score else np.int32(i)
        score = here
        grade = key & mask
        grades[left] = grade
        ranks[left] = rank
        left -= np.uint64(grade != np.uint64(0))


# In a row with few positives, only the positives are sorted, and every item is counted at the first positive that it
# does not score below. On a processor without 512-bit registers, sorting the whole row takes twice as long.

_COUNTED_SHARE = 32  # with at least this many items per positive, counting is faster than sorting
_SLICES_PER_POSITIVE = 8  # with this many slices per positive, most slices of the score range hold at most one positive
_MOST_SLICES = 1 << 13  # maximum slices, so that their table stays in the first-level cache


@compiled
def gather_positives(scores: np.ndarray, grades: np.ndarray, kept_scores: np.ndarray, kept_grades: np.ndarray) -> None:
    """Fill (q, P) tables with the scores and grades of each row's positives, and all other cells with -inf and 0."""
    kept_scores[:] = -np.inf
    kept_grades[:] = 0
    for row in range(scores.shape[0]):
        found = 0
        for i in range(scores.shape[1]):
            if grades[row, i] != np.uint8(0):
                kept_scores[row, found], kept_grades[row, found] = scores[row, i], grades[row, i]
                found += 1


@helper
def _slice_of(score: np.float32, highest: np.float32, scale: np.float32, last: np.float32) -> np.int32:
    """Return the slice of a score: slices are equal intervals of the positives' scores, counted from the highest."""
    return np.int32(max(np.float32(0), min((highest - score) * scale, last)))


@helper
def _count_ranks(
    scores: np.ndarray, positives: np.ndarray, num: int, starts: np.ndarray, slices: np.ndarray, ranks: np.ndarray
) -> None:
    """Fill ``ranks`` with the rank of each positive: the number of items that do not score below it.

    Args:
        scores: (G,) float32 scores of the row.
        positives: float32 scores of the ``num`` positives, descending, with -inf after the last.
        num: number of positives.
        starts: int32, overwritten with the index of the first positive in each slice.
        slices: (G,) int32, overwritten with each item's slice (:func:`_slice_of`).
        ranks: array to fill, with at least ``num`` + 1 entries; the ranks are in the first ``num``.
    """
    ranks[: num + 1] = 0
    highest, lowest = positives[0], positives[num - 1]
    number = min(max(64, _SLICES_PER_POSITIVE * num), _MOST_SLICES)
    scale, last = np.float32(number) / max(highest - lowest, np.float32(1e-30)), np.float32(number - 1)
    starts[: number + 1] = 0
    for i in range(num):
        starts[_slice_of(positives[i], highest, scale, last) + 1] += 1
    for i in range(number):
        starts[i + 1] += starts[i]
    for i in range(scores.shape[0]):  # a separate loop, which the compiler vectorises
        slices[i] = _slice_of(scores[i], highest, scale, last)
    for i in range(scores.shape[0]):
        score = scores[i]
        if score >= lowest:
            first = np.uint32(starts[np.uint32(slices[i])])
            # usually one step is enough; this form has no branch that could be mispredicted
            first += np.uint32(positives[first] > score)
            while positives[first] > score:
                first += np.uint32(1)
            ranks[first] += 1
    for i in range(1, num):
        ranks[i] += ranks[i - 1]


# -- the first ranks of each query ------------------------------------------------------------------------------------
#
# If only the first ranks matter, every score is read once, as the matrix product yields it. A row keeps the scores that
# are not below the lowest of the best ``depth`` scores so far.

HEAD_CHUNK = 64  # number of scores that are compared at once
FULL = -1  # marks a row with more equal scores than fit into its buffer


@compiled
def gather_heads(
    scores: np.ndarray,
    first: int,
    columns: tuple[int, int],
    depth: int,
    floors: np.ndarray,
    sizes: np.ndarray,
    kept_scores: np.ndarray,
    kept_items: np.ndarray,
) -> None:
    """Add consecutive items to the first ranks of q rows.

    Args:
        scores: (q, n) float32.
        first: gallery index of the item in the first column to read; the next columns hold the next items.
        columns: the first column to read, and the column after the last column to read.
        depth: number of first ranks that matter.
        floors: (q,) float32, initially -inf. Lower scores cannot reach the first ``depth`` ranks.
        sizes: (q,) int64 number of items kept per row, initially 0; ``FULL`` if they do not fit.
        kept_scores: (q, C) float32 scores of the kept items; C is at least ``depth`` + 2 ``HEAD_CHUNK``.
        kept_items: (q, C) int32 gallery indices of the kept items.
    """
    capacity, (begin, end) = kept_scores.shape[1], columns
    for row in range(scores.shape[0]):
        if sizes[row] == FULL:
            continue
        for start in range(begin, end, HEAD_CHUNK):
            chunk = scores[row, start : min(start + HEAD_CHUNK, end)]
            floor = floors[row]
            found = np.int32(0)
            for i in range(chunk.shape[0]):
                found += np.int32(chunk[i] >= floor)
            if found == 0:
                continue
            if sizes[row] + HEAD_CHUNK > capacity:
                _shorten_head(row, depth, floors, sizes, kept_scores, kept_items)
                floor = floors[row]
                if sizes[row] + HEAD_CHUNK > capacity:
                    sizes[row] = FULL
                    break
            to = sizes[row]
            for i in range(chunk.shape[0]):
                if chunk[i] >= floor:
                    kept_scores[row, to] = chunk[i]
                    kept_items[row, to] = first - begin + start + i
                    to += 1
            sizes[row] = to


@compiled
def finish_heads(
    depth: int, floors: np.ndarray, sizes: np.ndarray, kept_scores: np.ndarray, kept_items: np.ndarray
) -> None:
    """Drop the items after rank ``depth`` from every row of the arrays that :func:`gather_heads` filled."""
    for row in range(sizes.shape[0]):
        if sizes[row] != FULL:
            _shorten_head(row, depth, floors, sizes, kept_scores, kept_items)


@helper
def _shorten_head(
    row: int, depth: int, floors: np.ndarray, sizes: np.ndarray, kept_scores: np.ndarray, kept_items: np.ndarray
) -> None:
    """Drop a row's items after rank ``depth``; the other items keep their order."""
    size = sizes[row]
    if size <= depth:
        return
    scores = kept_scores[row]
    floors[row] = np.partition(scores[:size], size - depth)[size - depth]
    kept = 0
    for i in range(size):
        if scores[i] >= floors[row]:
            scores[kept] = scores[i]
            kept_items[row, kept] = kept_items[row, i]
            kept += 1
    sizes[row] = kept


# -- order statistics of rows -----------------------------------------------------------------------------------------
#
# :mod:`hgld.evaluation.statistics` computes the same in torch.


class Wanted(NamedTuple):
    """The sums to compute for every row, and their constants.

    Attributes:
        gains: (L + 1,) float64, gain of each grade in NDCG.
        discounts: (G + 1,) float64, discount of each rank.
        depths: (K,) int64, the k of the metrics, ascending.
        precision_r: whether to compute ``precision_r``.
        asi: whether to compute ``asi``.
    """

    gains: np.ndarray
    discounts: np.ndarray
    depths: np.ndarray
    precision_r: bool
    asi: bool


class _Positives(NamedTuple):
    """Memory for the positives of one row, in list order.

    Attributes:
        grades: grades of the positives.
        ranks: ranks of the positives.
        ends: for each positive, the index of the last positive with the same score.
        listed: grade of the item at every rank of the list, 0 for a negative; among equal scores negatives come first.
        running: buffer for running sums, which is overwritten.
    """

    grades: np.ndarray
    ranks: np.ndarray
    ends: np.ndarray
    listed: np.ndarray
    running: np.ndarray


@helper
def _place_positives(found: _Positives, size: int, deepest: int) -> None:
    """Fill ``ends``, and fill ``listed`` down to the rank ``deepest``."""
    grades, ranks, ends, listed = found.grades, found.ranks, found.ends, found.listed
    deepest = min(deepest, listed.shape[0] - 1)
    for i in range(deepest + 1):
        listed[i] = 0
    end = size - 1
    for i in range(size - 1, -1, -1):
        end = end if ranks[i] == ranks[end] else i
        ends[i] = end
        place = ranks[i] - end + i
        if place <= deepest:
            listed[np.uint32(place)] = grades[i]


@helper
def _ap_sum(chosen: np.ndarray, found: _Positives, size: int) -> float:
    """Sum rank+ / rank over the positives of the chosen grades, as if there were no other positives."""
    grades, ranks, ends, running = found.grades, found.ranks, found.ends, found.running
    count = 0
    for i in range(size):
        count += chosen[np.uint32(grades[i])]
        running[i] = count
    total = 0.0
    for i in range(size):
        total += float(chosen[np.uint32(grades[i])] * running[np.uint32(ends[i])]) / ranks[i]
    return total


@helper
def _ap_sums(found: _Positives, size: int, counts: np.ndarray, ap: np.ndarray) -> None:
    """Fill ``ap`` (L,) with the sums of rank+ / rank over the positives of at least each grade.

    Args:
        found: the positives.
        size: number of positives.
        counts: (2, L + 1) int64 buffer, which is overwritten: number of positives of at least each grade, so far and
            in the current group of equal scores.
        ap: array to fill.
    """
    grades, ranks, ends = found.grades, found.ranks, found.ends
    counts[:] = 0
    ap[:] = 0.0
    highest = np.uint64(0)
    first = 0.0
    start = 0
    for i in range(size):
        grade = np.uint64(grades[i])
        if grade > np.uint64(1):  # every positive has at least grade 1, so i + 1 is their number so far
            highest = max(highest, grade)
            for other in range(np.uint64(2), grade + np.uint64(1)):
                counts[0, other] += 1
                counts[1, other] += 1
        if ends[i] == i:
            first += float((i + 1) * (i + 1 - start)) / ranks[i]
            start = i + 1
            for other in range(np.uint64(2), highest + np.uint64(1)):
                ap[other - np.uint64(1)] += float(counts[0, other] * counts[1, other]) / ranks[i]
                counts[1, other] = 0
            highest = np.uint64(0)
    ap[0] = first


@helper
def _hap_sum(relevance: np.ndarray, ap: np.ndarray, found: _Positives, size: int) -> float:
    """Sum Hrank+ / rank over the positives.

    Sort the relevances in ascending order. Then min(r_k, r_j) is the sum of the steps between neighbouring relevances
    that both r_k and r_j reach. So the result is a sum of AP sums, one per step, over the items that reach the step.
    If relevance grows with the grade, these are the items of at least some grade, whose AP sums are already in ``ap``.
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
        part = ap[lowest - 1] if upward else _ap_sum(chosen, found, size)
        total += (step - below) * part
        below = step
    return float(total)


@helper
def _dcg_sum(found: _Positives, size: int, wanted: Wanted, dcg_at: np.ndarray) -> float:
    """Return the sum of gain * discount; write the partial sum up to each depth into ``dcg_at``."""
    grades, ranks, gains = found.grades, found.ranks, wanted.gains
    discounts, depths = wanted.discounts, wanted.depths
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


@helper
def _list_sums(
    found: _Positives,
    size: int,
    totals: np.ndarray,
    wanted: Wanted,
    precision_r: np.ndarray,
    hits: np.ndarray,
    precision: np.ndarray,
) -> None:
    """Fill ``precision_r``, ``hits`` and ``precision`` from the positives at the head of the list.

    The head ends at the last depth or, if ``precision_r`` is wanted and R is larger, at the largest R of a level.
    """
    grades, ranks, ends, depths = found.grades, found.ranks, found.ends, wanted.depths
    width = totals.shape[0]
    positives = np.zeros(width, np.int64)  # number of items at or above each grade in the whole gallery
    for grade in range(width - 1, 0, -1):
        positives[grade] = totals[grade] + (positives[grade + 1] if grade < width - 1 else 0)
    end = max(positives[1] if wanted.precision_r else 0, depths[-1] if depths.shape[0] else 0)
    counts = np.zeros(width, np.int64)
    at_least = np.zeros(width)
    running = np.zeros(width)
    depth = 0
    for i in range(size):
        place = ranks[i] - ends[i] + i
        while depth < depths.shape[0] and place > depths[depth]:
            hits[depth, 1:], precision[depth] = counts[1:], running[1:]
            depth += 1
        if place > end:
            break
        grade = np.uint32(grades[i])
        counts[grade] += 1
        share = 1.0 / place
        for other in range(np.uint32(1), grade + np.uint32(1)):
            at_least[other] += 1.0
            term = at_least[other] * share
            running[other] += term
            precision_r[other - np.uint32(1)] += term if place <= positives[other] else 0.0
    for rest in range(depth, depths.shape[0]):
        hits[rest, 1:], precision[rest] = counts[1:], running[1:]


@helper
def _set_intersection(listed: np.ndarray, totals: np.ndarray) -> float:
    """Return ASI, a mean over n = 1 to the number of positives.

    The value at n is the share of the first n items that an ideal ranking also has in its first n.
    """
    width = totals.shape[0]
    found = np.zeros(width, np.int64)
    ideal_end = 0
    shared = np.int64(0)  # number of items of finer grades in both the ideal and the actual first n
    total = 0.0
    for ideal_grade in range(width - 1, 0, -1):
        start = ideal_end
        ideal_end += totals[ideal_grade]
        found_here = found[ideal_grade]
        for n in range(start + 1, ideal_end + 1):
            grade = np.int64(listed[n])
            found_here += np.int64(grade == ideal_grade)
            if grade > ideal_grade:  # finer grades are rare, so that the branch is predicted well
                shared += np.int64(found[grade] < totals[grade])
                found[grade] += 1
            elif np.uint64(grade - 1) < np.uint64(ideal_grade - 1):
                found[grade] += 1
            total += float(shared + min(found_here, n - start)) / n
        found[ideal_grade] = found_here
        shared += min(found_here, totals[ideal_grade])
    return total / ideal_end if ideal_end > 0 else np.nan


def rank_rows(
    scores: np.ndarray, grades: np.ndarray, totals: np.ndarray, relevance: np.ndarray, wanted: Wanted, sums: Any
) -> None:
    """Order every row and fill the sums of :class:`hgld.evaluation.statistics.OrderStatistics`.

    Args:
        scores: (q, G) float32, finite, or -inf for items that are not ranked.
        grades: (q, G) uint8, 0 for items that are not ranked.
        totals: (q, L + 1) int64, number of items of each grade.
        relevance: (q, L + 1) float64, relevance of each grade in H-AP.
        wanted: the sums to compute, and their constants.
        sums: the statistics, whose arrays are filled.
    """
    size, bits = scores.shape[1], np.uint64((totals.shape[1] - 1).bit_length())
    at_once = max(1, _KEYS_AT_ONCE // max(size, 1))
    room = np.empty(min(at_once, len(scores)) * size, np.uint64)
    for start in range(0, len(scores), at_once):
        part = slice(start, start + at_once)
        counts = np.count_nonzero(grades[part], axis=1)
        most = int(counts.max(initial=0))
        if most * _COUNTED_SHARE <= size:
            positives = np.empty((len(counts), most + 1), np.float32)
            kept_grades = np.empty(positives.shape, np.uint8)
            gather_positives(scores[part], grades[part], positives, kept_grades)
            keys = np.empty(positives.shape, np.uint64)
            fill_wide_keys(positives, kept_grades, bits, keys)
            keys.sort(axis=1)
            positives = -np.sort(-positives, axis=1)
        else:
            keys = _sorted_keys(scores[part], grades[part], bits, room)
            positives = np.empty((len(counts), 0), np.float32)
        rows = type(sums)(*(table[part] for table in sums))
        _fill_sums(scores[part], keys, positives, counts, bits, totals[part], relevance[part], wanted, rows)


@compiled
def _fill_sums(
    scores: np.ndarray,
    keys: np.ndarray,
    positives: np.ndarray,
    counts: np.ndarray,
    bits_of_grade: np.uint64,
    totals: np.ndarray,
    relevance: np.ndarray,
    wanted: Wanted,
    sums: Any,
) -> None:
    size, width = scores.shape[1], totals.shape[1]
    starts, slices = np.empty(_MOST_SLICES + 1, np.int32), np.empty(size, np.int32)
    kept_grades, kept_ranks = np.empty(size + 2, np.uint8), np.empty(size + 2, np.int32)
    ends, listed, running = np.empty(size + 2, np.int32), np.empty(size + 2, np.uint8), np.empty(size + 2, np.int32)
    found = _Positives(kept_grades[1:], kept_ranks[1:], ends, listed, running)
    levels = np.empty((2, width), np.int64)
    depths = wanted.depths
    for row in range(keys.shape[0]):
        num, total = counts[row], totals[row]
        if positives.shape[1] == 0:  # positives are not separate: keys holds the whole row, sorted
            _walk_sorted(keys[row], num, bits_of_grade, kept_grades, kept_ranks)
        elif num > 0:
            for i in range(num):
                found.grades[i] = keys[row, i] & ((np.uint64(1) << bits_of_grade) - np.uint64(1))
            _count_ranks(scores[row], positives[row], num, starts, slices, found.ranks)
        in_set = wanted.asi and np.sum(total[1:]) <= size  # ASI needs as many ranks as there are positives
        deepest = depths[-1] if depths.shape[0] else 0
        deepest = max(deepest, np.sum(total[1:]) if in_set else 0)
        _place_positives(found, num, deepest)
        _ap_sums(found, num, levels, sums.ap[row])
        sums.hap[row] = _hap_sum(relevance[row], sums.ap[row], found, num)
        sums.dcg[row] = _dcg_sum(found, num, wanted, sums.dcg_at[row])
        _list_sums(found, num, total, wanted, sums.precision_r[row], sums.hits[row], sums.precision[row])
        for k in range(depths.shape[0]):
            sums.grade_at[row, k] = listed[depths[k]] if depths[k] <= size else 0
        if in_set:
            sums.asi[row] = _set_intersection(listed, total)
