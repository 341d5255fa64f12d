"""Leaderboard of several models on one task: a table per level, with intervals, tests, dimensions and speed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from hgld.evaluation.protocols import lower_is_better
from hgld.evaluation.report import RetrievalReport, markdown, markdown_table
from hgld.report_page.page import breakable, glossary, render, settings_text
from hgld.report_page.scores import (
    OVER_QUERIES,
    TEST,
    Score,
    ScoreTable,
    intervals_note,
    level_of,
    order_metrics,
    score_runs,
    seen_warnings,
    unit_note,
)


@dataclass(frozen=True, eq=False)
class Entry:
    """A model on the task.

    Attributes:
        name: name of the model, no other's.
        report: its evaluation.
        dimensions: dimensions of its embedding.
        images_per_second: images read, decoded and embedded per second; NaN if not measured.
    """

    name: str
    report: RetrievalReport
    dimensions: int
    images_per_second: float = math.nan

    @property
    def about(self) -> str:
        """Its weights and its view of images in a few words, as far as its report states them."""
        settings = self.report.settings
        weights = settings.get("model_weights", "default")
        words = {"default": "", "none": "random weights"}.get(weights, f"weights {Path(weights).name}")
        mode, size = settings.get("resize_mode", ""), settings.get("image_size")
        seen = mode if size is None else f"{mode} {size} px"
        return ", ".join(filter(None, (str(settings.get("checkpoint", "")), words, seen)))

    @property
    def speed(self) -> str:
        """Images per second with two significant digits or more; empty if not measured."""
        value = self.images_per_second
        return "" if math.isnan(value) else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


@dataclass(frozen=True)
class LevelTable:
    """The models at one level, the best of its first metric on top.

    Attributes:
        level: its name.
        metrics: names without the level.
        rows: models, each with a score per metric.
    """

    level: str
    metrics: tuple[str, ...]
    rows: tuple[tuple[Entry, tuple[Score, ...]], ...]


@dataclass(frozen=True)
class Leaderboard:
    """Several models on one task.

    Attributes:
        tables: one per level, the finest first, that of all levels at the end.
        notes: meaning of the marks, and models that could not be paired with the best.
        failed: models that could not be evaluated, with the reason.
        scores: all values, the best model of the first column on top.
    """

    tables: tuple[LevelTable, ...]
    notes: tuple[str, ...]
    failed: Mapping[str, str]
    scores: ScoreTable

    def to_markdown(self) -> str:
        """Return a table per level, in per cent, and the notes."""
        parts = []
        for table in self.tables:
            header = ["model", *table.metrics, "dimensions", "images/s"]
            rows = []
            for entry, scores in table.rows:
                cells = [
                    (score.shown or "undefined")
                    + ("*" if score.level_with_best else "")
                    + (f" ({score.interval})" if score.interval else "")
                    for score in scores
                ]
                rows.append([entry.name, *cells, str(entry.dimensions), entry.speed])
            parts.append(f"{markdown(table.level)}:\n\n{markdown_table(header, rows)}")
        parts += [f"{markdown(note)}\n" for note in self.notes]
        parts += [f"not evaluated: {markdown(name)}: {markdown(reason)}\n" for name, reason in self.failed.items()]
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return models with their settings, and the scores per level (None for NaN), ready for JSON."""

        def number(value: float) -> float | None:
            return None if math.isnan(value) else value

        models = [
            {
                "model": entry.name,
                "dimensions": entry.dimensions,
                "images_per_second": number(round(entry.images_per_second, 2)),
                "settings": entry.report.settings,
            }
            for entry in self._entries().values()
        ]
        scores = [
            {"model": entry.name, "level": table.level, "metric": metric}
            | {name: number(getattr(score, name)) for name in ("value", "low", "high", "p_value")}
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
        task = next((entry.report.settings for entry in entries.values()), {})
        return render(
            "leaderboard.html",
            title=title,
            board=self,
            task={key: task[key] for key in ("queries", "gallery") if key in task},
            dataset=task.get("dataset", ""),
            settings={name: settings_text(entry.report) for name, entry in entries.items()},
            terms=glossary([metric for entry in entries.values() for metric in entry.report.values]),
            breakable=breakable,
        )


def leaderboard(entries: Sequence[Entry], failed: Mapping[str, str] | None = None) -> Leaderboard:
    """Lay out the values of several models, each metric's compared with the best.

    Args:
        entries: models on one task; a model whose queries differ from the best one's has no p-values, which a note
            says.
        failed: models that could not be evaluated, with the reason.
    """
    reports = {entry.name: entry.report for entry in entries}
    metrics = order_metrics(reports.values())
    scores, notes = score_runs(reports, metrics)
    if metrics:
        marked = f"Bold, or *: the best, and those that do not differ from it with {TEST}."
        notes = [marked, intervals_note(OVER_QUERIES), *notes]
    tables = []
    for level, group in groupby(metrics, level_of):
        chosen = list(group)
        sign = 1 if lower_is_better(chosen[0]) else -1

        def place(entry: Entry, metric: str = chosen[0], sign: int = sign) -> float:
            value = sign * scores[entry.name, metric].value
            return math.inf if math.isnan(value) else value

        rows = [(e, tuple(scores[e.name, metric] for metric in chosen)) for e in sorted(entries, key=place)]
        tables.append(LevelTable(level, tuple(metric.partition("/")[0] for metric in chosen), tuple(rows)))
    order = [entry.name for entry, _ in tables[0].rows] if tables else []
    together = ScoreTable(
        tuple((table.level, len(table.metrics)) for table in tables),
        tuple(metric for table in tables for metric in table.metrics),
        tuple((name, tuple(scores[name, metric] for metric in metrics)) for name in order),
        dataset=next((str(r.settings["dataset"]) for r in reports.values() if r.settings.get("dataset")), ""),
        warnings=seen_warnings(reports),
    )
    return Leaderboard(tuple(tables), (*together.warnings, *notes, *unit_note(metrics)), dict(failed or {}), together)
