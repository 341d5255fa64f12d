"""Plots of the report page: precision and recall, grades by rank, training, and the risk of predictions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hgld.metrics import GainFunction
from hgld.prediction import LevelRisk
from hgld.report_page.figures import Figure, Figures, Line, clean, grade_color
from hgld.report_page.rankings import FirstRanks
from hgld.report_page.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# -- precision and recall ----------------------------------------------------------------------------------------------

RECALLS = (np.arange(100) + 0.5) / 100  # the mean precision at these midpoints is the area under the curve


def precision_recall(
    grades: np.ndarray, gains: np.ndarray, recalls: np.ndarray = RECALLS, places: np.ndarray | None = None
) -> np.ndarray | None:
    """Compute the hierarchical precision of one ranking at given hierarchical recalls.

    At rank k, recall is the gain of the first k items over the gain of all. Precision at a relevant k is the sum over
    j <= k of min(gain_k, gain_j), divided by k times gain_k (Ramzi et al., "Hierarchical Average Precision Training for
    Pertinent Image Retrieval", ECCV 2022, Eq. 4). The area under this curve is H-AP. With gains of 0 and 1 it is the
    usual precision-recall curve, and the area is AP.

    Args:
        grades: (G,) grades in the order of the ranking.
        gains: (L + 1,) gain of each grade; ``gains[0]`` is 0.
        recalls: (R,) recalls in (0, 1].
        places: (G,) ranks of the items in ``grades``, from 0, if ``grades`` has only some items of the ranking; None:
            the ranks 0 to G - 1.

    Returns:
        (R,) precision at the first rank that reaches each recall; None if no item is relevant.
    """
    kept = np.flatnonzero((gains > 0).take(grades))
    if not len(kept):
        return None
    wanted, values = recalls * (1 - 1e-12), {*gains.tolist()} - {0.0}
    places = kept if places is None else places[kept]
    if len(values) == 1:  # the gain is a count: no sums are needed
        found = np.maximum(np.ceil(wanted * len(kept)).astype(int), 1)
        return found / (places[found - 1] + 1)
    gain = gains.take(grades[kept])
    recall = np.cumsum(gain)
    at = np.minimum(np.searchsorted(recall, wanted * recall[-1]), len(places) - 1)
    shared = np.zeros(len(at))
    for value in values:
        found = np.searchsorted(np.flatnonzero(gain == value), at, side="right")
        shared += found * np.minimum(gain[at], value)
    return shared / ((places[at] + 1) * gain[at])


class MeanCurves:
    """Mean precision-recall curves of every level and of the hierarchy, over the queries that have positives.

    Args:
        gain: gain function of the hierarchical curve.
        num_levels: number of levels L.
    """

    def __init__(self, gain: GainFunction, num_levels: int) -> None:
        grade = np.arange(num_levels + 1)
        self._gain = gain
        self._levels = [(grade >= num_levels - level).astype(float) for level in range(num_levels)]
        self._sums, self._defined = np.zeros((num_levels + 1, len(RECALLS))), np.zeros(num_levels + 1, np.int64)

    def add(self, grades: np.ndarray) -> None:
        """Add queries to the mean curves, given the (Q, G) grades of their whole rankings, best first."""
        counts = np.stack([(grades == grade).sum(axis=1) for grade in range(len(self._levels) + 1)], axis=1)
        for ranking, gains in zip(grades, self._gain.of_counts(torch.from_numpy(counts)).numpy(), strict=True):
            places = np.flatnonzero(ranking > 0)  # most items of a large gallery have grade 0 and change no curve
            relevant = ranking[places]
            for i, gain in enumerate([*self._levels, gains]):
                curve = precision_recall(relevant, gain, places=places)
                if curve is not None:
                    self._sums[i] += curve
                    self._defined[i] += 1

    def means(self) -> list[np.ndarray | None]:
        """Return the curves of every level, finest first, then of the hierarchy; None for a curve without queries."""
        return [total / number if number else None for total, number in zip(self._sums, self._defined, strict=True)]


def draw_precision_recall(
    figures: Figures, curves: Mapping[str, MeanCurves], levels: Sequence[str], note: str, split: str
) -> list[Figure]:
    """Draw one figure per level and one of the hierarchy, each with one line per run."""
    drawn = []
    means = [(series, name, found.means()) for series, (name, found) in enumerate(curves.items())]
    for i, what in enumerate([*levels, ""]):
        kind = "" if what else "hierarchical "
        lines = [
            Line(f"{clean(name, 28)}  ({curve.mean():.3f})", RECALLS.tolist(), curve.tolist(), series)
            for series, name, found in means
            if (curve := found[i]) is not None
        ]
        drawn.append(
            figures.draw_lines(
                f"{split}-precision-recall-{what or 'hierarchy'}",
                f"Precision and recall, {clean(what)}" if what else "Hierarchical precision and recall",
                lines,
                term="precision and recall" if what else "H-precision",
                note=note,
                legend="area under the curve",
                xlim=(0, 1),
                ylim=(0, 1.02),
                xlabel=f"{kind}recall",
                ylabel=f"{kind}precision",
            )
        )
    return drawn


# -- grades by rank ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Severity:
    """Grades of the first results of a run: the levels that they share with their queries.

    Attributes:
        by_rank: (ranks, L + 1) share of queries with each grade 0..L at every rank; (0, L + 1) without queries.
        queries: number of queries whose finest class has another item; only these are counted.
    """

    by_rank: np.ndarray
    queries: int

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of queries whose first item has grade L, L - 1, ..., 0."""
        return tuple(self.by_rank[0, ::-1].tolist()) if self.queries else ()

    @property
    def mistakes(self) -> float:
        """Share of queries whose first item is not of their finest class; NaN without a query."""
        return float(self.by_rank[0, :-1].sum()) if self.queries else math.nan

    @property
    def mean(self) -> float:
        """Number of levels up to a common class, averaged over the mistakes; NaN without a mistake.

        The number is the height of the lowest common ancestor (Bertinetto et al., "Making Better Mistakes", CVPR 2020);
        it is L without a common class.
        """
        if not self.mistakes > 0:
            return math.nan
        # steps up the hierarchy for the grades 0 .. L - 1
        heights = np.arange(self.by_rank.shape[1] - 1, 0, -1)
        return float(self.by_rank[0, :-1] @ heights / self.mistakes)


def severity(first: FirstRanks, num_levels: int) -> Severity:
    """Count the grades at the first ranks, over queries whose finest class has another item."""
    top = first.grades[first.findable]  # (Q, ranks)
    if not len(top):
        return Severity(np.zeros((0, num_levels + 1)), 0)
    return Severity(np.stack([(top == grade).mean(axis=0) for grade in range(num_levels + 1)], axis=1), len(top))


def draw_severity(figures: Figures, found: Mapping[str, Severity], levels: Sequence[str], split: str) -> list[Figure]:
    """Draw, for every run, the grades at the first ranks as a stacked bar per rank."""
    drawn = []
    labels = ["nothing in common", *(f"same {clean(level, 24)}" for level in reversed(levels))]
    for name, severities in found.items():
        if not severities.queries:
            continue

        def draw(axes: "Axes", by_rank: np.ndarray = severities.by_rank) -> None:
            ranks, bottom = np.arange(1, len(by_rank) + 1), np.zeros(len(by_rank))
            for grade in reversed(range(len(labels))):
                color, shares = grade_color(grade, len(levels)), 100 * by_rank[:, grade]
                axes.bar(ranks, shares, bottom=bottom, width=0.86, color=color, label=labels[grade])
                bottom += shares
            axes.set(xlabel="rank", ylabel="% of queries", ylim=(0, 100), xlim=(0.4, len(by_rank) + 0.6))
            axes.set_xticks([rank for rank in (1, 5, 10, 15, 20) if rank <= len(by_rank)])
            axes.grid(visible=False)
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=1, columnspacing=1)

        note = f"{severities.queries:,} queries that have an item of their own {clean(levels[0])} in the gallery."
        title, term = f"Grades by rank, {clean(name)}", "mistake severity"
        drawn.append(figures.draw(f"{split}-severity-{name}", title, draw, term=term, note=note, height=2.4))
    return drawn


