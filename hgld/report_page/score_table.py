"""The table of results of several runs on one split, and the severity of their mistakes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from hgld.errors import HgldError
from hgld.evaluation.metric import is_per_cent, lower_is_better
from hgld.evaluation.protocol_kinds import value_parts
from hgld.evaluation.report import compare
from hgld.report_page.figures import SERIES, Figure, Figures, clean, draw_legend, grade_color
from hgld.report_page.published import PublishedRow
from hgld.report_page.rankings import FirstRanks
from hgld.report_page.runs import Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# -- mistake severity -------------------------------------------------------------------------------------------------
#
# The height in the hierarchy at which a wrong answer and its query meet.


@dataclass(frozen=True)
class Severity:
    """Mistakes of a run by their severity.

    Attributes:
        shares: for the grades L, L - 1, ..., 0 the share of queries whose first item has that grade: right, then what
            the mistake still shares with the query, from the finest level on, at last nothing; NaN without a query.
        mistakes: share of queries whose first item is not of their finest class; NaN without a query.
        mean: levels to climb, averaged over the mistakes (Bertinetto et al., "Making Better Mistakes", CVPR 2020:
            the height of the lowest common ancestor); NaN without a mistake. L means nothing in common.
        queries: how many have an item of their finest class to find; the others are not counted.
        by_rank: (ranks, L + 1) shares of the grades 0..L at every rank.
    """

    shares: tuple[float, ...]
    mistakes: float
    mean: float
    queries: int
    by_rank: np.ndarray


def severity(first: FirstRanks, num_levels: int) -> Severity:
    """Count the grades at the first ranks, over queries that have an item of their own finest class to find."""
    top = first.grades[first.findable]  # (Q, ranks)
    if not len(top):
        nothing = (float("nan"),) * (num_levels + 1)
        return Severity(nothing, float("nan"), float("nan"), 0, np.zeros((0, num_levels + 1)))
    by_rank = np.stack([(top == grade).mean(axis=0) for grade in range(num_levels + 1)], axis=1)
    climbed = num_levels - top[top[:, 0] < num_levels, 0].astype(np.int64)
    mean = float(climbed.mean()) if len(climbed) else float("nan")
    return Severity(tuple(by_rank[0, ::-1].tolist()), len(climbed) / len(top), mean, len(top), by_rank)


def draw_severity(figures: Figures, found: Mapping[str, Severity], levels: Sequence[str], split: str) -> list[Figure]:
    """Draw, for every run, the grades at the first ranks as a stacked bar a rank."""
    drawn = []
    labels = ["nothing in common", *(f"same {clean(level, 24)}" for level in reversed(levels))]
    for name, severities in found.items():
        if not severities.queries:
            continue

        def draw(axes: "Axes", by_rank: np.ndarray = severities.by_rank) -> None:
            ranks, bottom = np.arange(1, len(by_rank) + 1), np.zeros(len(by_rank))
            for grade in reversed(range(len(labels))):
                shares = 100 * by_rank[:, grade]
                color = grade_color(grade, len(levels))
                axes.bar(ranks, shares, bottom=bottom, width=0.86, color=color, label=labels[grade])
                bottom += shares
            axes.set(xlabel="rank", ylabel="% of queries", ylim=(0, 100), xlim=(0.4, len(by_rank) + 0.6))
            axes.set_xticks([rank for rank in (1, 5, 10, 15, 20) if rank <= len(by_rank)])
            axes.grid(visible=False)
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=1, columnspacing=1)

        note = f"{severities.queries} queries that have an item of their own {clean(levels[0])} in the gallery."
        title = f"What lies at each rank, {clean(name)}"
        term = "mistake severity"
        drawn.append(figures.draw(f"{split}-severity-{name}", title, draw, term=term, note=note, size=(4.3, 3.1)))
    distances = {name: _distances(severity) for name, severity in found.items() if severity.queries}
    return [*drawn, *([_draw_distances(figures, distances, split)] if distances else [])]


def _distances(found: Severity) -> np.ndarray:
    """Return the hierarchical distance of the first 1, 2, ... items: the metric ``HD@k``."""
    num_levels = found.by_rank.shape[1] - 1
    at_rank = found.by_rank @ (num_levels - np.arange(num_levels + 1))
    return np.cumsum(at_rank) / np.arange(1, len(at_rank) + 1)


def _draw_distances(figures: Figures, distances: Mapping[str, np.ndarray], split: str) -> Figure:
    def draw(axes: "Axes") -> None:
        lines = []
        for series, (name, values) in enumerate(distances.items()):
            line = axes.plot(np.arange(1, len(values) + 1), values, color=SERIES[series % len(SERIES)])[0]
            lines.append((line, clean(name, 28)))
        axes.set(xlabel="k", ylabel="levels to climb", ylim=(0, None))
        draw_legend(axes, lines, loc="best")

    title = "Hierarchical distance of the first k"
    return figures.draw(f"{split}-hierarchical-distance", title, draw, term="hierarchical distance")


# -- the table of results ---------------------------------------------------------------------------------------------
#
# Runs with confidence intervals, published rows below, one block of columns a level.

GRADED = "all levels"


@dataclass(frozen=True)
class Cell:
    """One value of the table.

    Attributes:
        value: in per cent, or levels and distances as they are; empty where there is none.
        interval: the confidence interval in the same unit; empty without values a query.
        change: ``better`` or ``worse`` where the value differs from the baseline's beyond chance; else empty.
        says: the difference, its interval and its p-value, for a tooltip.
        best: whether no run of the table has a better value.
    """

    value: str = ""
    interval: str = ""
    change: str = ""
    says: str = ""
    best: bool = False


@dataclass(frozen=True)
class ScoreTable:
    """Results of several runs on one split.

    Attributes:
        groups: level and number of its columns, finest level first, the metrics of all levels at the end.
        columns: names of the metrics without their levels.
        runs: name and cells.
        published: method, source and cells of the published rows that stand with the runs.
        others: the same of the other published rows of the dataset.
        notes: remarks for readers, and the runs that could not be compared.
    """

    groups: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    runs: tuple[tuple[str, tuple[Cell, ...]], ...]
    published: tuple[tuple[str, str, tuple[Cell, ...]], ...]
    others: tuple[tuple[str, str, tuple[Cell, ...]], ...]
    notes: tuple[str, ...]


def score_table(
    evaluations: Mapping[str, Evaluation], published: Sequence[PublishedRow], baseline: str | None = None
) -> ScoreTable:
    """Lay out the values of all runs, with intervals and tests by :func:`hgld.evaluation.report.compare`.

    Args:
        evaluations: by run, on one split.
        published: rows of the same dataset.
        baseline: the run that the others are compared with; the first if None or not of this split.
    """
    reports = {name: e.report for name, e in evaluations.items()}
    metrics = _ordered(list(dict.fromkeys(m for r in reports.values() for m in r.values)), list(evaluations.values()))
    first = baseline if baseline is not None and baseline in reports else next(iter(reports))
    compared, notes = _compared(evaluations, first)
    top = {m: _best(m, [r.values[m] for r in reports.values() if _is_number(r.values.get(m))]) for m in metrics}
    rows = []
    for name, report in reports.items():
        cells = []
        for metric in metrics:
            value = report.values.get(metric, math.nan)
            best = len(reports) > 1 and _is_number(value) and value == top[metric]
            cells.append(_cell(metric, value, compared.get((name, metric)), best=best))
        rows.append((name, tuple(cells)))
    groups = tuple((level or GRADED, len(list(run))) for level, run in groupby(metrics, _level))
    names = tuple(metric.partition("/")[0] for metric in metrics)
    notes += [_other_units(metrics)] if not all(map(is_per_cent, metrics)) else []
    levels = max((e.levels for e in evaluations.values()), key=len)
    below, others = (_published_rows([r for r in published if r.close is c], metrics, levels) for c in (True, False))
    shown = {(method, source) for method, source, _ in (*below, *others)}
    notes += dict.fromkeys(row.paper for row in published if row.paper and (row.method, row.source) in shown)
    return ScoreTable(groups, names, tuple(rows), below, others, tuple(notes))


def _other_units(metrics: Sequence[str]) -> str:
    kinds = dict.fromkeys(metric.partition("/")[0] for metric in metrics if not is_per_cent(metric))
    return f"Not in per cent but as they are: {', '.join(kinds)}."


def _level(metric: str) -> str | None:
    return value_parts(metric)[1]


def _ordered(metrics: Sequence[str], evaluations: Sequence[Evaluation]) -> list[str]:
    """Order metrics by level, finest first in the order of the runs that have them; those of all levels at the end."""
    stated = [level for evaluation in evaluations for level in evaluation.levels]
    found = [level for metric in metrics if (level := _level(metric)) is not None]
    place = {level: i for i, level in enumerate(dict.fromkeys([*stated, *found]))}
    return sorted(metrics, key=lambda m: len(place) if (level := _level(m)) is None else place[level])


def _published_rows(
    published: Sequence[PublishedRow], metrics: Sequence[str], levels: Sequence[str]
) -> tuple[tuple[str, str, tuple[Cell, ...]], ...]:
    """Return method, source and cells of the rows that have one of the metrics."""
    finest = f"/{levels[0]}" if levels else ""
    below = []
    for row in published:
        values = {**{f"{m}{finest}": v for m, v in row.values.items()}, **row.values}
        if set(values) & set(metrics):
            cells = tuple(Cell(_as_stated(values[m]) if m in values else "") for m in metrics)
            below.append((row.method, row.source, cells))
    return tuple(below)


def _compared(evaluations: Mapping[str, Evaluation], first: str) -> tuple[dict[tuple[str, str], dict], list[str]]:
    """Return rows of the comparison by run and metric; one that cannot be paired with the first has intervals only."""
    found: dict[tuple[str, str], dict] = {}
    notes = []
    for name, evaluation in evaluations.items():
        pair = {first: evaluations[first].report, name: evaluation.report}
        alone = [metric for metric in evaluation.report.query_metrics if metric not in pair[first].query_metrics]
        try:
            comparisons = [compare(pair, baseline=first)]
        except HgldError as error:
            notes.append(f"{name} is not compared with {first}: {error}")
            comparisons, alone = [], evaluation.report.query_metrics
        if alone and not evaluation.report.per_query.is_empty():
            comparisons.append(compare({name: evaluation.report}, metrics=alone))
        rows = (row for comparison in comparisons for row in comparison.frame.iter_rows(named=True))
        found |= {(name, row["metric"]): row for row in rows if row["report"] == name}
    how = []
    if found:
        how.append(
            "Intervals: 95 %, percentile bootstrap over queries (2,000 resamples), which takes queries as independent: "
            "where many share few classes, intervals are too narrow."
        )
    if any(_is_number(row["p_value"]) for row in found.values()):
        how.append(
            f"▲ and ▼: differs from {first} with p < 0.05 (paired sign-flip permutation test, two-sided, not corrected "
            "for several tests)."
        )
    return found, [*how, *notes]


def _best(metric: str, values: Sequence[float]) -> float:
    choose = min if lower_is_better(metric) else max
    return choose(values, default=0.0)


def _cell(metric: str, value: float, row: Mapping | None, *, best: bool) -> Cell:
    scale = 100 if is_per_cent(metric) else 1
    shown = _times(value, scale, 2)
    if row is None:
        return Cell(shown, best=best)
    digits = 1 if scale > 1 else 2
    interval = (
        "" if math.isnan(row["low"]) else f"{_times(row['low'], scale, digits)}–{_times(row['high'], scale, digits)}"
    )
    if row["p_value"] is None or math.isnan(row["p_value"]):
        return Cell(shown, interval, best=best)
    change = ""
    if row["p_value"] < 0.05:
        change = "better" if (row["difference"] > 0) != lower_is_better(metric) else "worse"
    difference, low, high = (scale * row[name] for name in ("difference", "difference_low", "difference_high"))
    says = f"{difference:+.2f} ({low:+.2f} to {high:+.2f}), p = {row['p_value']:.4f}"
    return Cell(shown, interval, change, says, best)


def _as_stated(value: float) -> str:
    """Format a published value: with two digits where its text has two, else with one."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


def _times(value: float | None, scale: float, digits: int) -> str:
    return "" if value is None or math.isnan(value) else f"{scale * value:.{digits}f}"


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)
