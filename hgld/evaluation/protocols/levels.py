"""The average over levels that Dynamic Metric Learning reports: one number for several levels.

Sun, Zhu, Zhang, Zheng, Qiu, Zhang, Wei: "Dynamic Metric Learning: Towards a Scalable Metric Space to Accommodate
Multiple Semantic Scales", CVPR 2021. DyML tests every level (fine, middle, coarse) on images of its own and averages.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from hgld.errors import ConfigError
from hgld.evaluation.report import RetrievalReport
from hgld.metrics import Metric

AVERAGE = "average"


def average_over_levels(*reports: RetrievalReport) -> RetrievalReport:
    """Average every binary metric over the levels, and keep the metrics themselves beside the averages.

    Args:
        *reports: one report of several levels, or one a level (DyML: :func:`evaluate_with_distractors` with
            ``levels=("fine",)`` and so on).

    Returns:
        a report of all metrics and, for ``AP/fine``, ``AP/middle``, ``AP/coarse``, their mean ``AP/average``. From one
        report a query's average is that over the levels at which it is defined; several reports have queries of their
        own, whose rows stand one behind the other without an average. A graded metric of several reports (ASI) is the
        mean of theirs.

    Raises:
        ConfigError: no reports, two of one level, a metric that some level lacks, or fewer than two levels.
    """
    values = {name: value for report in reports for name, value in report.values.items()}
    graded = [name for name in values if not Metric.parse(name).binary]
    of_levels = len(values) - len(graded)
    if not reports or of_levels != sum(name not in graded for report in reports for name in report.values):
        raise ConfigError(
            "expected reports of different levels: a metric of a level is given twice, or there are none."
        )
    levels = list(dict.fromkeys(level for report in reports for level in report.settings.get("levels", ())))
    values |= {name: _mean([report.values.get(name, math.nan) for report in reports]) for name in graded}
    kinds = list(dict.fromkeys(str(replace(m, level=None)) for m in map(Metric.parse, values) if m.binary))
    missing = [f"{kind}/{level}" for kind in kinds for level in levels if f"{kind}/{level}" not in values]
    if missing or not kinds or len(levels) < 2 or AVERAGE in levels:
        raise ConfigError(
            f"levels are {', '.join(levels)}, metrics {', '.join(values)}; expected the same binary metrics of two or "
            f"more levels, none of them named {AVERAGE!r}."
        )
    averages = {f"{kind}/{AVERAGE}": [f"{kind}/{level}" for level in levels] for kind in kinds}
    undefined = {name: count for report in reports for name, count in report.undefined.items()}
    undefined |= {name: sum(report.undefined.get(name, 0) for report in reports) for name in graded}
    rows = _stack([report.per_query for report in reports])
    means = {
        name: pl.mean_horizontal(pl.col(*parts).fill_nan(None)).fill_null(math.nan)
        for name, parts in averages.items()
        if len(reports) == 1 and set(parts) <= set(rows.columns)
    }
    rows = rows.with_columns(**means)
    left_out = {
        name: int(rows[name].is_nan().sum()) if name in means else sum(undefined[part] for part in parts)
        for name, parts in averages.items()
    }
    values |= {name: _mean([values[n] for n in parts]) for name, parts in averages.items()}
    return _report(values, rows, undefined | left_out, reports, {"levels": levels, "average": "mean over levels"})


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def join_reports(reports: Mapping[str, RetrievalReport]) -> RetrievalReport:
    """Join the reports of several sets of queries, each of one level.

    Args:
        reports: by the name of the set.

    Returns:
        a report whose values are named by their sets (``R@1/small``); the rows of the sets stand one behind the
        other, NaN in the columns of other sets.

    Raises:
        ConfigError: a report has a metric at several levels.
    """
    values: dict[str, float] = {}
    undefined: dict[str, int] = {}
    tables = []
    for name, report in reports.items():
        renamed = {value: f"{value.partition('/')[0]}/{name}" for value in report.values}
        if len(set(renamed.values())) < len(renamed):
            raise ConfigError(f"the report of {name} has {', '.join(report.values)}; expected metrics of one level.")
        values |= {renamed[value]: number for value, number in report.values.items()}
        undefined |= {renamed[value]: count for value, count in report.undefined.items()}
        tables.append(report.per_query.rename(renamed, strict=False))
    return _report(values, _stack(tables), undefined, list(reports.values()), {"levels": list(reports)})


def _report(
    values: dict[str, float],
    rows: pl.DataFrame,
    undefined: dict[str, int],
    reports: Sequence[RetrievalReport],
    settings: Mapping[str, Any],
) -> RetrievalReport:
    """Return a report made of others; values without a column of their own are said to be of the set."""
    columns = [name for name in values if name in rows.columns]
    of_set = [name for name in values if name not in columns]
    stated = _settings(reports) | {"metrics": list(values), **settings, **({"of_set": of_set} if of_set else {})}
    return RetrievalReport(values, rows.select("query", *columns), undefined, stated)


def _settings(reports: Sequence[RetrievalReport]) -> dict[str, Any]:
    """Return the settings that the reports have in common, and a list of those that differ."""
    found = {key: [report.settings.get(key) for report in reports] for key in reports[0].settings}
    return {key: each[0] if all(value == each[0] for value in each) else each for key, each in found.items()}


def _stack(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Stack the queries of all reports, numbered through, NaN where a report has no such metric."""
    rows = pl.concat(tables, how="diagonal").drop("query").fill_null(math.nan)
    return rows.with_columns(query=pl.int_range(pl.len(), dtype=pl.Int64))
