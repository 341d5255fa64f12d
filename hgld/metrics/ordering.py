"""The order of the positives of one query among the gallery, compiled.

What the metrics read of a ranking is little: the positives (grade > 0) in list order, and for each of them its rank.
Where positives are few, they alone are sorted, and every gallery item is only counted between two of them, which
needs one look into a table over equal slices of their score range. Where they are many, the row is sorted as a whole.
Of a list that is needed down to some place only, the items above a floor are sorted.
Sorting is by radix on exact keys, so that no distribution of scores, ties included, makes it slow.
"""

import numpy as np

from hgld.metrics.compiled import compiled

_RADIX_FROM = 64  # for fewer keys insertion is cheaper than clearing and adding up the three tables of digits
_SLICES_A_POSITIVE = 8  # few enough positives share a slice that the first comparison mostly decides
_MOST_SLICES = 1 << 16  # beyond this the table leaves the second-level cache
_SORT_ALL_SHARE = 4  # one item in so many positive: sorting the whole row is cheaper than counting


@compiled
def _sort_keys(keys: np.ndarray, size: int, digit_bits: int, spare: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Sort ``keys[:size]`` (uint64 below 2^(3 digit_bits)); the result lies in ``keys`` or in ``spare``."""
    if size < _RADIX_FROM:
        for i in range(1, size):
            key = keys[i]
            to = i
            while to > 0 and keys[to - 1] > key:
                keys[to] = keys[to - 1]
                to -= 1
            keys[to] = key
        return keys
    width = np.uint64(1) << np.uint64(digit_bits)
    mask = width - np.uint64(1)
    for place in range(3 * width):
        tables[place] = 0
    one, two = np.uint64(digit_bits), np.uint64(2 * digit_bits)
    for i in range(size):
        key = keys[i]
        tables[key & mask] += 1
        tables[width + ((key >> one) & mask)] += 1
        tables[width + width + (key >> two)] += 1
    for digit in range(3):
        start = np.int32(0)
        base = np.uint64(digit) * width
        shift = np.uint64(digit * digit_bits)
        for place in range(width):
            count = tables[base + np.uint64(place)]
            tables[base + np.uint64(place)] = start
            start += count
        for i in range(size):
            key = keys[i]
            place = base + ((key >> shift) & mask)
            to = tables[place]
            tables[place] = to + np.int32(1)
            spare[np.uint32(to)] = key
        keys, spare = spare, keys
    return keys


@compiled
def _descending(bits: np.int32, grade: np.uint8, bits_of_grade: np.uint64) -> np.uint64:
    """Key that orders by descending score, then ascending grade; ``bits`` are the score's as an integer."""
    bits = np.int32(0) if bits == np.int32(-0x80000000) else bits  # -0.0 equals 0.0
    ascending = np.uint32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))) ^ np.uint32(0x80000000)
    return (np.uint64(~ascending & np.uint32(0xFFFFFFFF)) << bits_of_grade) | np.uint64(grade)


@compiled
def _fill_scores(keys: np.ndarray, size: int, bits_of_grade: np.uint64, scores: np.ndarray) -> None:
    """Take the scores out of the keys again."""
    out = scores.view(np.int32)
    for i in range(size):
        ascending = ~np.uint32(keys[i] >> bits_of_grade)
        signed = np.int32(ascending ^ np.uint32(0x80000000))
        out[i] = signed ^ ((signed >> np.int32(31)) & np.int32(0x7FFFFFFF))


@compiled
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


@compiled
def _above(ordered: np.ndarray, start: np.uint32, stop: np.uint32, score: np.float32) -> np.uint32:
    """Position in ``ordered[start:stop]`` (descending) behind the last one greater than ``score``."""
    while start < stop:
        middle = (start + stop) >> np.uint32(1)
        if ordered[middle] > score:
            start = middle + np.uint32(1)
        else:
            stop = middle
    return start


