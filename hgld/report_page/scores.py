"""Scores of several runs on one task, each with a confidence interval and a test against a baseline."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from hgld.errors import HgldError
from hgld.evaluation.protocols import is_per_cent, lower_is_better, value_parts
from hgld.evaluation.report import RetrievalReport, compare, number
from hgld.evaluation.trained_on import trained_on_text
from hgld.report_page.runs import Evaluation

GRADED = "all levels"
SIGNIFICANT = 0.05  # a difference of two runs is significant if its p-value is smaller
_OVER_QUERIES = "queries, taken as independent: where many share few classes, intervals are too narrow"
_TEST = f"p < {SIGNIFICANT} (paired sign-flip permutation test, two-sided, not corrected for several tests)"
_SEED_TEST = "the tooltip and JSON have the paired t-test over seeds too"


@dataclass(frozen=True)
class Score:
    """One run's value of one metric, with its confidence interval and its comparison to the baseline.

    Attributes:
        metric: name of the metric, with its level.
        value: the value, for shares from 0 to 1; NaN if undefined.
        low: lower end of the value's confidence interval; NaN without values per query.
        high: upper end of the value's confidence interval.
        difference: difference to the baseline; NaN without a comparison.
        difference_low: lower end of the difference's confidence interval.
        difference_high: upper end of the difference's confidence interval.
        p_value: two-sided p-value of the hypothesis that there is no difference to the baseline.
        best: True if no run has a better value.
        deviation: standard deviation over the seeds; NaN for a single run.
        seeds: number of runs that the value is the mean of.
        seed_p_value: p-value of the paired t-test over the common seeds; NaN with fewer than two common seeds.
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
    def shown(self) -> str:
        """The value as text for tables; empty if undefined."""
        return number(self.value * self.scale, 2, "")

    @property
    def spread(self) -> str:
        """The deviation over the seeds; empty for a single run."""
        return "" if math.isnan(self.deviation) else f"± {self.deviation * self.scale:.2f}"

    @property
    def interval(self) -> str:
        """The confidence interval of the value; empty if it is unknown."""
        digits = 1 if self.scale == 100 else 2
        low, high = (number(end * self.scale, digits) for end in (self.low, self.high))
        return "" if math.isnan(self.low) else f"{low}–{high}"

    @property
    def p_text(self) -> str:
        """The p-values in words; empty without a comparison."""
        over_seeds = "" if math.isnan(self.seed_p_value) else f", over seeds {_p_text(self.seed_p_value)}"
        return "" if math.isnan(self.p_value) else _p_text(self.p_value) + over_seeds

    @property
    def change(self) -> str:
        """``better`` or ``worse`` if the value differs significantly from the baseline's value; else empty."""
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
    """Return the two-sided p-value of the paired t-test of no difference, over the seeds that both runs have.

    Args:
        ours: values of one run by seed.
        theirs: values of the other run by seed.

    Returns:
        the p-value: NaN with fewer than two common seeds; 0 or 1 if all differences are equal (no deviation).
    """
    from scipy.stats import ttest_1samp

    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if len(differences) < 2 or any(map(math.isnan, differences)):
        return math.nan
    if statistics.stdev(differences) < 1e-12:  # the differences are only rounding
        return float(abs(differences[0]) < 1e-12)
    result: Any = ttest_1samp(differences, 0.0)  # scipy's annotation, a tuple of objects, is too general
    return float(result.pvalue)


def _compare_with(
    first: str, reports: Mapping[str, RetrievalReport], classes: np.ndarray | None
) -> tuple[dict[tuple[str, str], dict[str, float]], list[str]]:
    """Return intervals and tests by run and metric, and a note on each run that cannot be paired with the first run."""
    measured = {name: [] if r.per_query.is_empty() else r.query_metrics for name, r in reports.items()}
    found, notes = dict[tuple[str, str], dict[str, float]](), list[str]()
    for name, report in reports.items():
        paired = [metric for metric in measured[name] if metric in measured[first]]
        if not paired and name != first:
            notes.append(f"{name} is not compared with {first}: they share no metric with values per query.")
        comparisons = []
        try:
            if paired:
                comparisons.append(compare({first: reports[first], name: report}, metrics=paired, classes=classes))
        except HgldError as error:
            notes.append(f"{name} is not compared with {first}: {error}")
            paired = []
        if alone := [metric for metric in measured[name] if metric not in paired]:
            comparisons.append(compare({name: report}, metrics=alone, classes=classes))
        for row in (row for comparison in comparisons for row in comparison.iter_rows(named=True)):
            if row["report"] == name:
                facts = {key: value for key, value in row.items() if key not in ("report", "metric", "value")}
                found[name, row["metric"]] = {k: math.nan if v is None else v for k, v in facts.items()}
    return found, notes


def order_metrics(reports: Collection[RetrievalReport]) -> list[str]:
    """Return the metrics of reports ordered by level, the finest first; metrics over all levels come last."""
    metrics = list(dict.fromkeys(metric for report in reports for metric in report.values))
    stated = [level for report in reports for level in report.settings.get("levels", ())]
    found = [level for metric in metrics if (level := value_parts(metric)[1])]
    place = {level: i for i, level in enumerate(dict.fromkeys([*stated, *found]))}
    return sorted(metrics, key=lambda metric: place.get(value_parts(metric)[1] or "", len(place)))


