"""Scores of several runs on one task, each with its interval and test, and published rows to stand beside them."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from hgld.errors import HgldError
from hgld.evaluation.protocols import is_per_cent, lower_is_better, value_parts
from hgld.evaluation.report import RetrievalReport, compare, number
from hgld.evaluation.trained_on import trained_on_text
from hgld.published import PAPERS, PublishedValue
from hgld.published.results import values_of
from hgld.report_page.runs import Evaluation

GRADED = "all levels"
SIGNIFICANT = 0.05  # a smaller p-value tells two runs apart
OVER_QUERIES = "queries, taken as independent: where many share few classes, intervals are too narrow"
OVER_CLASSES = "the classes of the queries"
TEST = f"p < {SIGNIFICANT} (paired sign-flip permutation test, two-sided, not corrected for several tests)"
_SEED_TEST = "the tooltip and JSON have the paired t-test over seeds too"


def intervals_note(over: str) -> str:
    """Return the sentence that says how intervals were made."""
    return f"Intervals: 95 %, percentile bootstrap (2,000 resamples) over {over}."


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
        deviation: standard deviation over the seeds; NaN for a single run.
        seeds: number of runs that the value is the mean of.
        seed_p_value: probability of no difference by the paired t-test over the seeds that both have; NaN with fewer
            than two.
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
    deviation: float = math.nan
    seeds: int = 1
    seed_p_value: float = math.nan

    @property
    def level_with_best(self) -> bool:
        """True if it is the best, or differs from the best no more than chance may."""
        return self.best or self.p_value >= SIGNIFICANT

    @property
    def shown(self) -> str:
        """The value as tables print it; empty if undefined."""
        return number(self.value * self.scale, 2, "")

    @property
    def spread(self) -> str:
        """The deviation over the seeds; empty for a single run."""
        return "" if math.isnan(self.deviation) else f"± {self.deviation * self.scale:.2f}"

    @property
    def interval(self) -> str:
        """Its interval; empty if there is none."""
        digits = 1 if self.scale == 100 else 2
        low, high = (number(end * self.scale, digits) for end in (self.low, self.high))
        return "" if math.isnan(self.low) else f"{low}–{high}"

    @property
    def p_text(self) -> str:
        """Its p-values in words; empty if there is none."""
        over_seeds = "" if math.isnan(self.seed_p_value) else f", over seeds {_p_text(self.seed_p_value)}"
        return "" if math.isnan(self.p_value) else _p_text(self.p_value) + over_seeds

    @property
    def change(self) -> str:
        """``better`` or ``worse`` if the value differs from the other run's beyond chance; else empty."""
        if not self.p_value < SIGNIFICANT:
            return ""
        return "better" if (self.difference > 0) != lower_is_better(self.metric) else "worse"

    @property
    def comparison(self) -> str:
        """The difference, its interval and its p-value, for a tooltip; empty without a comparison."""
        ends = (self.scale * end for end in (self.difference, self.difference_low, self.difference_high))
        return "" if not self.p_text else "{:+.2f} ({:+.2f} to {:+.2f}), ".format(*ends) + self.p_text

    @property
    def scale(self) -> float:
        """Factor by which tables print the value: 100 for a share."""
        return 100.0 if is_per_cent(self.metric) else 1.0


