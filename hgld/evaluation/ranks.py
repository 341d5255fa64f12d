"""Compiled loops of the evaluator on the CPU: grades, the order of the positives, and order statistics."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

# -- compilers --------------------------------------------------------------------------------------------------------


def njit(function: Callable[..., Any], *, entry: bool = True, **options: Any) -> Callable[..., Any]:
    """Compile at the first call, without the GIL.

    Args:
        function: the loop.
        entry: Python calls it: the machine code, helpers and all, is kept where numba finds a folder to write to.
            Others are compiled with their callers; a wrapper and a file of their own would take as long again.
        options: of numba.
    """
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy", **options}
    kept: dict[str, Any] = {"cache": True} if entry else {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    try:
        return numba.njit(**(settings | kept))(function)
    except RuntimeError:  # numba's "cannot cache function": neither the package's nor the user's folder is writable
        return numba.njit(**settings)(function)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, and keep its machine code.

    numba renews what it kept when the file of ``function`` changes, not when a file that ``function`` calls into does:
    after an edit of another module's helper, delete the .nbi files in __pycache__. Importing this module imports numba,
    which takes longer than the rest of hgld: import what uses it where it is used.
    """
    return njit(function)


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that compiled functions alone call."""
    return njit(function, entry=False)


# -- grades of a block of queries -------------------------------------------------------------------------------------


@compiled
def order_members(classes: np.ndarray, starts: np.ndarray, members: np.ndarray) -> None:
    """Fill (L, G) int32 ``members`` with the items in ascending order of their classes.

    Args:
        classes: (L, G) int32, -1 where unknown.
        starts: (L, C + 2) int64, overwritten: where each of the classes -1..C starts.
        members: to fill.
    """
    for level in range(classes.shape[0]):
        for item in range(classes.shape[1]):
            code = classes[level, item] + 1
            members[level, starts[level, code]] = item
            starts[level, code] += 1


@compiled
def paint_grades(
    members: np.ndarray, starts: np.ndarray, codes: np.ndarray, grades: np.ndarray, counts: np.ndarray
) -> None:
    """Fill (q, G) uint8 ``grades`` from the gallery's members of every class, and (q, L) int64 ``counts`` of them.

    Args:
        members: (L, G) gallery indices ordered by class, one row a level, finest first.
        starts: (L, C + 1) where in that row each of up to C classes starts.
        codes: (q, L) the queries' classes; -1 where unknown or without members.
        grades: filled with L - c for the finest level c that matches, 0 elsewhere.
        counts: filled with how often the grades 1..L occur.
    """
    num_levels = members.shape[0]
    numbers = np.zeros(num_levels + 1, np.int64)
    for row in range(codes.shape[0]):
        out = grades[row]
        out[:] = 0
        numbers[:] = 0
        painted = False
        for level in range(num_levels - 1, -1, -1):
            code = codes[row, level]
            if code < 0:
                continue
            grade = num_levels - level
            begin, end = starts[level, code], starts[level, code + 1]
            numbers[grade] += end - begin
            if painted:
                for i in range(begin, end):
                    numbers[np.uint32(out[np.uint32(members[level, i])])] -= 1
            for i in range(begin, end):
                out[np.uint32(members[level, i])] = np.uint8(grade)
            painted = True
        counts[row] = numbers[1:]


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


# -- the order of the positives of one query --------------------------------------------------------------------------
#
# The metrics read little of a ranking: the positives (grade > 0) in list order, and for each of them its rank. Where
# positives are few, they alone are sorted, and every gallery item is only counted between two of them, which needs one
# look into a table over equal slices of their score range. Where they are many, the row is sorted as a whole, by numpy,
# whose sort takes many keys of 32 bits an instruction. If a list is needed down to some place only, the items above a
# floor are sorted. Those and the positives are sorted by radix on exact keys, so that no distribution of scores, ties
# included, makes it slow.

_RADIX_FROM = 64  # for fewer keys insertion is cheaper than clearing and adding up tables of digits
_SLICES_A_POSITIVE = 8  # few enough positives share a slice that the first comparison mostly decides
_MOST_SLICES = 1 << 16  # beyond this the table leaves the second-level cache
_SORT_ALL_SHARE = 4  # one item in so many positive: sorting the whole row is cheaper than counting
_MOST_COUNTED = 1 << 15  # for more positives the tables of the counts leave the cache
_KEYS_AT_ONCE = 1 << 21  # of rows that are sorted with one call
_INFINITE = np.int32(0x7F800000)  # magnitude of -inf, an item that is out of the ranking
_FEWEST_DIGIT_BITS, _MOST_DIGIT_BITS = (
    np.uint64(8),
    np.uint64(13),
)  # a table of digits is not larger than the keys, nor than the cache


@helper
def _insert_keys(keys: np.ndarray, start: int, stop: int) -> None:
    for i in range(start + 1, stop):
        key = keys[i]
        to = i
        while to > start and keys[to - 1] > key:
            keys[to] = keys[to - 1]
            to -= 1
        keys[to] = key


@helper
def _bit_length(number: np.uint64) -> np.uint64:
    bits = np.uint64(1)
    while number >> bits:
        bits += np.uint64(1)
    return bits


@helper
def _sort_keys(keys: np.ndarray, start: int, stop: int, spare: np.ndarray, tables: np.ndarray) -> None:
    """Sort ``keys[start:stop]`` (uint64) in place, by as many bits as they differ in."""
    if stop - start < _RADIX_FROM:
        _insert_keys(keys, start, stop)
        return
    low = high = keys[start]
    for i in range(start, stop):
        low, high = min(low, keys[i]), max(high, keys[i])
    bits = _bit_length(high - low)
    most = min(max(_bit_length(np.uint64(stop - start)), _FEWEST_DIGIT_BITS), _MOST_DIGIT_BITS)
    passes = (bits + most - np.uint64(1)) // most
    digit = (bits + passes - np.uint64(1)) // passes
    width = np.uint64(1) << digit
    mask = width - np.uint64(1)
    for number in range(passes):
        down = np.uint64(number) * digit
        for place in range(width):
            tables[place] = 0
        for i in range(start, stop):
            tables[((keys[i] - low) >> down) & mask] += 1
        reached = np.int32(start)
        for place in range(width):
            count = tables[place]
            tables[place] = reached
            reached += count
        for i in range(start, stop):
            key = keys[i]
            place = ((key - low) >> down) & mask
            to = tables[place]
            tables[place] = to + np.int32(1)
            spare[np.uint32(to)] = key
        keys, spare = spare, keys
    if passes % np.uint64(2) == np.uint64(1):
        spare[start:stop] = keys[start:stop]  # they have changed places


@helper
def _descending(bits: np.int32, grade: np.uint8, bits_of_grade: np.uint64) -> np.uint64:
    """Return the key that orders by descending score, then ascending grade; ``bits`` are the score's as an integer."""
    bits = np.int32(0) if bits == np.int32(-0x80000000) else bits  # -0.0 equals 0.0
    ascending = np.uint32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))) ^ np.uint32(0x80000000)
    return (np.uint64(~ascending & np.uint32(0xFFFFFFFF)) << bits_of_grade) | np.uint64(grade)