def level_of(metric: str) -> str:
    """Return the level of a metric, for headings."""
    return value_parts(metric)[1] or GRADED


# -- the table of a split ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreTable:
    """Results of several runs on one split.

    Attributes:
        metrics: one metric per column: the finest level first, metrics over all levels last.
        runs: names of the runs with their scores.
        baseline: name of the run that all other runs are compared with.
        dataset: name of the dataset; empty if no run states it.
        warnings: a sentence per run that was trained on classes or images of the queries.
        notes: how values were made, and which runs could not be compared.
    """

    metrics: tuple[str, ...]
    runs: tuple[tuple[str, tuple[Score, ...]], ...]
    baseline: str
    dataset: str
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Levels, each with the number of its columns."""
        return [(level, len(list(columns))) for level, columns in groupby(self.metrics, level_of)]

    @property
    def columns(self) -> list[str]:
        """The metrics without their levels."""
        return [metric.partition("/")[0] for metric in self.metrics]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per run and metric, ready for JSON: None if a value is not known."""
        facts = ("value", "deviation", "seeds", "low", "high", "difference", "difference_low", "difference_high")
        return [
            {"run": name, "metric": score.metric}
            | {
                fact: None if math.isnan(found := getattr(score, fact)) else found
                for fact in (*facts, "p_value", "seed_p_value")
            }
            for name, scores in self.runs
            for score in scores
        ]


def score_table(evaluations: Mapping[str, Evaluation], baseline: str | None = None) -> ScoreTable:
    """Lay out the values of all runs on one split.

    Args:
        evaluations: evaluation per run.
        baseline: name of the run to compare all other runs with. Default: the first run.
    """
    reports = {name: evaluation.report for name, evaluation in evaluations.items()}
    seeds = {name: evaluation.seeds for name, evaluation in evaluations.items() if evaluation.seeds}
    metrics = order_metrics(reports.values())
    first = baseline if baseline in reports else next(iter(reports))
    classes = _common_classes(evaluations.values())
    tests, notes = _compare_with(first, reports, classes)
    rows: dict[str, list[Score]] = {name: [] for name in reports}
    for metric in metrics:
        values = {name: report.values.get(metric, math.nan) for name, report in reports.items()}
        known = [value for value in values.values() if not math.isnan(value)]
        best = (min if lower_is_better(metric) else max)(known, default=math.nan)
        by_seed = {
            name: {seed: report.values[metric] for seed, report in group.items() if metric in report.values}
            for name, group in seeds.items()
        }
        for name, value in values.items():
            facts: dict[str, Any] = dict(tests.get((name, metric), {}))
            if len(ours := by_seed.get(name, {})) > 1:
                facts |= {"deviation": statistics.stdev(ours.values()), "seeds": len(ours)}
                if name != first:
                    facts["seed_p_value"] = seed_p_value(ours, by_seed.get(first, {}))
            rows[name].append(Score(metric, value, **facts, best=value == best))
    scores = [score for row in rows.values() for score in row]
    if any(score.p_text for score in scores):
        over_seeds = f"; {_SEED_TEST}" if any(not math.isnan(score.seed_p_value) for score in scores) else ""
        notes.insert(0, f"▲ and ▼: differs from {first} with {_TEST}{over_seeds}.")
    if any(score.interval for score in scores):
        over = _OVER_QUERIES if classes is None else "the classes of the queries"
        notes.insert(0, f"Intervals: 95 %, percentile bootstrap (2,000 resamples) over {over}.")
    for name, group in seeds.items():
        notes.insert(0, f"{name}: mean ± standard deviation over {len(group)} seeds ({', '.join(map(str, group))}).")
    if others := dict.fromkeys(metric.partition("/")[0] for metric in metrics if not is_per_cent(metric)):
        notes.append(f"Not in per cent: {', '.join(others)}.")
    trained_on = {name: trained_on_text(report.settings) for name, report in reports.items()}
    return ScoreTable(
        tuple(metrics),
        tuple((name, tuple(row)) for name, row in rows.items()),
        first,
        next((evaluation.dataset for evaluation in evaluations.values() if evaluation.dataset), ""),
        tuple(f"{name}: {text}" for name, text in trained_on.items() if text),
        tuple(notes),
    )


def best_first(reports: Mapping[str, RetrievalReport]) -> ScoreTable:
    """Lay out the values of models on one task, best first according to the first metric; the best is the baseline."""
    metric = order_metrics(reports.values())[0]
    sign = 1 if lower_is_better(metric) else -1
    values = {name: sign * report.values.get(metric, math.nan) for name, report in reports.items()}
    ranked = sorted(reports, key=lambda name: math.inf if math.isnan(values[name]) else values[name])
    return score_table({name: Evaluation(reports[name], None, None) for name in ranked})


def _common_classes(evaluations: Iterable[Evaluation]) -> np.ndarray | None:
    """Return the (Q,) classes of the queries; None if the labels differ or no evaluation has them."""
    found = list(evaluations)
    labels = {str(evaluation.report.settings.get("labels_sha256")) for evaluation in found}
    known = (evaluation.classes for evaluation in found if evaluation.classes is not None)
    return next(known, None) if len(labels) == 1 else None
