"""Changes from one run to another on the same queries: per class and group, and the queries that changed most."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hgld.evaluation.protocols import is_per_cent
from hgld.evaluation.report import mean_intervals, number
from hgld.report_page.embedding_map import NameOf
from hgld.report_page.gallery import strips
from hgld.report_page.rankings import FirstRanks
from hgld.report_page.runs import Evaluation

_MOST_QUERIES = 3  # maximum number of improved queries to show, and of worsened queries
_SHOWN = 6  # number of ranks to show per query and run
_FEWEST_UNITS = 5  # minimum number of resampling units for an interval; with fewer, a bootstrap is too narrow
_MOST_CLASSES = 8  # maximum number of improved classes per level to show, and of worsened classes


@dataclass(frozen=True)
class ClassChange:
    """The change of a metric's mean over the queries of one class.

    Attributes:
        name: name of the class.
        queries: number of queries for which both runs have a value.
        before: mean of the first run.
        after: mean of the other run.
        low: lower end of the 95% confidence interval of the difference; NaN with too few resampling units.
        high: upper end of the interval.
        scale: factor by which tables print the values: 100 for a share.
    """

    name: str
    queries: int
    before: float
    after: float
    low: float
    high: float
    scale: float

    @property
    def cells(self) -> list[str]:
        """The numbers as text: queries, before, after, difference, interval."""
        ends = [self.scale * end for end in (self.low, self.high)]
        interval = "–" if math.isnan(self.low) else "{:+.1f} to {:+.1f}".format(*ends)
        values = (number(self.scale * value, 1) for value in (self.before, self.after))
        return [f"{self.queries:,}", *values, f"{self.scale * (self.after - self.before):+.1f}", interval]

    @property
    def change(self) -> str:
        """``up`` or ``down`` if the interval excludes 0, else empty."""
        return "up" if self.low > 0 else "down" if self.high < 0 else ""


def describe_changes(
    runs: Mapping[str, Evaluation],
    first: Mapping[str, FirstRanks],
    names: Mapping[str, NameOf],
    baseline: str,
    metric: str,
) -> dict[str, Any] | None:
    """Return the variables of the template about the changes from the baseline to another run.

    Only the first other run on the same queries is shown, because each run adds many images.

    Args:
        runs: evaluations with embeddings.
        first: first ranks of each run.
        names: names of the classes of each run.
        baseline: name of the run to compare with; if it is not among ``runs``, the first of ``runs``.
        metric: metric with a value per query.

    Returns:
        None without such a run, else the variables of the template: the names of both runs (``pair``), the changes per
        level, the coarsest first (``levels``), and galleries with headings (``albums``).
    """
    paired = {n: e for n, e in runs.items() if metric in e.report.query_metrics and len(e.report.per_query)}
    leading = baseline if baseline in paired else next(iter(paired), "")
    for name, other in paired.items():
        one = paired[leading]
        if name == leading or other.report.settings.get("labels_sha256") != one.report.settings.get("labels_sha256"):
            continue
        assert one.ranked is not None
        labels, values = one.ranked.query.labels, [e.report.per_query[metric].to_numpy() for e in (one, other)]
        scale = 100.0 if is_per_cent(metric) else 1.0
        tables = [
            (level, _class_changes(labels, c, values, names[leading], scale)) for c, level in enumerate(one.levels)
        ]
        pair = {leading: one, name: other}
        albums = [
            (heading, strips(rows, pair, first, metric, names[leading], _SHOWN))
            for heading, sign in ((f"Most improved from {leading} to {name}", 1), (f"Most worsened to {name}", -1))
            if (rows := _most_changed(sign * (values[1] - values[0]), labels[:, 0]))
        ]
        return {"pair": (leading, name), "levels": tables[::-1], "albums": albums}
    return None


def _most_changed(change: np.ndarray, classes: np.ndarray) -> list[int]:
    """Return the queries with the highest positive change, one per class; else one hard class would fill all rows."""
    order = np.argsort(-change, kind="stable")[: int((change > 0).sum())]  # sorting puts NaN last
    _, first = np.unique(classes[order], return_index=True)
    return order[np.sort(first)][:_MOST_QUERIES].tolist()


def _class_changes(
    labels: np.ndarray, level: int, values: list[np.ndarray], name_of: NameOf, scale: float
) -> list[ClassChange]:
    """Return the classes of a level that change the mean over all queries most, from the best change to the worst.

    Args:
        labels: (Q, L) labels of the queries.
        level: column of the level.
        values: (Q,) values of both runs.
        name_of: names of the classes.
        scale: factor by which tables print the values.
    """
    own, difference = labels[:, level], values[1] - values[0]
    known = np.flatnonzero((own >= 0) & ~np.isnan(difference))
    classes, place = np.unique(own[known], return_inverse=True)
    sums = np.bincount(place, difference[known], len(classes))
    order = np.argsort(-sums, kind="stable")
    ends = order if len(order) <= 2 * _MOST_CLASSES else [*order[:_MOST_CLASSES], *order[-_MOST_CLASSES:]]
    made = []
    for index in ends:
        rows = known[place == index]
        # Queries of a finest class are resampled one by one, queries of a group by their finest class.
        unit = np.unique(labels[rows, 0], return_inverse=True)[1] if level else np.arange(len(rows))
        is_enough = unit.max() >= _FEWEST_UNITS - 1
        low, high = mean_intervals(difference[rows, None], unit)[:, 0] if is_enough else (math.nan, math.nan)
        before, after = (float(value[rows].mean()) for value in values)
        made.append(ClassChange(name_of(level, int(classes[index])), len(rows), before, after, low, high, scale))
    return sorted(made, key=lambda change: change.before - change.after)
