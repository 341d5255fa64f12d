"""Mistakes at rank 1: the tree of classes by error, confusions of classes, and queries that show each outcome."""

from collections import Counter
from typing import Any

import numpy as np
import polars as pl

from hgld.report_page.embedding_map import NameOf
from hgld.report_page.gallery import strips
from hgld.report_page.rankings import FirstRanks
from hgld.report_page.runs import Evaluation
from hgld.tree_drawing import icicle

_MOST_CLASSES = 14  # maximum number of rows in the table of confusions
_MOST_PAIRS = 6  # maximum number of queries that a cell of the table opens
_MOST_OPENED = 48  # maximum number of queries that all cells open, because each has two images
_MOST_WORST = 150  # maximum number of queries below the tree: the worst query of each class
_MOST_PICTURED = 40  # maximum number of these queries with images
_MOST_NAMED = 3  # maximum number of classes in a note on the confusions of a class


def describe_mistakes(evaluation: Evaluation, first: FirstRanks, name_of: NameOf, metric: str) -> dict[str, Any] | None:
    """Return the variables of the template about first results, for queries whose finest class is in the gallery.

    Args:
        evaluation: an evaluation with embeddings.
        first: first ranks of every query of the evaluation.
        name_of: function that returns the name of a class, given level and id.
        metric: metric whose value the page shows next to a query.

    Returns:
        None without such queries, else the variables of the template. ``tree`` is the icicle of the queries' classes,
        with the error at every level and what each class is taken for. ``worst`` has, for each entry of the tree's
        ``paths``, the worst query of a class and its first result. ``outcomes`` has three entries: right, wrong but
        right at a coarser level, wrong at every level. Each entry has the outcome's share of the queries, and the
        galleries of two queries. These two queries are at one third and two thirds of the outcome's queries, sorted by
        the mean grade of their first ranks. ``matrix`` has a row per class of the second finest level (``level``): its
        name, its number of queries, and the number of these queries per class of the first result. ``cells`` has the
        queries that a cell opens, by row and column.
    """
    assert evaluation.ranked is not None
    levels, rows = evaluation.levels, np.flatnonzero(first.findable)
    if not len(rows):
        return None
    labels, grades = evaluation.ranked.query.labels[rows], first.grades[rows]
    found = evaluation.ranked.other_side.labels[first.items[rows, 0]]
    confused = [_confusions(labels[:, c], found[:, c]) for c in range(len(levels))]
    notes = []
    for c, pairs in enumerate(confused):
        taken = dict[int, list[str]]()
        for own, other, count in pairs:
            taken.setdefault(own, []).append(f"{name_of(c, other)} {count}")
        notes.append({own: f"taken for {', '.join(said[:_MOST_NAMED])}" for own, said in taken.items()})
    wrong = [np.where(labels[:, c] < 0, np.nan, grades[:, 0] < len(levels) - c) for c in range(len(levels))]
    measures = {f"error at {level}": error for level, error in zip(levels, wrong, strict=True)}

    def show(queries: Any, **options: int) -> Any:
        return strips(rows[queries].tolist(), {"": evaluation}, {"": first}, metric, name_of, **options)

    order, outcomes = np.argsort(grades.mean(axis=1), kind="stable"), []
    # grades of the first result: right, right only at a coarser level, wrong everywhere
    for grades_of in ((len(levels),), range(1, len(levels)), (0,)):
        of = order[np.isin(grades[order, 0], grades_of)]
        thirds = np.unique([len(of) // 3, 2 * len(of) // 3]) if len(of) else []
        outcomes.append((len(of) / len(rows), show(of[thirds])))
    level = min(1, len(levels) - 1)
    worst = _worst_queries(labels, grades, level)
    classes = list(dict.fromkeys(label for own, other, *_ in confused[level] for label in (own, other)))[:_MOST_CLASSES]
    of_class = {own: found[labels[:, level] == own, level] for own in classes}
    return {
        "tree": icicle(levels, name_of, labels, "queries", measures=measures, notes=notes, shown=worst),
        "worst": show(worst, shown=1),
        "most_pictured": _MOST_PICTURED,
        "outcomes": outcomes,
        "level": levels[level],
        "matrix": [(name_of(level, own), len(of), [(of == c).sum() for c in classes]) for own, of in of_class.items()],
        "cells": {
            cell: show(queries, shown=1) for cell, queries in _opened(labels[:, level], found[:, level], classes)
        },
    }


def _worst_queries(labels: np.ndarray, grades: np.ndarray, level: int) -> np.ndarray:
    """Return the worst query of each finest class; classes of different parents at ``level`` take turns."""
    order = np.lexsort((grades.mean(axis=1), grades[:, 0]))
    worst = order[np.sort(np.unique(labels[order, 0], return_index=True)[1])]
    turn = pl.Series(labels[worst, level]).to_frame("class").select(pl.int_range(pl.len()).over("class")).to_series()
    return worst[np.argsort(turn.to_numpy(), kind="stable")][:_MOST_WORST]


def _confusions(own: np.ndarray, found: np.ndarray) -> list[tuple[int, int, int]]:
    """Return each pair of a query's class and its first result's wrong class, with its count, most frequent first."""
    cases = np.flatnonzero((own != found) & (own >= 0) & (found >= 0))
    pairs, counts = np.unique(np.stack([own, found], axis=1)[cases], axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(*pairs[i].tolist(), int(counts[i])) for i in order]


def _opened(own: np.ndarray, found: np.ndarray, classes: list[int]) -> list[tuple[tuple[int, int], np.ndarray]]:
    """Return the queries that each cell of the table of confusions opens, by row and column.

    Cells get their queries in turns, the most frequent confusion first, so that as many cells as possible have a query.

    Args:
        own: (Q,) classes of the queries.
        found: (Q,) classes of their first results.
        classes: classes of the table's rows and columns.
    """
    cells = dict[tuple[int, int], np.ndarray]()
    for one, other, count in _confusions(own, found):
        if one in classes and other in classes:
            cases = np.flatnonzero((own == one) & (found == other))
            spread = np.unique(np.linspace(0, count - 1, _MOST_PAIRS).astype(int))
            cells[classes.index(one), classes.index(other)] = cases[spread]
    turns = [cell for turn in range(_MOST_PAIRS) for cell, queries in cells.items() if len(queries) > turn]
    number = Counter(turns[:_MOST_OPENED])
    return [(cell, cells[cell][:taken]) for cell, taken in number.items()]
