"""Scores of several runs on one task, each with its interval and test, and published rows to stand beside them."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hgld.errors import HgldError
from hgld.evaluation.protocols import is_per_cent, lower_is_better, value_parts
from hgld.evaluation.report import RetrievalReport, compare, number
from hgld.published import PAPERS, PublishedValue
from hgld.published.results import values_of
from hgld.report_page.runs import Evaluation

GRADED = "all levels"
_SIGNIFICANT = 0.05  # a smaller p-value tells two runs apart
INTERVALS = (
    "Intervals: 95 %, percentile bootstrap over queries (2,000 resamples), which takes queries as independent: where "
    "many share few classes, intervals are too narrow."
)
TEST = f"p < {_SIGNIFICANT} (paired sign-flip permutation test, two-sided, not corrected for several tests)"


@dataclass(frozen=True)
class Score:
    """A value of a table.

    Attributes:
        metric: its name, with its level.
        value: as the report has it; NaN if undefined.
        low: lower end of its confidence interval; NaN without values per query.
        high: upper end.
        difference: difference to the run that it is compared with; NaN without a comparison.
        difference_low: lower end of the difference's confidence interval.
        difference_high: upper end.
        p_value: probability of no difference, two-sided.
        best: whether no run has a better value.
    """

    metric: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    difference: float = math.nan
    difference_low: float = math.nan
    difference_high: float = math.nan
    p_value: float = math.nan
    best: bool = False

    @property
    def level_with_best(self) -> bool:
        """True if it is the best, or differs from the best no more than chance may."""
        return self.best or self.p_value >= _SIGNIFICANT

    @property
    def shown(self) -> str:
        """The value as tables print it; empty if undefined."""
        return number(self.value * self._scale, 2, "")

    @property
    def interval(self) -> str:
        """Its interval; empty if there is none."""
        digits = 1 if self._scale == 100 else 2
        low, high = (number(end * self._scale, digits) for end in (self.low, self.high))
        return "" if math.isnan(self.low) else f"{low}–{high}"

    @property
    def p_text(self) -> str:
        """Its p-value in words; empty if there is none."""
        if math.isnan(self.p_value):
            return ""
        return "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.3f}"

    @property
    def change(self) -> str:
        """``better`` or ``worse`` if the value differs from the other run's beyond chance; else empty."""
        if not self.p_value < _SIGNIFICANT:
            return ""
        return "better" if (self.difference > 0) != lower_is_better(self.metric) else "worse"

    @property
    def comparison(self) -> str:
        """The difference, its interval and its p-value, for a tooltip; empty without a comparison."""
        ends = (self._scale * end for end in (self.difference, self.difference_low, self.difference_high))
        return "" if not self.p_text else "{:+.2f} ({:+.2f} to {:+.2f}), ".format(*ends) + self.p_text

    @property
    def _scale(self) -> float:
        return 100.0 if is_per_cent(self.metric) else 1.0


def score_runs(
    reports: Mapping[str, RetrievalReport], metrics: Sequence[str], baseline: str | None = None
) -> tuple[dict[tuple[str, str], Score], list[str]]:
    """Return the score of every run at every metric, and a note on every pair of runs that cannot be compared.

    Args:
        reports: by run.
        metrics: with their levels.
        baseline: the run that the others are compared with; None: the best of each metric.
    """
    best: dict[str, str] = {}
    for metric in metrics:
        defined = {name: r.values[metric] for name, r in reports.items() if not _is_nan(r.values.get(metric))}
        if defined:
            best[metric] = (min if lower_is_better(metric) else max)(defined, key=defined.__getitem__)
    by_first: dict[str, list[str]] = {}
    for metric, leading in best.items():
        by_first.setdefault(baseline or leading, []).append(metric)
    measured = {name: [] if r.per_query.is_empty() else r.query_metrics for name, r in reports.items()}
    rows, notes = dict[tuple[str, str], dict[str, float]](), []
    for first, chosen in by_first.items():
        for name, report in reports.items():
            own = [metric for metric in chosen if metric in measured[name]]
            paired = [metric for metric in own if metric in measured[first]]
            if not paired and name != first and any(metric in report.values for metric in chosen):
                notes.append(f"{name} is not compared with {first}: both have values per query of no metric.")
            found = []
            try:
                found = [compare({first: reports[first], name: report}, metrics=paired)] if paired else []
            except HgldError as error:
                notes.append(f"{name} is not compared with {first}: {error}")
                paired = []
            if alone := [metric for metric in own if metric not in paired]:
                found.append(compare({name: report}, metrics=alone))
            for row in (row for comparison in found for row in comparison.frame.iter_rows(named=True)):
                if row["report"] == name:
                    rows[name, row["metric"]] = {k: v for k, v in row.items() if k not in ("report", "metric", "value")}
    scores = {}
    for name, report in reports.items():
        for metric in metrics:
            value = report.values.get(metric, math.nan)
            top = metric in best and value == reports[best[metric]].values[metric]
            facts = {key: math.nan if end is None else end for key, end in rows.get((name, metric), {}).items()}
            scores[name, metric] = Score(metric, value, **facts, best=top)
    return scores, list(dict.fromkeys(notes))