@helper
def _fill_scores(keys: np.ndarray, size: int, bits_of_grade: np.uint64, scores: np.ndarray) -> None:
    """Take the scores out of the keys again."""
    out = scores.view(np.int32)
    for i in range(size):
        ascending = ~np.uint32(keys[i] >> bits_of_grade)
        signed = np.int32(ascending ^ np.uint32(0x80000000))
        out[i] = signed ^ ((signed >> np.int32(31)) & np.int32(0x7FFFFFFF))


@helper
def _index_slices(
    ordered: np.ndarray, size: int, num_slices: int, scores: np.ndarray, slices: np.ndarray, table: np.ndarray
) -> None:
    """Cut the range of ``ordered`` (descending) into equal slices.

    Args:
        ordered: (size + 1,) scores of the positives.
        size: how many they are.
        num_slices: how many slices.
        scores: (G,) of all items.
        slices: (G,) filled with every item's slice, ``num_slices`` below the last positive.
        table: filled with how many positives lie in the slices before each.
    """
    high, low = ordered[0], ordered[size - 1]
    last = np.float32(num_slices)
    scale = min(np.float32(num_slices - 1) / (high - low), np.float32(1e30))  # infinite where all are tied
    for i in range(scores.shape[0]):
        position = (high - scores[i]) * scale
        slices[i] = np.int32(max(np.float32(0), min(position, last)))
    for i in range(num_slices + 1):
        table[i] = 0
    for i in range(size):
        table[np.uint32(np.int32((high - ordered[i]) * scale)) + np.uint32(1)] += 1
    for i in range(num_slices):
        table[i + 1] += table[i]