# -- training ----------------------------------------------------------------------------------------------------------

_MOST_POINTS = 600
_MOST_COLUMNS = 6


def draw_training(figures: Figures, runs: Sequence[Run], metrics: Sequence[str]) -> list[Figure]:
    """Draw losses and rates over the steps, and metrics over the epochs."""
    drawn = []
    logged = [run for run in runs if "step" in run.log]
    for column in _columns(logged):
        tables = {run.name: (run.log["step"], run.log[column]) for run in logged if column in run.log}
        drawn.append(_draw_course(figures, f"training-{column}", clean(column), "step", tables))
    for split in sorted({split for run in runs for split in run.history}):
        for metric in metrics:
            histories = {run.name: run.history[split] for run in runs if split in run.history}
            tables = {n: (t["epoch"], t[metric]) for n, t in histories.items() if metric in t and "epoch" in t}
            if any(len(x) > 1 for x, _ in tables.values()):
                title = f"{clean(metric)} on {clean(split)}"
                drawn.append(_draw_course(figures, f"training-{split}-{metric}", title, "epoch", tables, marker="o"))
    return drawn


def _columns(runs: Sequence[Run]) -> list[str]:
    """Return the columns of the logs to draw: the loss and its parts, one learning rate, other columns."""
    known = dict.fromkeys(c for run in runs for c in run.log if c not in {"step", "epoch"})
    finite = [c for c in known if any(math.isfinite(v) for run in runs for v in run.log.get(c, []))]
    losses = [c for c in finite if "loss" in c.lower()]
    rates = [c for c in finite if c.lower().startswith(("lr", "rate", "learning_rate"))]
    others = [c for c in finite if c not in losses and c not in rates]
    return [*losses, *rates[:1], *others][:_MOST_COLUMNS]