def order_metrics(reports: Collection[RetrievalReport]) -> list[str]:
    """Return the metrics of reports by level, the finest first, those of all levels at the end."""
    metrics = list(dict.fromkeys(metric for report in reports for metric in report.values))
    stated = [level for report in reports for level in report.settings.get("levels", ())]
    found = [level for metric in metrics if (level := value_parts(metric)[1])]
    place = {level: i for i, level in enumerate(dict.fromkeys([*stated, *found]))}
    return sorted(metrics, key=lambda metric: place.get(value_parts(metric)[1] or "", len(place)))


def level_of(metric: str) -> str:
    """Return the level of a metric, for headings."""
    return value_parts(metric)[1] or GRADED


def unit_note(metrics: Sequence[str]) -> list[str]:
    """Return a sentence about metrics that are not in per cent; none if all are."""
    others = dict.fromkeys(metric.partition("/")[0] for metric in metrics if not is_per_cent(metric))
    return [f"Not in per cent: {', '.join(others)}."] if others else []


def _is_nan(value: float | None) -> bool:
    return value is None or math.isnan(value)


# -- published rows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedRow:
    """Results of one method on one dataset in a paper's table.

    Attributes:
        method: its name.
        source: the table, and what tells the row from others of its method.
        values: metric to value in per cent; a binary metric without a level is of the finest.
        close: whether it is of a run's own recipe, and stands with the runs.
        paper: the paper's authors, title and edition.
    """

    method: str
    source: str
    values: dict[str, float]
    close: bool = False
    paper: str = ""


def published_rows(dataset: str, recipes: Collection[PublishedValue] = ()) -> list[PublishedRow]:
    """Return the published rows of a dataset; none for no name.

    Args:
        dataset: name in ``dataset.json``.
        recipes: values of the runs' own recipes, whose rows are ``close``.
    """
    own = {value.key[:-2] for value in recipes}
    rows: dict[tuple[str, str, bool], PublishedRow] = {}
    for value in values_of(dataset) if dataset else ():
        if value.number is None:
            continue
        paper = PAPERS[value.paper]
        where = ", ".join(filter(None, (value.backbone, value.dim and f"{value.dim} dimensions", value.setting)))
        source, close = f"{paper.name} {value.table}" + (f": {where}" if where else ""), value.key[:-2] in own
        made = PublishedRow(value.method, source, {}, close, f"{paper.name}: {paper.source}.")
        values = rows.setdefault((value.method, source, close), made).values
        is_share = value.unit == "1" and value.metric == "AP"  # some papers print AP as a share
        values[value.metric if value.finest else value.name] = round((100 if is_share else 1) * value.number, 4)
    return list(rows.values())


# -- the table of a split ----------------------------------------------------------------------------------------------

PublishedCells = tuple[tuple[str, str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class ScoreTable:
    """Results of several runs on one split.

    Attributes:
        groups: level and number of its columns, finest level first, the metrics of all levels at the end.
        columns: names of the metrics without their levels.
        runs: name and scores.
        published: method, source and cells of the published rows of the runs' own recipes.
        others: the same of the other published rows of the dataset.
        notes: remarks for readers, and the runs that could not be compared.
    """

    groups: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    runs: tuple[tuple[str, tuple[Score, ...]], ...]
    published: PublishedCells
    others: PublishedCells
    notes: tuple[str, ...]


def score_table(
    evaluations: Mapping[str, Evaluation], published: Sequence[PublishedRow], baseline: str | None = None
) -> ScoreTable:
    """Lay out the values of all runs on one split.

    Args:
        evaluations: by run.
        published: rows of the same dataset.
        baseline: the run that the others are compared with; the first if None or not of this split.
    """
    reports = {name: evaluation.report for name, evaluation in evaluations.items()}
    metrics = order_metrics(reports.values())
    first = baseline if baseline in reports else next(iter(reports))
    scores, notes = score_runs(reports, metrics, first)
    if any(score.p_text for score in scores.values()):
        notes.insert(0, f"▲ and ▼: differs from {first} with {TEST}.")
    if any(score.interval for score in scores.values()):
        notes.insert(0, INTERVALS)
    levels = max((evaluation.levels for evaluation in evaluations.values()), key=len)
    below, others, papers = [], [], []
    for row in published:
        values = {**{f"{m}/{level}": v for m, v in row.values.items() for level in levels[:1]}, **row.values}
        if set(values) & set(metrics):
            cells = tuple(_as_printed(values[metric]) if metric in values else "" for metric in metrics)
            (below if row.close else others).append((row.method, row.source, cells))
            papers.append(row.paper)
    return ScoreTable(
        tuple((level, len(list(columns))) for level, columns in groupby(metrics, level_of)),
        tuple(metric.partition("/")[0] for metric in metrics),
        tuple((name, tuple(scores[name, metric] for metric in metrics)) for name in reports),
        tuple(below),
        tuple(others),
        (*notes, *unit_note(metrics), *filter(None, dict.fromkeys(papers))),
    )


def _as_printed(value: float) -> str:
    """Format a published value with two digits if its text has two, else with one."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"