@helper
def _above(ordered: np.ndarray, start: np.uint32, stop: np.uint32, score: np.float32) -> np.uint32:
    """Return the position in ``ordered[start:stop]`` (descending) behind the last one greater than ``score``."""
    while start < stop:
        middle = (start + stop) >> np.uint32(1)
        if ordered[middle] > score:
            start = middle + np.uint32(1)
        else:
            stop = middle
    return start


@helper
def _count_between(
    scores: np.ndarray, ordered: np.ndarray, size: int, slices: np.ndarray, table: np.ndarray, ranks: np.ndarray
) -> None:
    """Rank each of ``size`` positives, whose scores are ``ordered`` descending, among all ``scores``."""
    num_slices = 64
    while num_slices < _SLICES_A_POSITIVE * size and num_slices < _MOST_SLICES:
        num_slices *= 2
    _index_slices(ordered, size, num_slices, scores, slices, table)
    ordered[size] = -np.inf
    for i in range(size + 1):
        ranks[i] = 0
    for i in range(scores.shape[0]):
        place = np.uint32(slices[i])
        if place < num_slices:  # what is below every positive counts for none
            score = scores[i]
            above = np.uint32(table[place])
            above += np.uint32(ordered[above] > score)  # mostly decides, and cannot be mispredicted
            if ordered[above] > score:
                above = _above(ordered, above, np.uint32(table[place + np.uint32(1)]), score)
            ranks[above] += 1
    for i in range(1, size):
        ranks[i] += ranks[i - 1]


@compiled
def find_spans(scores: np.ndarray, grades: np.ndarray, floors: np.ndarray, spans: np.ndarray) -> None:
    """Find which rows are sorted as a whole, and which scores they have.

    Args:
        scores: (q, G) float32, finite, or -inf for items out of the ranking.
        grades: (q, G) uint8.
        floors: (q,) float32, see :func:`rank_rows`.
        spans: (q, 3) int64, filled with the number of positives, the least magnitude of a score above 0 as an integer,
            and how many magnitudes there are from it to the greatest; 0 where the row is not sorted as a whole.
    """
    size = scores.shape[1]
    for row in range(scores.shape[0]):
        num = _count_positives(grades[row])
        spans[row, 0], spans[row, 1], spans[row, 2] = num, 0, 0
        if floors[row] > -np.inf or not (num * _SORT_ALL_SHARE > size or num > _MOST_COUNTED):
            continue
        bits = scores[row].view(np.uint32)
        least, most = np.uint32(0xFFFFFFFF), np.uint32(0)  # less 1, and less infinity: 0 and infinity lie at the ends
        for i in range(size):
            magnitude = bits[i] & np.uint32(0x7FFFFFFF)
            least = min(least, np.uint32(magnitude - np.uint32(1)))
            most = max(most, np.uint32(magnitude - np.uint32(_INFINITE)))
        first = min(np.int64(least) + 1, np.int64(_INFINITE))
        last = np.int64(np.uint32(most + np.uint32(_INFINITE))) if most > 0 else np.int64(0)
        spans[row, 1] = first
        spans[row, 2] = max(np.int64(1), last - first + 1)


@helper
def _count_positives(grades: np.ndarray) -> np.int64:
    """Count the grades above 0, some at a time in numbers of their own width, which a processor adds up at once."""
    found = np.int64(0)
    for start in range(0, grades.shape[0], 128):
        some = np.uint8(0)
        part = grades[start : start + 128]
        for i in range(part.shape[0]):
            some = np.uint8(some + np.uint8(part[i] != np.uint8(0)))
        found += np.int64(some)
    return found


