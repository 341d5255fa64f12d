"""Relevance of gallery items to queries: the grades of a block of queries, from labels, lists or a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError
from hgld.labels import distinct

MOST_LEVELS = 250  # a grade is a byte


class ClassTree:
    """Classes of the gallery's items, numbered level by level, and the tree that all known labels make.

    Args:
        query: (Q, L) numbers of the queries' classes, finest level first, -1 where unknown.
        gallery: (L, G) of the gallery's items.
    """

    def __init__(self, query: np.ndarray, gallery: np.ndarray) -> None:
        self._query, self.gallery = query, gallery

    @cached_property
    def ancestors(self) -> tuple[np.ndarray, ...]:
        """For every level (C, L): of each class those on its path, itself among them; -1 where no item tells."""
        items = np.concatenate([self._query, self.gallery.T])
        tables = []
        for level in range(items.shape[1]):
            table = np.full((int(items[:, level].max(initial=-1)) + 1, items.shape[1]), -1, np.int32)
            table[:, level] = np.arange(len(table))
            for coarser in range(level + 1, items.shape[1]):
                known = (items[:, level] >= 0) & (items[:, coarser] >= 0)
                table[items[known, level], coarser] = items[known, coarser]
            tables.append(table)
        return tuple(tables)

    @cached_property
    def order(self) -> np.ndarray:
        """Place (G,) of every item's labels among all labels in ascending order; equal labels share one."""
        return np.unique(self.gallery.T, axis=0, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True)
class RelevanceBlock:
    """Grades of q consecutive queries against the whole gallery.

    Attributes:
        grades: (q, G) uint8; 0 for items that are not relevant and for those left out.
        counts: (q, L + 1) int64 ranked items of every grade, those left out not among them.
        left_out: row and gallery index of every pair that is not ranked: the query itself, junk.
        classes: numbers of the queries' classes, (q, L), and the tree; None where items are judged without labels.
    """

    grades: Tensor
    counts: np.ndarray
    left_out: tuple[np.ndarray, np.ndarray]
    classes: tuple[np.ndarray, ClassTree] | None = None


@dataclass(frozen=True)
class RelevanceFacts:
    """Facts of q consecutive queries that need no look at every pair; as of :class:`RelevanceBlock`."""

    counts: np.ndarray
    left_out: tuple[np.ndarray, np.ndarray]

    def of(self, start: int, stop: int) -> "RelevanceFacts":
        """Return the facts of some of the queries."""
        rows, items = self.left_out
        chosen = (rows >= start) & (rows < stop)
        return RelevanceFacts(self.counts[start:stop], (rows[chosen] - start, items[chosen]))


