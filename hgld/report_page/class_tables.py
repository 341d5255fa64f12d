"""Per-class tables: the values of every finest class in each run, and the class it is taken for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hgld.report_page.embedding_map import NameOf
from hgld.report_page.rankings import FirstRanks
from hgld.report_page.runs import Evaluation

MOST_CLASSES = 1500


@dataclass(frozen=True)
class ClassTable:
    """One row a finest class.

    Attributes:
        header: names of the columns.
        rows: for every class its cells; numbers are floats, NaN where undefined.
        classes: how many classes there are; rows beyond :data:`MOST_CLASSES`, the best ones, are left out.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    classes: int


def class_table(
    runs: Mapping[str, Evaluation],
    metrics: Sequence[str],
    first: FirstRanks,
    name_of: NameOf,
) -> ClassTable:
    """Tabulate the means of metrics over the queries of every class, the worst class of the last run first.

    Args:
        runs: evaluations of the same queries; at least one, with embeddings and values a query.
        metrics: whose means are shown.
        first: first ranks of the last run, for the class that a class is most often taken for.
        name_of: the name of a class from level and id.
    """
    some = next(iter(runs.values()))
    assert some.ranked is not None
    labels = some.ranked.query.labels
    known = np.flatnonzero(labels[:, 0] >= 0)
    classes, example, member = np.unique(labels[known, 0], return_index=True, return_inverse=True)
    columns = {(run, m): _means(e, m, known, member, len(classes)) for run, e in runs.items() for m in metrics}
    last = list(runs)[-1]
    sort_by = columns[last, metrics[0]]
    order = np.lexsort((classes, np.where(np.isnan(sort_by), np.inf, sort_by)))[:MOST_CLASSES]
    taken = _taken_for(labels[:, 0], runs[last], first)
    counts = np.bincount(member, minlength=len(classes))
    rows = []
    for c in order.tolist():
        parents = labels[known[example[c]], 1:].tolist()
        names = [name_of(0, int(classes[c])), *(name_of(level + 1, p) for level, p in enumerate(parents))]
        wrong = taken.get(int(classes[c]))
        values = [float(100 * columns[run, metric][c]) for metric in metrics for run in runs]
        rows.append((*names, int(counts[c]), *values, "" if wrong is None else name_of(0, wrong)))
    several = len(runs) > 1
    numbers = [f"{metric}, {run}" if several else metric for metric in metrics for run in runs]
    return ClassTable((*some.levels, "queries", *numbers, "most often taken for"), tuple(rows), len(classes))


def _means(evaluation: Evaluation, metric: str, known: np.ndarray, member: np.ndarray, classes: int) -> np.ndarray:
    values = evaluation.report.per_query[metric].to_numpy()[known]
    defined = ~np.isnan(values)
    sums = np.bincount(member[defined], weights=values[defined], minlength=classes)
    sizes = np.bincount(member[defined], minlength=classes)
    return np.divide(sums, sizes, out=np.full(classes, np.nan), where=sizes > 0)


def _taken_for(asked: np.ndarray, run: Evaluation, first: FirstRanks) -> dict[int, int]:
    """Return for every class the wrong class that comes first most often, the smaller id where several do."""
    assert run.ranked is not None
    if not first.items.shape[1]:
        return {}
    found = run.ranked.other_side.labels[first.items[:, 0], 0]
    wrong = (asked >= 0) & (found >= 0) & (asked != found)
    pairs, counts = np.unique(np.stack([asked[wrong], found[wrong]], axis=1), axis=0, return_counts=True)
    order = np.lexsort((-pairs[:, 1], counts))  # the last of a class stays
    return dict(pairs[order].tolist())