@compiled
def fill_narrow_keys(
    scores: np.ndarray, grades: np.ndarray, spans: np.ndarray, bits_of_grade: np.uint64, keys: np.ndarray
) -> None:
    """Fill (q, G) uint32 keys that order as those of :func:`fill_wide_keys` do, of scores whose span leaves room."""
    shift = np.uint32(bits_of_grade)
    for row in range(scores.shape[0]):
        bits, out, grade = scores[row].view(np.int32), keys[row], grades[row]
        before, span = np.int32(spans[row, 1] - 1), np.int32(spans[row, 2])
        for i in range(bits.shape[0]):
            magnitude = bits[i] & np.int32(0x7FFFFFFF)
            step = max(magnitude - before, np.int32(0))  # 0 for 0.0 and -0.0
            step = min(step, span + np.int32(1))  # one more for -inf
            place = span + step if bits[i] < np.int32(0) else span - step
            out[i] = (np.uint32(place) << shift) | np.uint32(grade[i])


@compiled
def fill_wide_keys(scores: np.ndarray, grades: np.ndarray, bits_of_grade: np.uint64, keys: np.ndarray) -> None:
    """Fill (q, G) uint64 keys that order by descending score, then ascending grade."""
    for row in range(scores.shape[0]):
        bits = scores[row].view(np.int32)
        for i in range(bits.shape[0]):
            keys[row, i] = _descending(bits[i], grades[row, i], bits_of_grade)


