"""Relevance of gallery items to queries, as grades of a block of queries, from labels, lists or a table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError
from hgld.labels import distinct
from hgld.relevance import shared_levels

MOST_LEVELS = 250  # maximum number of levels: grades are stored as bytes


@dataclass(frozen=True)
class RelevanceFacts:
    """Number of relevant items and list of excluded items of q consecutive queries.

    Attributes:
        counts: (q, L + 1) int64 number of ranked items of every grade; excluded items are not counted.
        left_out: row and gallery index of every pair that is not ranked: the query itself, junk.
    """

    counts: np.ndarray
    left_out: tuple[np.ndarray, np.ndarray]

    def of(self, start: int, stop: int) -> "RelevanceFacts":
        """Return the facts of the queries start..stop - 1."""
        rows, items = self.left_out
        chosen = (rows >= start) & (rows < stop)
        return RelevanceFacts(self.counts[start:stop], (rows[chosen] - start, items[chosen]))


@dataclass(frozen=True)
class RelevanceBlock(RelevanceFacts):
    """Grades of q consecutive queries against the whole gallery.

    Attributes:
        grades: (q, G) uint8; 0 for items that are not relevant or not ranked.
    """

    grades: Tensor


class LabelRelevance:
    """Relevance from labels: a grade is the number of levels that two items share (:func:`hgld.shared_levels`).

    Args:
        query: (Q, L) integer labels, finest level first, negative if unknown.
        gallery: (G, L) labels.
        self_index: (Q,) gallery index of the query itself, which is excluded; -1 if the query is not in the gallery.
            None: no query is in the gallery.

    Raises:
        InputError: an entry of ``self_index`` is not in the gallery.
    """

    def __init__(self, query: np.ndarray, gallery: np.ndarray, self_index: np.ndarray | None = None) -> None:
        num_queries, self.num_levels = query.shape
        self.shape = (num_queries, len(gallery))
        self.self_index = np.full(num_queries, -1) if self_index is None else np.asarray(self_index)
        _check_indices(self.self_index, len(gallery), "self_index")
        codes = [distinct(column) for column in np.concatenate([query, gallery]).T]
        coded = np.empty((self.num_levels, num_queries + len(gallery)), np.int32)
        for level, (classes, place) in enumerate(codes):
            coded[level] = np.maximum(place - np.searchsorted(classes, 0), -1)  # negative classes become -1
        self._query = np.ascontiguousarray(coded[:, :num_queries].T)
        self._gallery = np.ascontiguousarray(coded[:, num_queries:])
        classes = np.arange(coded.max(initial=0) + 2)
        self._members = np.argsort(self._gallery, axis=1, kind="stable").astype(np.int32)
        ordered = np.take_along_axis(self._gallery, self._members, axis=1)
        self._starts = np.stack([np.searchsorted(row, classes) for row in ordered])
        self._on_device: Tensor | None = None

    def grades_of(self, start: int, stop: int, items: np.ndarray) -> np.ndarray:
        """Return (q, C) uint8 grades of ``items`` (q, C) for the queries start..stop - 1."""
        grades = np.zeros(items.shape, np.uint8)
        for level in reversed(range(self.num_levels)):
            column = self._query[start:stop, level, None]
            grades[(column == self._gallery[level][items]) & (column >= 0)] = self.num_levels - level
        return grades

    def block(self, start: int, stop: int, device: torch.device) -> RelevanceBlock:
        """Return the grades of the queries start..stop - 1."""
        index = self.self_index[start:stop]
        rows = np.flatnonzero(index >= 0)
        if device.type == "cpu":
            from hgld.evaluation.ranks import paint_grades  # imported here, because numba takes long to import

            grades = torch.empty(stop - start, self.shape[1], dtype=torch.uint8)
            paint_grades(self._query[start:stop], self._members, self._starts, grades.numpy())
        else:
            if self._on_device is None or self._on_device.device != device:
                self._on_device = torch.from_numpy(self._gallery.T).to(device)
            query = torch.from_numpy(self._query[start:stop]).to(device)
            grades = shared_levels(query, self._on_device, dtype=torch.uint8)
        return _without(grades, self.num_levels, (rows, index[rows]))


class ListRelevance:
    """Relevance from lists of relevant items per query, as landmark benchmarks publish their ground truth.

    Args:
        num_gallery: G, number of gallery items.
        graded: for every query L arrays of gallery indices, one per grade from 1 to L.
        left_out: for every query the gallery indices that are not ranked (junk, the query itself); None: all are
            ranked.

    Raises:
        InputError: an index is not in the gallery, or a query lists it twice.
    """

    def __init__(
        self,
        num_gallery: int,
        graded: Sequence[Sequence[np.ndarray]],
        left_out: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.shape = (len(graded), num_gallery)
        self.num_levels = len(graded[0]) if graded else 1
        junk = left_out if left_out is not None else [np.empty(0, np.int64)] * len(graded)
        self._graded = [[np.array(part, np.int64) for part in parts] for parts in graded]
        self._junk = [np.array(part, np.int64) for part in junk]
        for number, (parts, out) in enumerate(zip(self._graded, self._junk, strict=True)):
            listed = np.concatenate([*parts, out])
            _check_indices(listed, num_gallery, f"query {number}", lowest=0)
            if len(np.unique(listed)) != len(listed):
                raise InputError(
                    f"query {number} lists a gallery item twice; expected each item at most once, in one list."
                )

    def block(self, start: int, stop: int, device: torch.device) -> RelevanceBlock:
        """Return the grades of the queries start..stop - 1."""
        grades = torch.zeros(stop - start, self.shape[1], dtype=torch.uint8)
        for row, parts in enumerate(self._graded[start:stop]):
            for grade, indices in enumerate(parts, start=1):
                grades[row, torch.from_numpy(indices)] = grade
        junk = self._junk[start:stop]
        rows = np.repeat(np.arange(stop - start), [len(out) for out in junk])
        return _without(grades.to(device), self.num_levels, (rows, np.concatenate([*junk, np.empty(0, np.int64)])))


RelevanceSource = LabelRelevance | ListRelevance


def graded_block(grades: Tensor, num_levels: int, left_out: Tensor | None = None) -> RelevanceBlock:
    """Return a block of (q, G) integer grades in 0..L; pairs with True in ``left_out``, (q, G) bool, are not ranked."""
    pairs = np.empty(0, np.int64), np.empty(0, np.int64)
    if left_out is not None:
        rows, items = torch.nonzero(left_out, as_tuple=True)
        pairs = rows.cpu().numpy(), items.cpu().numpy()
    return _without(grades.to(torch.uint8, copy=True), num_levels, pairs)


_ROWS_AT_ONCE = 64


def facts_of(source: RelevanceSource, start: int, stop: int) -> RelevanceFacts:
    """Return the facts of the queries start..stop - 1."""
    blocks = [(first, _few(source, first, stop)) for first in range(start, stop, _ROWS_AT_ONCE)]
    rows = [block.left_out[0] + first - start for first, block in blocks]
    items = [block.left_out[1] for _, block in blocks]
    counts = np.concatenate([block.counts for _, block in blocks])
    return RelevanceFacts(counts, (np.concatenate(rows), np.concatenate(items)))


def block_of_items(
    source: RelevanceSource, start: int, stop: int, items: np.ndarray, facts: RelevanceFacts
) -> RelevanceBlock:
    """Return the grades of selected items for the queries start..stop - 1.

    Args:
        source: relevance of all gallery items to the queries.
        start: index of the first query.
        stop: index of the query after the last query.
        items: (q, C) gallery indices, ascending in each row, padded with -1.
        facts: relevance facts of these queries.

    Returns:
        a block whose columns are these items and whose counts belong to the whole gallery.
    """
    if isinstance(source, LabelRelevance):
        grades = source.grades_of(start, stop, items)
    else:
        grades = np.empty(items.shape, np.uint8)
        for first in range(start, stop, _ROWS_AT_ONCE):
            rows = slice(first - start, min(first + _ROWS_AT_ONCE, stop) - start)
            grades[rows] = np.take_along_axis(_few(source, first, stop).grades.numpy(), items[rows], axis=1)
    pair, columns = np.nonzero(items[facts.left_out[0]] == facts.left_out[1][:, None])
    rows = facts.left_out[0][pair]
    grades[rows, columns] = 0
    grades[items < 0] = 0
    return RelevanceBlock(facts.counts, (rows, columns), torch.from_numpy(grades))


def _few(source: RelevanceSource, start: int, stop: int) -> RelevanceBlock:
    return source.block(start, min(start + _ROWS_AT_ONCE, stop), torch.device("cpu"))


def _without(grades: Tensor, num_levels: int, left_out: tuple[np.ndarray, np.ndarray]) -> RelevanceBlock:
    rows, items = left_out
    device = grades.device
    grades[torch.from_numpy(rows).to(device), torch.from_numpy(items).to(device)] = 0
    if device.type == "cpu":
        from hgld.evaluation.ranks import count_grades  # imported here, because numba takes long to import

        counts = np.empty((grades.shape[0], num_levels), np.int64)
        count_grades(grades.numpy(), counts)
    else:
        counts = torch.stack([(grades == grade).sum(1) for grade in range(1, num_levels + 1)], dim=1).cpu().numpy()
    ranked = grades.shape[1] - np.bincount(rows, minlength=grades.shape[0])
    rest = (ranked - counts.sum(axis=1))[:, None]  # number of ranked items of grade 0
    return RelevanceBlock(np.concatenate([rest, counts], axis=1).astype(np.int64), left_out, grades)


def _check_indices(indices: np.ndarray, num_gallery: int, what: str, lowest: int = -1) -> None:
    wrong = indices[(indices < lowest) | (indices >= num_gallery)]
    if wrong.size:
        raise InputError(f"{what}: {wrong[0]} is not a gallery index; the gallery has items 0..{num_gallery - 1}.")