def _draw_course(
    figures: Figures,
    name: str,
    title: str,
    axis: str,
    tables: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    marker: str = "",
) -> Figure:
    lines, is_thinned = [], False
    for series, (run, (across, up)) in enumerate(tables.items()):
        points = np.array([across, up], dtype=float)
        points = points[:, np.isfinite(points).all(axis=0)]
        width = max(1, math.ceil(points.shape[1] / _MOST_POINTS))
        if width > 1:
            is_thinned, starts = True, np.arange(0, points.shape[1], width)
            points = np.add.reduceat(points, starts, axis=1) / np.diff(starts, append=points.shape[1])
        lines.append(Line(clean(run, 28), points[0].tolist(), points[1].tolist(), series))
    note = f"Means of neighbouring steps, at most {_MOST_POINTS} points per line." if is_thinned else ""
    return figures.draw_lines(name, title, lines, term="training curve", note=note, marker=marker, xlabel=axis)


# -- risk of answers ---------------------------------------------------------------------------------------------------


def draw_answer_risks(figures: Figures, runs: Sequence[Run]) -> dict[str, Any]:
    """Draw the risk-coverage curves of the runs that have a calibration (``hgld calibrate``).

    Returns:
        variables of the page's template: ``rows`` (run, split and risk of every level), ``figures`` (two per level) and
        ``notes`` (a line per run).
    """
    rows, notes, by_level = [], [], dict[str, tuple[list[Line], list[Line]]]()
    for series, run in enumerate(runs):
        if run.calibration is None:
            continue
        notes.append(
            f"{run.name}: {run.calibration.neighbors} neighbours vote; {run.calibration.unknown:.0%} of the queries "
            "are of classes that the gallery lacks. The first split is cross-validated over its classes."
        )
        for place, (split, risks) in enumerate(run.calibration.risks.items()):
            for risk in risks:
                rows.append((run.name, split, risk))
                label, style = f"{clean(run.name, 20)}, {clean(split, 12)}", ("-", "--", ":")[min(place, 2)]
                curves, reliabilities = by_level.setdefault(risk.level, ([], []))
                curves.append(Line(f"{label}  ({risk.area:.3f})", risk.coverage, risk.risk, series, style))
                if risk.queries:
                    reliabilities.append(Line(label, *reliability(risk), series, style))
    drawn = []
    for level, (curves, reliabilities) in by_level.items():
        ends: dict[str, Any] = {"xlim": (0, 1), "ylim": (0, None)}
        axes = {"xlabel": "coverage: share answered", "ylabel": "risk: share of wrong answers", **ends}
        title, term = f"Risk and coverage, {clean(level)}", "risk and coverage"
        drawn.append(figures.draw_lines(f"answers-{level}", title, curves, term=term, legend="mean risk", **axes))
        axes = {"xlabel": "mean confidence of a tenth", "ylabel": "share of right answers", **ends}
        lines, title = [*reliabilities, Line("equal", (0, 1), (0, 1), len(runs), ":")], f"Reliability, {clean(level)}"
        drawn.append(figures.draw_lines(f"reliability-{level}", title, lines, term="reliability", marker=".", **axes))
    return {"rows": rows, "figures": drawn, "notes": notes}


def reliability(risk: LevelRisk, parts: int = 10) -> tuple[list[float], list[float]]:
    """Return mean confidence and share of right predictions of equal parts of the queries, the least confident first.

    Both numbers are computed from the risk-coverage curve. Between two points of the curve, the confidence is the mean
    of their confidences.
    """
    coverage, ends = np.array([0.0, *risk.coverage]), np.array([risk.threshold[0], *risk.threshold])
    sure = np.cumsum([0.0, *((ends[1:] + ends[:-1]) / 2 * np.diff(coverage))])
    right = coverage * (1 - np.array([0.0, *risk.risk]))
    edges = np.linspace(0, coverage[-1], parts + 1)
    means = (np.diff(np.interp(edges, coverage, sums)) / np.diff(edges) for sums in (sure, right))
    confidence, accuracy = (mean.clip(0, 1)[::-1].tolist() for mean in means)
    return confidence, accuracy
