"""Several models on one task: a table a level, with intervals, paired tests, dimensions and speed; also as a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from hgld.errors import HgldError
from hgld.evaluation.metric import is_per_cent, lower_is_better
from hgld.evaluation.protocol_kinds import value_parts
from hgld.evaluation.report import RetrievalReport, compare, markdown, markdown_table, number
from hgld.report_page.page import breakable, glossary, render, settings_text
from hgld.report_page.score_table import GRADED

_SURE = 0.05  # a smaller p-value tells two models apart


@dataclass(frozen=True, eq=False)
class Entry:
    """A model on the task.

    Attributes:
        name: of the model, no other's.
        report: its evaluation.
        dimensions: of its embedding.
        images_per_second: read, decoded and embedded; NaN where it was not measured.
    """

    name: str
    report: RetrievalReport
    dimensions: int
    images_per_second: float = math.nan


@dataclass(frozen=True)
class Score:
    """A value of the table.

    Attributes:
        value: as the report has it; NaN where it is undefined.
        low: lower end of its confidence interval; NaN without values a query.
        high: upper end.
        p_value: of no difference to the best model, two-sided; NaN for the best itself and without values a query.
        best: whether no model has a better value.
        scale: 100 where tables print it in per cent.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    best: bool = False
    scale: float = 100.0

    @property
    def level_with_best(self) -> bool:
        """True if it is the best, or differs from the best no more than chance may."""
        return self.best or self.p_value >= _SURE

    @property
    def shown(self) -> str:
        """The value as tables print it."""
        return number(self.value * self.scale, 2)

    @property
    def interval(self) -> str:
        """Its interval; empty where there is none."""
        digits = 1 if self.scale == 100 else 2
        low, high = (number(end * self.scale, digits) for end in (self.low, self.high))
        return "" if math.isnan(self.low) else f"{low} to {high}"

    @property
    def p_text(self) -> str:
        """Its p-value in words; empty where there is none."""
        if math.isnan(self.p_value):
            return ""
        return "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.3f}"


@dataclass(frozen=True)
class LevelTable:
    """The models at one level, the best of its first metric on top.

    Attributes:
        level: its name; of the metrics of all levels a word for them.
        metrics: names without the level.
        rows: models, each with a score a metric.
    """

    level: str
    metrics: tuple[str, ...]
    rows: tuple[tuple[Entry, tuple[Score, ...]], ...]