def _p_text(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def seed_p_value(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Return the p-value of the paired t-test of no difference, two-sided, over the seeds that both have.

    Args:
        ours: values by seed.
        theirs: values by seed.

    Returns:
        NaN with fewer than two common seeds; 0 or 1 if all differences are equal, and so have no deviation.
    """
    from scipy.stats import t as student

    apart = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if len(apart) < 2 or any(map(math.isnan, apart)):
        return math.nan
    mean, deviation = statistics.fmean(apart), statistics.stdev(apart)
    if deviation < 1e-12:  # rounding alone
        return 1.0 if abs(mean) < 1e-12 else 0.0
    return float(2 * student.sf(abs(mean) / deviation * math.sqrt(len(apart)), len(apart) - 1))


SeedReports = Mapping[int, RetrievalReport]


def score_runs(
    reports: Mapping[str, RetrievalReport],
    metrics: Sequence[str],
    baseline: str | None = None,
    *,
    seeds: Mapping[str, SeedReports] | None = None,
    classes: np.ndarray | None = None,
) -> tuple[dict[tuple[str, str], Score], list[str]]:
    """Return the score of every run at every metric, and a note on every pair of runs that cannot be compared.

    Args:
        reports: by run.
        metrics: with their levels.
        baseline: the run that the others are compared with; None: the best of each metric.
        seeds: reports by seed of the runs whose report is a mean over seeds.
        classes: (Q,) classes of the queries, over which tests and intervals are made; None: over queries.
    """
    by_seed = {
        (name, metric): {seed: report.values[metric] for seed, report in group.items() if metric in report.values}
        for name, group in (seeds or {}).items()
        for metric in metrics
    }
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
                pair = {first: reports[first], name: report}
                found = [compare(pair, metrics=paired, classes=classes)] if paired else []
            except HgldError as error:
                notes.append(f"{name} is not compared with {first}: {error}")
                paired = []
            if alone := [metric for metric in own if metric not in paired]:
                found.append(compare({name: report}, metrics=alone, classes=classes))
            for row in (row for comparison in found for row in comparison.frame.iter_rows(named=True)):
                if row["report"] == name:
                    rows[name, row["metric"]] = {k: v for k, v in row.items() if k not in ("report", "metric", "value")}
    scores = {}
    for name, report in reports.items():
        for metric in metrics:
            value = report.values.get(metric, math.nan)
            top = metric in best and value == reports[best[metric]].values[metric]
            facts: dict[str, Any] = {
                key: math.nan if end is None else end for key, end in rows.get((name, metric), {}).items()
            }
            own = by_seed.get((name, metric), {})
            if len(own) > 1:
                theirs = by_seed.get((baseline or best.get(metric, ""), metric), {})
                facts |= {"deviation": statistics.stdev(own.values()), "seeds": len(own)}
                facts |= {"seed_p_value": math.nan if own is theirs else seed_p_value(own, theirs)}
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
        baseline: the run that the others are compared with; empty: the best of each column.
        dataset: its name; empty if no run says it.
        warnings: what runs were trained on of the queries.
        published: method, source and cells of the published rows of the runs' own recipes.
        others: the same of the other published rows of the dataset.
        notes: remarks for readers, and the runs that could not be compared.
    """

    groups: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    runs: tuple[tuple[str, tuple[Score, ...]], ...]
    baseline: str = ""
    dataset: str = ""
    warnings: tuple[str, ...] = ()
    published: PublishedCells = ()
    others: PublishedCells = ()
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for every run and value, ready for JSON: None for what is not known."""
        facts = ("value", "deviation", "seeds", "low", "high", "difference", "difference_low", "difference_high")
        return [
            {"run": name, "metric": score.metric}
            | {fact: getattr(score, fact) for fact in (*facts, "p_value", "seed_p_value")}
            for name, scores in self.runs
            for score in scores
        ]


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
    classes = _common_classes(evaluations.values())
    seeds = {name: evaluation.seeds for name, evaluation in evaluations.items() if evaluation.seeds}
    scores, notes = score_runs(reports, metrics, first, seeds=seeds, classes=classes)
    if any(score.p_text for score in scores.values()):
        over_seeds = f"; {_SEED_TEST}" if any(not math.isnan(s.seed_p_value) for s in scores.values()) else ""
        notes.insert(0, f"▲ and ▼: differs from {first} with {TEST}{over_seeds}.")
    if any(score.interval for score in scores.values()):
        notes.insert(0, intervals_note(OVER_QUERIES if classes is None else OVER_CLASSES))
    for name, group in seeds.items():
        notes.insert(0, f"{name}: mean ± standard deviation over {len(group)} seeds ({', '.join(map(str, group))}).")
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
        first,
        next((evaluation.dataset for evaluation in evaluations.values() if evaluation.dataset), ""),
        seen_warnings(reports),
        tuple(below),
        tuple(others),
        (*notes, *unit_note(metrics), *filter(None, dict.fromkeys(papers))),
    )


def seen_warnings(reports: Mapping[str, RetrievalReport]) -> tuple[str, ...]:
    """Return a sentence for every run that was trained on classes or images of the queries."""
    texts = {name: trained_on_text(report.settings) for name, report in reports.items()}
    return tuple(f"{name}: {text}" for name, text in texts.items() if text)


def _common_classes(evaluations: Iterable[Evaluation]) -> np.ndarray | None:
    """Return the classes (Q,) of the queries, if all evaluations are of the same labels and one of them has these."""
    found = list(evaluations)
    labels = {str(evaluation.report.settings.get("labels_sha256")) for evaluation in found}
    known = (evaluation.classes for evaluation in found if evaluation.classes is not None)
    return next(known, None) if len(labels) == 1 else None


def _as_printed(value: float) -> str:
    """Format a published value with two digits if its text has two, else with one."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"