def _sorted_rows(
    scores: np.ndarray, grades: np.ndarray, floors: np.ndarray, bits_of_grade: np.uint64, room: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort the rows with many positives.

    Args:
        scores: see :func:`rank_rows`, as for the next two.
        grades: see there.
        floors: see there.
        bits_of_grade: see :func:`grade_bits`.
        room: uint64, one a score, for the keys.

    Returns:
        positives: (q,) how many.
        place: (q,) row of ``keys``; -1 where the row was not sorted.
        keys: sorted, a table of uint32; keys of 64 bits take two columns.
    """
    spans = np.empty((len(scores), 3), np.int64)
    find_spans(scores, grades, floors, spans)
    chosen = np.flatnonzero(spans[:, 2])
    place = np.full(len(scores), -1)
    place[chosen] = np.arange(len(chosen))
    if len(chosen) < len(scores):
        scores, grades, spans_ = scores[chosen], grades[chosen], spans[chosen]
    else:
        spans_ = spans
    if (2 * int(spans_[:, 2].max(initial=0)) + 2) << int(bits_of_grade) <= 1 << 32:
        keys = room.view(np.uint32)[: scores.size].reshape(scores.shape)
        fill_narrow_keys(scores, grades, spans_, bits_of_grade, keys)
    else:
        keys = room[: scores.size].reshape(scores.shape)
        fill_wide_keys(scores, grades, bits_of_grade, keys)
    keys.sort(axis=1)
    return spans[:, 0].copy(), place, keys.view(np.uint32)


@helper
def _walk_sorted(
    keys: np.ndarray, size: int, num: int, bits_of_grade: np.uint64, grades: np.ndarray, ranks: np.ndarray
) -> None:
    """Keep the ``num`` positives of a sorted row; their rank is the end of their group of equal scores.

    They are kept from place 1 on: whatever precedes the first is written to place 0, so that nothing is asked of it.
    """
    mask = (np.uint64(1) << bits_of_grade) - np.uint64(1)
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


@helper
def _collect_positives(grades: np.ndarray, items: np.ndarray) -> None:
    """Collect the positives without branches, which could not be predicted."""
    found = np.uint64(0)
    for i in range(grades.shape[0]):
        items[found] = i
        found += np.uint64(grades[i] != np.uint8(0))


@helper
def _head(scores: np.ndarray, floor: np.float32, items: np.ndarray) -> np.int64:
    """Collect the items at or above ``floor``, which are few, so that the branch predicts itself."""
    found = np.int64(0)
    for i in range(scores.shape[0]):
        if scores[i] >= floor:
            items[np.uint64(found)] = i
            found += 1
    return found


def scratch(size: int, num_levels: int) -> tuple[np.ndarray, ...]:
    """Allocate the memory that :func:`rank_row` needs beside its results, for galleries of ``size`` items."""
    num_places = max(1 << int(_MOST_DIGIT_BITS), _MOST_SLICES + 1)
    return (
        np.empty(size, np.uint64),
        np.empty(size, np.uint64),
        np.empty(num_places, np.int32),
        np.empty(size + 1, np.float32),
        np.empty(size + 1, np.int32),
    )


def grade_bits(num_levels: int) -> np.uint64:
    """Return the number of bits that hold the grades 0..L."""
    return np.uint64(num_levels.bit_length())


@helper
def rank_row(
    scores: np.ndarray,
    grades: np.ndarray,
    floor: np.float32,
    bits_of_grade: np.uint64,
    sorted_keys: np.ndarray,
    num: np.int64,
    memory: tuple[np.ndarray, ...],
    positive_grades: np.ndarray,
    ranks: np.ndarray,
) -> np.int64:
    """Order the positives of one row.

    Args:
        scores: (G,) float32, finite, or -inf for items out of the ranking.
        grades: (G,) uint8, 0 for items out of the ranking.
        floor: positives below this score are not needed; -inf where all are.
        bits_of_grade: see :func:`grade_bits`.
        sorted_keys: the row as :func:`_sorted_rows` has sorted it; empty if it has not.
        num: its positives.
        memory: see :func:`scratch`.
        positive_grades: (G + 2,) filled from place 1 on with the grades in list order.
        ranks: (G + 2,) filled likewise with the number of items with at least that score.

    Returns:
        how many positives there are at or above ``floor``.
    """
    keys, spare, tables, ordered, slices = memory
    bits = scores.view(np.int32)
    size = scores.shape[0]
    if floor > -np.inf:
        listed = _head(scores, floor, slices)
        num = np.int64(0)
        for i in range(listed):
            item = np.uint32(slices[i])
            keys[i] = _descending(bits[item], grades[item], bits_of_grade)
            num += np.int64(grades[item] > 0)
        _sort_keys(keys, 0, listed, spare, tables)
        _walk_sorted(keys, listed, num, bits_of_grade, positive_grades, ranks)
        return num
    if num < 1:
        return num
    if sorted_keys.shape[0] == size:
        _walk_sorted(sorted_keys, size, num, bits_of_grade, positive_grades, ranks)
        return num
    if sorted_keys.shape[0] > size:
        _walk_sorted(sorted_keys.view(np.uint64), size, num, bits_of_grade, positive_grades, ranks)
        return num
    _collect_positives(grades, slices)
    for i in range(num):
        item = np.uint32(slices[i])
        keys[i] = _descending(bits[item], grades[item], bits_of_grade)
    _sort_keys(keys, 0, num, spare, tables)
    mask = (np.uint64(1) << bits_of_grade) - np.uint64(1)
    for i in range(num):
        positive_grades[i + 1] = keys[i] & mask
    _fill_scores(keys, num, bits_of_grade, ordered)
    _count_between(scores, ordered, num, slices, tables, ranks[1:])
    return num


# -- the heads of rankings --------------------------------------------------------------------------------------------
#
# Where the first places alone matter, scores are looked at once, as the matrix product yields them: a row keeps what is
# not below the lowest of the best ``depth`` seen so far.

HEAD_CHUNK = 64  # scores that are compared at a time
FULL = -1  # the size of a row whose items of one score are more than there is room for


@compiled
def gather_heads(
    scores: np.ndarray,
    first: int,
    begin: int,
    end: int,
    depth: int,
    floors: np.ndarray,
    sizes: np.ndarray,
    kept_scores: np.ndarray,
    kept_items: np.ndarray,
    memory: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Take consecutive items into the heads of q rows.

    Args:
        scores: (q, n) float32.
        first: item whose score is in column ``begin``; the others follow.
        begin: first column.
        end: behind the last column.
        depth: how many places matter.
        floors: (q,) float32, -inf at first: what lies below it can be left out.
        sizes: (q,) int64 items that a row holds, 0 at first; ``FULL`` where they do not fit.
        kept_scores: (q, C) float32, C at least ``depth`` + 2 ``HEAD_CHUNK``.
        kept_items: (q, C) int32.
        memory: two uint64 arrays of C, and the int32 tables of :func:`scratch`.
    """
    capacity = kept_scores.shape[1]
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
                _shorten_head(row, depth, floors, sizes, kept_scores, kept_items, memory)
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
    depth: int,
    floors: np.ndarray,
    sizes: np.ndarray,
    kept_scores: np.ndarray,
    kept_items: np.ndarray,
    memory: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Leave out of every head what lies below its place ``depth``; arguments as of :func:`gather_heads`."""
    for row in range(sizes.shape[0]):
        if sizes[row] != FULL:
            _shorten_head(row, depth, floors, sizes, kept_scores, kept_items, memory)


@helper
def _shorten_head(
    row: int,
    depth: int,
    floors: np.ndarray,
    sizes: np.ndarray,
    kept_scores: np.ndarray,
    kept_items: np.ndarray,
    memory: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Leave out what lies below the place ``depth``; the others stay in their order."""
    keys, spare, tables = memory
    size = sizes[row]
    if size <= depth:
        return
    scores = kept_scores[row]
    bits = scores.view(np.int32)
    for i in range(size):
        keys[i] = _descending(bits[i], np.uint8(0), np.uint64(0))
    _sort_keys(keys, 0, size, spare, tables)
    lowest = keys[depth - 1]
    kept = 0
    for i in range(size):
        if _descending(bits[i], np.uint8(0), np.uint64(0)) <= lowest:
            floors[row] = scores[i] if kept == 0 else min(floors[row], scores[i])
            scores[kept] = scores[i]
            kept_items[row, kept] = kept_items[row, i]
            kept += 1
    sizes[row] = kept


# -- grades of single pairs -------------------------------------------------------------------------------------------


@compiled
def count_matches(
    members: np.ndarray, starts: np.ndarray, codes: np.ndarray, gallery: np.ndarray, counts: np.ndarray
) -> None:
    """Fill (q, L) int64 ``counts`` with the gallery's items of the grades 1..L to every query.

    The members of all classes but those of the coarsest level are looked at; those say themselves how many they are.

    Args:
        members: see :func:`paint_grades`, as for the next two.
        starts: see there.
        codes: see there.
        gallery: (L, G) classes of the items.
        counts: to fill.
    """
    num_levels = members.shape[0]
    counts[:] = 0
    for row in range(codes.shape[0]):
        for level in range(num_levels):
            code = codes[row, level]
            if code < 0:
                continue
            counts[row, num_levels - 1 - level] += starts[level, code + 1] - starts[level, code]
            if np.any(codes[row, level + 1 :] >= 0):
                for i in range(starts[level, code], starts[level, code + 1]):
                    _count_once(level, codes[row], gallery[:, members[level, i]], counts[row])


@helper
def _count_once(level: int, codes: np.ndarray, classes: np.ndarray, counts: np.ndarray) -> None:
    """Take an item that is counted at ``level`` out of the counts of coarser levels, unless a finer one has."""
    num_levels = codes.shape[0]
    for other in range(level):
        if codes[other] >= 0 and classes[other] == codes[other]:
            return
    for other in range(level + 1, num_levels):
        if codes[other] >= 0 and classes[other] == codes[other]:
            counts[num_levels - 1 - other] -= 1


# -- order statistics of rows -----------------------------------------------------------------------------------------
#
# :mod:`hgld.evaluation.statistics` has the same in torch.


@helper
def _place_positives(
    grades: np.ndarray,
    ranks: np.ndarray,
    size: int,
    deepest: int,
    ends: np.ndarray,
    listed: np.ndarray,
) -> None:
    """Return the last positive of every tie group, and the grade at every place of the list, in which ties come last.

    Of the places beyond ``deepest`` the grades are not returned.
    """
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
def _ap_sum(
    chosen: np.ndarray,
    grades: np.ndarray,
    ends: np.ndarray,
    ranks: np.ndarray,
    size: int,
    running: np.ndarray,
) -> float:
    """Sum rank+ / rank over the positives whose grade is chosen, as if they were the only ones."""
    count = 0
    for i in range(size):
        count += chosen[np.uint32(grades[i])]
        running[i] = count
    total = 0.0
    for i in range(size):
        total += float(chosen[np.uint32(grades[i])] * running[np.uint32(ends[i])]) / ranks[i]
    return total


@helper
def _ap_sums(
    grades: np.ndarray, ends: np.ndarray, ranks: np.ndarray, size: int, counts: np.ndarray, ap: np.ndarray
) -> None:
    """Fill ``ap`` (L,) with the sums of rank+ / rank over the positives of at least each grade.

    Args:
        grades: of the positives in list order.
        ends: last positive of each one's tie group.
        ranks: of the positives.
        size: how many they are.
        counts: (2, L + 1) int64, overwritten: the positives so far of at least each grade, and those of the group.
        ap: to fill.
    """
    counts[:] = 0
    ap[:] = 0.0
    highest = np.uint64(0)
    first = 0.0
    start = 0
    for i in range(size):
        grade = np.uint64(grades[i])
        if grade > np.uint64(1):  # every positive has at least grade 1: i + 1 of them so far
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
def _exact_ap_sum(
    grade: int, grades: np.ndarray, ends: np.ndarray, ranks: np.ndarray, size: int, running: np.ndarray
) -> float:
    """Sum rank+ / rank for one grade, in a ranking that lacks the positives of the other grades."""
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


@helper
def _hap_sum(
    relevance: np.ndarray,
    ap: np.ndarray,
    grades: np.ndarray,
    ends: np.ndarray,
    ranks: np.ndarray,
    size: int,
    running: np.ndarray,
) -> float:
    """Sum Hrank+ / rank over the positives.

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


@helper
def _dcg_sum(
    grades: np.ndarray,
    ranks: np.ndarray,
    size: int,
    gains: np.ndarray,
    discounts: np.ndarray,
    depths: np.ndarray,
    dcg_at: np.ndarray,
) -> float:
    """Sum gain * discount, with its parts down to every depth."""
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
    grades: np.ndarray,
    ends: np.ndarray,
    ranks: np.ndarray,
    size: int,
    totals: np.ndarray,
    depths: np.ndarray,
    whole: bool,
    precision_r: np.ndarray,
    hits: np.ndarray,
    precision: np.ndarray,
) -> None:
    """Sum over the positives at the head of the list: to the last depth, and, if ``whole``, to R of every level."""
    width = totals.shape[0]
    positives = np.zeros(width, np.int64)  # at or above each grade in the whole gallery
    for grade in range(width - 1, 0, -1):
        positives[grade] = totals[grade] + (positives[grade + 1] if grade < width - 1 else 0)
    end = max(positives[1] if whole else 0, depths[-1] if depths.shape[0] else 0)
    counts = np.zeros(width, np.int64)
    at_least = np.zeros(width)
    running = np.zeros(width)
    depth = 0
    for i in range(size):
        place = ranks[i] - ends[i] + i
        while depth < depths.shape[0] and place > depths[depth]:
            _snapshot(counts, running, hits[depth], precision[depth])
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
        _snapshot(counts, running, hits[rest], precision[rest])


@helper
def _snapshot(counts: np.ndarray, running: np.ndarray, hits: np.ndarray, precision: np.ndarray) -> None:
    for grade in range(1, counts.shape[0]):
        hits[grade] = counts[grade]
        precision[grade - 1] = running[grade]


@helper
def _set_intersection(listed: np.ndarray, totals: np.ndarray) -> float:
    """Return ASI: the mean over n, up to the number of positives, of the first n's share in an ideal list's first n."""
    width = totals.shape[0]
    found = np.zeros(width, np.int64)
    ideal_end = 0
    shared = np.int64(0)  # of the grades that the ideal list has left behind
    total = 0.0
    for ideal_grade in range(width - 1, 0, -1):
        start = ideal_end
        ideal_end += totals[ideal_grade]
        found_here = found[ideal_grade]
        for n in range(start + 1, ideal_end + 1):
            grade = np.int64(listed[n])
            found_here += np.int64(grade == ideal_grade)
            if grade > ideal_grade:  # the finer, the fewer: mostly the processor guesses right
                shared += np.int64(found[grade] < totals[grade])
                found[grade] += 1
            elif np.uint64(grade - 1) < np.uint64(ideal_grade - 1):
                found[grade] += 1
            total += float(shared + min(found_here, n - start)) / n
        found[ideal_grade] = found_here
        shared += min(found_here, totals[ideal_grade])
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
    asked: tuple[bool, bool, bool],
    sums: tuple[np.ndarray, ...],
) -> None:
    """Order every row and fill the sums of :class:`hgld.evaluation.statistics.OrderStatistics`.

    Args:
        scores: (q, G) float32, finite, or -inf for items out of the ranking.
        grades: (q, G) uint8, 0 for items out of the ranking.
        floors: (q,) float32; what lies below is not needed.
        totals: (q, L + 1) int64 items of every grade.
        relevance: (q, L + 1) float64, H-AP's.
        gains: (L + 1,) float64, NDCG's.
        discounts: (G + 1,) float64 by rank.
        depths: (K,) int64, ascending.
        asked: whether ``exact_ap``, ``precision_r`` and ``asi`` are wanted.
        sums: the arrays to fill, in the order of the fields.
    """
    size, num_levels = scores.shape[1], totals.shape[1] - 1
    memory = scratch(size, num_levels)
    found = tuple(np.empty(size + 2, dtype) for dtype in (np.uint8, *[np.int32] * 3, np.uint8))
    bits = grade_bits(num_levels)
    at_once = max(1, _KEYS_AT_ONCE // max(size, 1))
    room = np.empty(min(at_once, len(scores)) * size, np.uint64)
    for start in range(0, len(scores), at_once):
        part = slice(start, start + at_once)
        rows = scores[part], grades[part], floors[part]
        given = totals[part], relevance[part], gains, discounts, depths, asked, bits
        _rank_rows(*rows, *given, *_sorted_rows(*rows, bits, room), memory, found, tuple(table[part] for table in sums))


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
    asked: tuple[bool, bool, bool],
    bits_of_grade: np.uint64,
    positives: np.ndarray,
    sorted_places: np.ndarray,
    sorted_keys: np.ndarray,
    memory: tuple[np.ndarray, ...],
    found: tuple[np.ndarray, ...],
    sums: tuple[np.ndarray, ...],
) -> None:
    ap, exact_ap, precision_r, hap, dcg, asi, hits, precision, grade_at, dcg_at = sums
    kept_grades, kept_ranks, ends, running, listed = found
    positive_grades, ranks = kept_grades[1:], kept_ranks[1:]
    size, width = scores.shape[1], totals.shape[1]
    counts = np.empty((2, width), np.int64)
    for row in range(scores.shape[0]):
        keys = sorted_keys[sorted_places[row]] if sorted_places[row] >= 0 else np.empty(0, np.uint32)
        num = positives[row]
        num = rank_row(scores[row], grades[row], floors[row], bits_of_grade, keys, num, memory, kept_grades, kept_ranks)
        in_set = asked[2] and np.sum(totals[row, 1:]) <= size  # of heads the positives may be more
        deepest = depths[-1] if depths.shape[0] else 0
        deepest = max(deepest, np.sum(totals[row, 1:]) if in_set else 0)
        _place_positives(positive_grades, ranks, num, deepest, ends, listed)
        _ap_sums(positive_grades, ends, ranks, num, counts, ap[row])
        for grade in range(1, width):
            if asked[0]:
                exact_ap[row, grade - 1] = _exact_ap_sum(grade, positive_grades, ends, ranks, num, running)
        hap[row] = _hap_sum(relevance[row], ap[row], positive_grades, ends, ranks, num, running)
        dcg[row] = _dcg_sum(positive_grades, ranks, num, gains, discounts, depths, dcg_at[row])
        heads = precision_r[row], hits[row], precision[row]
        _list_sums(positive_grades, ends, ranks, num, totals[row], depths, asked[1], *heads)
        for k in range(depths.shape[0]):
            grade_at[row, k] = listed[depths[k]] if depths[k] <= size else 0
        if in_set:
            asi[row] = _set_intersection(listed, totals[row])