class RelevanceSource(Protocol):
    """The relevance of G gallery items to Q queries, block by block, as the evaluator asks for it."""

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and gallery items, Q and G."""
        ...

    @property
    def num_levels(self) -> int:
        """Number of levels L; grades run from 0 to L."""
        ...

    def block(self, start: int, stop: int, device: torch.device) -> RelevanceBlock:
        """Return the grades of the queries start..stop - 1."""
        ...


class LabelRelevance:
    """Relevance by labels: grades by the finest level at which they agree, as :func:`hgld.shared_levels` has them.

    Args:
        query: (Q, L) integer labels, finest level first, negative where unknown.
        gallery: (G, L) labels.
        self_index: (Q,) gallery index of the query itself, -1 for none; that item is left out. None: no query is in
            the gallery.

    Raises:
        InputError: a self index is not in the gallery.
    """

    def __init__(self, query: np.ndarray, gallery: np.ndarray, self_index: np.ndarray | None = None) -> None:
        num_queries, self.num_levels = query.shape
        self.shape = (num_queries, len(gallery))
        self.self_index = np.full(num_queries, -1) if self_index is None else np.asarray(self_index)
        _check_indices(self.self_index, len(gallery), "self_index")
        codes = [distinct(column) for column in np.concatenate([query, gallery]).T]
        coded = np.empty((self.num_levels, num_queries + len(gallery)), np.int32)
        for level, (classes, place) in enumerate(codes):
            coded[level] = np.maximum(place - np.searchsorted(classes, 0), -1)  # classes before it are negative
        self._query = np.ascontiguousarray(coded[:, :num_queries].T)
        self._gallery = np.ascontiguousarray(coded[:, num_queries:])
        num_classes = int(coded.max(initial=-1)) + 1
        self._starts = np.stack(
            [np.bincount(column + 1, minlength=num_classes + 1).cumsum() for column in self._gallery]
        )
        self._members = _in_order(self._gallery, self._starts)
        self._tree = ClassTree(self._query, self._gallery)
        self._on_device: tuple[torch.device, Tensor] | None = None

    def facts(self, start: int, stop: int) -> RelevanceFacts:
        """Return the numbers of items of every grade to the queries start..stop - 1, and what is left out."""
        from hgld.evaluation.ranks import count_matches  # numba takes long to import

        query, index = self._query[start:stop], self.self_index[start:stop]
        counts = np.zeros((len(query), self.num_levels + 1), np.int64)
        count_matches(self._members, self._starts, query, self._gallery, counts[:, 1:])
        rows = np.flatnonzero(index >= 0)
        own = self.grades_of(start, stop, np.maximum(index, 0)[:, None])[rows, 0]
        counts[rows, own] -= own > 0
        counts[:, 0] = self.shape[1] - (index >= 0) - counts[:, 1:].sum(axis=1)
        return RelevanceFacts(counts, (rows, index[rows]))

    def grades_of(self, start: int, stop: int, items: np.ndarray) -> np.ndarray:
        """Return (q, C) uint8 grades of some items, (q, C), to the queries start..stop - 1."""
        grades = np.zeros(items.shape, np.uint8)
        for level in reversed(range(self.num_levels)):
            column = self._query[start:stop, level, None]
            grades[(column == self._gallery[level][items]) & (column >= 0)] = self.num_levels - level
        return grades

    def classes_of(self, start: int, stop: int) -> tuple[np.ndarray, ClassTree]:
        """Return the classes of the queries start..stop - 1, as a block has them."""
        return self._query[start:stop], self._tree

    def block(self, start: int, stop: int, device: torch.device) -> RelevanceBlock:
        index = self.self_index[start:stop]
        rows = np.flatnonzero(index >= 0)
        if device.type == "cpu":
            block = self._painted(start, stop, (rows, index[rows]))
        else:
            block = _without(self._compared(start, stop, device), self.num_levels, (rows, index[rows]))
        return replace(block, classes=self.classes_of(start, stop))

    def _painted(self, start: int, stop: int, left_out: tuple[np.ndarray, np.ndarray]) -> RelevanceBlock:
        from hgld.evaluation.ranks import paint_grades  # numba takes long to import

        grades = np.empty((stop - start, self.shape[1]), np.uint8)
        counts = np.empty((stop - start, self.num_levels), np.int64)
        paint_grades(self._members, self._starts, self._query[start:stop], grades, counts)
        rows, own = left_out[0], grades[left_out]  # one item a row at most
        counts[rows, own.astype(np.int64) - 1] -= own > 0
        grades[left_out] = 0
        ranked = grades.shape[1] - np.bincount(rows, minlength=len(grades))
        return RelevanceBlock(torch.from_numpy(grades), _with_rest(counts, ranked), left_out)

    def _compared(self, start: int, stop: int, device: torch.device) -> Tensor:
        if self._on_device is None or self._on_device[0] != device:
            self._on_device = (device, torch.from_numpy(self._gallery).to(device))
        gallery = self._on_device[1]
        query = torch.from_numpy(self._query[start:stop]).to(device)
        grades = torch.zeros(stop - start, self.shape[1], dtype=torch.uint8, device=device)
        for level in reversed(range(self.num_levels)):
            column = query[:, level, None]
            match = (column == gallery[level]) & (column >= 0)
            grades.masked_fill_(match, self.num_levels - level)
        return grades


def _in_order(classes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return (L, G) int32 items in ascending order of their classes, -1 first, equal ones in their own order."""
    from hgld.evaluation.ranks import order_members  # numba takes long to import

    members = np.empty(classes.shape, np.int32)
    order_members(classes, np.concatenate([np.zeros_like(starts[:, :1]), starts], axis=1), members)
    return members