@dataclass(frozen=True)
class Leaderboard:
    """Several models on one task.

    Attributes:
        tables: one a level, the finest first, that of all levels at the end.
        notes: what the marks mean, and models that could not be paired with the best.
        failed: models that could not be evaluated, with the reason.
    """

    tables: tuple[LevelTable, ...]
    notes: tuple[str, ...]
    failed: Mapping[str, str]

    def to_markdown(self) -> str:
        """Return a table a level, in per cent, and the notes."""
        parts = []
        for table in self.tables:
            header = ["model", *table.metrics, "dimensions", "images/s"]
            rows = [
                [entry.name, *map(_text, scores), str(entry.dimensions), speed(entry)] for entry, scores in table.rows
            ]
            parts.append(f"{markdown(table.level)}:\n\n{markdown_table(header, rows)}")
        parts += [f"{markdown(note)}\n" for note in self.notes]
        parts += [f"not evaluated: {markdown(name)}: {markdown(reason)}\n" for name, reason in self.failed.items()]
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return models with their settings, and the scores a level (None for NaN), ready for JSON."""
        entries = self._entries()
        models = [
            {
                "model": entry.name,
                "dimensions": entry.dimensions,
                "images_per_second": _or_none(round(entry.images_per_second, 2)),
                "settings": entry.report.settings,
            }
            for entry in entries.values()
        ]
        scores = [
            {"model": entry.name, "level": table.level, "metric": metric}
            | {name: _or_none(getattr(score, name)) for name in ("value", "low", "high", "p_value")}
            | {"best": score.best}
            for table in self.tables
            for entry, row in table.rows
            for metric, score in zip(table.metrics, row, strict=True)
        ]
        return {"models": models, "scores": scores, "failed": dict(self.failed)}

    def _entries(self) -> dict[str, Entry]:
        return {entry.name: entry for table in self.tables for entry, _ in table.rows}

    def to_html(self, title: str = "Leaderboard") -> str:
        """Return a page of its own without anything to load; its one script sorts the tables."""
        entries = self._entries()
        values = [metric for entry in entries.values() for metric in entry.report.values]
        some = next(iter(entries.values()), None)
        return render(
            "leaderboard.html",
            scripts=("tables.js",),
            title=title,
            board=self,
            task={} if some is None else {key: some.report.settings.get(key) for key in ("queries", "gallery")},
            dataset="" if some is None else some.report.settings.get("dataset", ""),
            settings={name: settings_text(entry.report) for name, entry in entries.items()},
            terms=glossary(values),
            about=about,
            breakable=breakable,
            speed=speed,
        )


def leaderboard(entries: Sequence[Entry], failed: Mapping[str, str] | None = None) -> Leaderboard:
    """Lay out the values of several models, each level's compared with the best by :func:`compare`.

    Args:
        entries: of one task; those whose queries differ from the best one's have no p-values, which a note says.
        failed: models that could not be evaluated, with the reason.
    """
    metrics = list(dict.fromkeys(metric for entry in entries for metric in entry.report.values))
    stated = [level for entry in entries for level in entry.report.settings.get("levels", ())]
    found = [level for metric in metrics if (level := value_parts(metric)[1])]
    place = {level: i for i, level in enumerate(dict.fromkeys([*stated, *found]))}
    metrics.sort(key=lambda metric: place.get(value_parts(metric)[1] or "", len(place)))
    tables, notes = [], []
    for level, chosen in groupby(metrics, lambda metric: value_parts(metric)[1] or GRADED):
        table, said = _level_table(level, list(chosen), entries)
        tables.append(table)
        notes += said
    if tables:
        notes.insert(
            0,
            "Bold, or *: the best, and those whose difference to it may be chance (p of 0.05 or more: paired sign-flip "
            "permutation test over the queries, two-sided, not corrected for several tests). Intervals: 95 %, "
            "percentile bootstrap over the queries, which takes queries as independent.",
        )
    others = dict.fromkeys(metric.partition("/")[0] for metric in metrics if not is_per_cent(metric))
    if others:
        notes.append(f"Not in per cent: {', '.join(others)}.")
    return Leaderboard(tuple(tables), tuple(dict.fromkeys(notes)), dict(failed or {}))


def _level_table(level: str, metrics: Sequence[str], entries: Sequence[Entry]) -> tuple[LevelTable, list[str]]:
    reports = {entry.name: entry.report for entry in entries}
    best: dict[str, str] = {}  # of every metric that has one
    having: dict[tuple[str, tuple[str, ...]], list[str]] = {}  # metrics by their best model and those with values
    for metric in metrics:
        defined = {n: r.values[metric] for n, r in reports.items() if not math.isnan(r.values.get(metric, math.nan))}
        if defined:
            choose = min if lower_is_better(metric) else max
            best[metric] = choose(defined, key=defined.__getitem__)
            paired = tuple(name for name in defined if metric in reports[name].per_query.columns)
            having.setdefault((best[metric], paired), []).append(metric)
    compared: dict[tuple[str, str], dict[str, Any]] = {}
    notes = []
    for (first, names), chosen in having.items():
        rows, said = _compared(first, {name: reports[name] for name in names}, chosen)
        compared |= {(row["report"], row["metric"]): row for row in rows}
        notes += said
    scores = {}
    for name, report in reports.items():
        for metric in metrics:
            row, value = compared.get((name, metric), {}), report.values.get(metric, math.nan)
            top = metric in best and value == reports[best[metric]].values[metric]
            p_value = row.get("p_value")
            ends = {end: row.get(end, math.nan) for end in ("low", "high")}
            scale, p_value = 100.0 if is_per_cent(metric) else 1.0, math.nan if p_value is None else p_value
            scores[name, metric] = Score(value, **ends, p_value=p_value, best=top, scale=scale)
    sign = 1 if lower_is_better(metrics[0]) else -1
    ranked = sorted(entries, key=lambda entry: _first(sign * scores[entry.name, metrics[0]].value))
    rows = tuple((entry, tuple(scores[entry.name, metric] for metric in metrics)) for entry in ranked)
    return LevelTable(level, tuple(metric.partition("/")[0] for metric in metrics), rows), notes


def _compared(
    first: str, reports: Mapping[str, RetrievalReport], metrics: Sequence[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of the comparison with a model; one that cannot be paired with it has intervals alone."""
    if not reports:
        return [], []
    try:
        baseline = first if first in reports else None
        return list(compare(reports, metrics=metrics, baseline=baseline).frame.iter_rows(named=True)), []
    except HgldError as error:
        if len(reports) == 1:
            return [], [f"{first}: {error}"]
    rows, notes = [], []
    for name, report in reports.items():
        pair = {first: reports[first], name: report}
        try:
            found = compare(pair, metrics=metrics)
        except HgldError as error:
            found = compare({name: report}, metrics=metrics)
            notes.append(f"{name} is not compared with {first}: {error}")
        rows += [row for row in found.frame.iter_rows(named=True) if row["report"] == name]
    return rows, notes


def _first(value: float) -> float:
    return math.inf if math.isnan(value) else value


def about(entry: Entry) -> str:
    """Describe a model's weights and its view of images in a few words, as far as its report states them."""
    settings = entry.report.settings
    weights = settings.get("model_weights", "default")
    words = {"default": "", "none": "random weights"}.get(weights, f"weights {Path(weights).name}")
    checkpoint = str(settings.get("checkpoint", ""))
    geometry, size = settings.get("geometry", ""), settings.get("image_size")
    seen = geometry if size is None else f"{geometry} {size} px"
    return ", ".join(word for word in (checkpoint, words, seen) if word)


def speed(entry: Entry) -> str:
    """Format images a second with two significant digits or more; empty where they were not measured."""
    value = entry.images_per_second
    return "" if math.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _text(score: Score) -> str:
    interval = f" ({score.interval})" if score.interval else ""
    return f"{score.shown}{'*' if score.level_with_best else ''}{interval}"


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