@compiled
def _count_between(
    scores: np.ndarray, ordered: np.ndarray, size: int, slices: np.ndarray, table: np.ndarray, ranks: np.ndarray
) -> None:
    """Rank of each of ``size`` positives, whose scores are ``ordered`` descending, among all ``scores``."""
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
def _walk_sorted(
    keys: np.ndarray, size: int, num: int, bits_of_grade: np.uint64, grades: np.ndarray, ranks: np.ndarray
) -> None:
    """Keep the ``num`` positives of a sorted row; their rank is the end of their group of equal scores."""
    mask = (np.uint64(1) << bits_of_grade) - np.uint64(1)
    rank = size
    score = keys[size - 1] >> bits_of_grade
    left = num
    for i in range(size - 1, -1, -1):
        here = keys[i] >> bits_of_grade
        rank = rank if here == score else i + 1
        score = here
        grade = keys[i] & mask
        to = left - 1 if left > 0 else size  # past the first positive there is nothing to keep
        grades[to] = grade
        ranks[to] = rank
        left -= np.int64(grade > 0)


@compiled
def _positives(grades: np.ndarray, items: np.ndarray) -> np.int64:
    """Collect the positives without branches, which nobody could predict; returns their number."""
    found = np.uint64(0)
    for i in range(grades.shape[0]):
        items[found] = i
        found += np.uint64(grades[i] != np.uint8(0))
    return np.int64(found)


@compiled
def _head(scores: np.ndarray, floor: np.float32, items: np.ndarray) -> np.int64:
    """Collect the items at or above ``floor``, which are few, so that the branch predicts itself."""
    found = np.int64(0)
    for i in range(scores.shape[0]):
        if scores[i] >= floor:
            items[np.uint64(found)] = i
            found += 1
    return found


def scratch(size: int, num_levels: int) -> tuple[np.ndarray, ...]:
    """Memory that :func:`rank_row` needs beside its results, for galleries of ``size`` items."""
    num_places = max(3 << _digit_bits(grade_bits(num_levels)), _MOST_SLICES + 1)
    return (
        np.empty(size, np.uint64),
        np.empty(size, np.uint64),
        np.empty(num_places, np.int32),
        np.empty(size + 1, np.float32),
        np.empty(size + 1, np.int32),
    )


def grade_bits(num_levels: int) -> np.uint64:
    """How many bits hold the grades 0..L."""
    return np.uint64(num_levels.bit_length())


@compiled
def _digit_bits(bits_of_grade: np.uint64) -> np.int64:
    return (np.int64(bits_of_grade) + 34) // 3


@compiled
def rank_row(
    scores: np.ndarray,
    grades: np.ndarray,
    floor: np.float32,
    bits_of_grade: np.uint64,
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
        memory: see :func:`scratch`.
        positive_grades: (G + 1,) filled with the grades in list order.
        ranks: (G + 1,) filled with the number of items with at least that score.

    Returns:
        how many positives there are at or above ``floor``.
    """
    keys, spare, tables, ordered, slices = memory
    bits = scores.view(np.int32)
    digit_bits = _digit_bits(bits_of_grade)
    size = scores.shape[0]
    if floor > -np.inf:
        listed = _head(scores, floor, slices)
        num = np.int64(0)
        for i in range(listed):
            item = np.uint32(slices[i])
            keys[i] = _descending(bits[item], grades[item], bits_of_grade)
            num += np.int64(grades[item] > 0)
        placed = _sort_keys(keys, listed, digit_bits, spare, tables)
        _walk_sorted(placed, listed, num, bits_of_grade, positive_grades, ranks)
        return num
    num = _positives(grades, slices)
    if num < 1:
        return num
    if num * _SORT_ALL_SHARE > size:
        for i in range(size):
            keys[i] = _descending(bits[i], grades[i], bits_of_grade)
        placed = _sort_keys(keys, size, digit_bits, spare, tables)
        _walk_sorted(placed, size, num, bits_of_grade, positive_grades, ranks)
        return num
    for i in range(num):
        item = np.uint32(slices[i])
        keys[i] = _descending(bits[item], grades[item], bits_of_grade)
    placed = _sort_keys(keys, num, digit_bits, spare, tables)
    mask = (np.uint64(1) << bits_of_grade) - np.uint64(1)
    for i in range(num):
        positive_grades[i] = placed[i] & mask
    _fill_scores(placed, num, bits_of_grade, ordered)
    _count_between(scores, ordered, num, slices, tables, ranks)
    return num