class ListRelevance:
    """Relevance by lists, query by query, as the ground truths of landmark benchmarks have it.

    Args:
        num_gallery: G.
        graded: for every query one array of gallery indices a grade, for grade 1 first; L of them for every query.
        left_out: for every query the gallery indices that are not ranked at all (junk, the query itself); None: none.

    Raises:
        InputError: an index is not in the gallery, is listed twice for a query, or lists differ in length.
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
        if len(junk) != len(graded):
            raise InputError(f"left_out has {len(junk)} lists for {len(graded)} queries; expected one each.")
        self._graded = [[_as_indices(part) for part in parts] for parts in graded]
        self._junk = [_as_indices(part) for part in junk]
        for number, (parts, out) in enumerate(zip(self._graded, self._junk, strict=True)):
            if len(parts) != self.num_levels:
                raise InputError(
                    f"query {number} has {len(parts)} lists of relevant items, query 0 has {self.num_levels}; "
                    "expected one a grade for every query."
                )
            listed = np.concatenate([*parts, out])
            _check_indices(listed, num_gallery, f"query {number}", lowest=0)
            if len(np.unique(listed)) != len(listed):
                raise InputError(f"query {number} lists a gallery item twice; expected every item in one list at most.")

    def block(self, start: int, stop: int, device: torch.device) -> RelevanceBlock:
        grades = torch.zeros(stop - start, self.shape[1], dtype=torch.uint8)
        for row, parts in enumerate(self._graded[start:stop]):
            for grade, indices in enumerate(parts, start=1):
                grades[row, torch.from_numpy(indices)] = grade
        junk = self._junk[start:stop]
        rows = np.repeat(np.arange(stop - start), [len(out) for out in junk])
        return _without(grades.to(device), self.num_levels, (rows, np.concatenate([*junk, np.empty(0, np.int64)])))


class GradeTable:
    """Relevance by a table of grades.

    Args:
        grades: (Q, G) integers in 0..L.
        num_levels: L.
        left_out: (Q, G) bool, pairs that are not ranked; None: none.
    """

    def __init__(self, grades: Tensor, num_levels: int, left_out: Tensor | None = None) -> None:
        self.shape = (grades.shape[0], grades.shape[1])
        self.num_levels = num_levels
        self._grades = grades.to(torch.uint8)
        self._left_out = left_out

    def block(self, start: int, stop: int, device: torch.device) -> RelevanceBlock:
        grades = self._grades[start:stop].to(device, copy=True)
        if self._left_out is None:
            pairs = (np.empty(0, np.int64), np.empty(0, np.int64))
        else:
            rows, items = torch.nonzero(self._left_out[start:stop], as_tuple=True)
            pairs = (rows.cpu().numpy(), items.cpu().numpy())
        return _without(grades, self.num_levels, pairs)


_ROWS_AT_ONCE = 16


def facts_of(source: RelevanceSource, start: int, stop: int) -> RelevanceFacts:
    """Return the facts of the queries start..stop - 1."""
    if isinstance(source, LabelRelevance):
        return source.facts(start, stop)
    blocks = [(first, _few(source, first, stop)) for first in range(start, stop, _ROWS_AT_ONCE)]
    rows = [block.left_out[0] + first - start for first, block in blocks]
    items = [block.left_out[1] for _, block in blocks]
    counts = np.concatenate([block.counts for _, block in blocks])
    return RelevanceFacts(counts, (np.concatenate(rows), np.concatenate(items)))


def block_of_items(
    source: RelevanceSource, start: int, stop: int, items: np.ndarray, facts: RelevanceFacts
) -> RelevanceBlock:
    """Return the grades of some items to the queries start..stop - 1.

    Args:
        source: of the relevance.
        start: first query.
        stop: behind the last one.
        items: (q, C) gallery indices, ascending; -1 behind a row's last.
        facts: of these queries.

    Returns:
        a block whose columns are these items; its counts are those of the whole gallery.
    """
    classes = None
    if isinstance(source, LabelRelevance):
        grades, classes = source.grades_of(start, stop, items), source.classes_of(start, stop)
    else:
        grades = np.empty(items.shape, np.uint8)
        for first in range(start, stop, _ROWS_AT_ONCE):
            rows = slice(first - start, min(first + _ROWS_AT_ONCE, stop) - start)
            grades[rows] = np.take_along_axis(_few(source, first, stop).grades.numpy(), items[rows], axis=1)
    rows, columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for row in np.unique(facts.left_out[0]):
        columns.append(np.flatnonzero(np.isin(items[row], facts.left_out[1][facts.left_out[0] == row])))
        rows.append(np.full(len(columns[-1]), row))
    rows, columns = np.concatenate(rows), np.concatenate(columns)
    grades[rows, columns] = 0
    grades[items < 0] = 0
    return RelevanceBlock(torch.from_numpy(grades), facts.counts, (rows, columns), classes)


def _few(source: RelevanceSource, start: int, stop: int) -> RelevanceBlock:
    return source.block(start, min(start + _ROWS_AT_ONCE, stop), torch.device("cpu"))


def _without(grades: Tensor, num_levels: int, left_out: tuple[np.ndarray, np.ndarray]) -> RelevanceBlock:
    rows, items = left_out
    device = grades.device
    grades[torch.from_numpy(rows).to(device), torch.from_numpy(items).to(device)] = 0
    counts = _counts(grades, num_levels)
    ranked = grades.shape[1] - np.bincount(rows, minlength=grades.shape[0])
    return RelevanceBlock(grades, _with_rest(counts, ranked), left_out)


def _with_rest(counts: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """Return (q, L + 1) numbers of items of the grades 0..L from those of 1..L and of all ranked items."""
    return np.concatenate([(ranked - counts.sum(axis=1))[:, None], counts], axis=1).astype(np.int64)


def _counts(grades: Tensor, num_levels: int) -> np.ndarray:
    """Count the items of the grades 1..L: (q, L) int64."""
    if grades.device.type != "cpu":
        return torch.stack([(grades == grade).sum(1) for grade in range(1, num_levels + 1)], dim=1).cpu().numpy()
    from hgld.evaluation.ranks import count_grades  # see LabelRelevance

    counts = np.empty((grades.shape[0], num_levels), np.int64)
    count_grades(grades.numpy(), counts)
    return counts


def _as_indices(values: np.ndarray) -> np.ndarray:
    indices = np.asarray(values)
    if indices.size == 0:
        return np.empty(0, np.int64)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise InputError(
            f"gallery indices have shape {indices.shape} and dtype {indices.dtype}; expected a list of integers."
        )
    return indices.astype(np.int64)


def _check_indices(indices: np.ndarray, num_gallery: int, what: str, lowest: int = -1) -> None:
    wrong = indices[(indices < lowest) | (indices >= num_gallery)]
    if wrong.size:
        raise InputError(f"{what}: {wrong[0]} is not a gallery index; the gallery has items 0..{num_gallery - 1}.")
