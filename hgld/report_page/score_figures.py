"""Figures of scores: which run is better at each level, and whether the differences are more than chance."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hgld.report_page.figures import GRID, SERIES, Figure, Figures, clean, draw_legend
from hgld.report_page.latex import row_labels
from hgld.report_page.scores import Score, ScoreTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROOM = 0.6  # of the distance of two metrics that the rows take


def draw_scores(figures: Figures, table: ScoreTable, where: str) -> list[Figure]:
    """Draw a figure per level, and one of the differences between runs.

    Args:
        figures: drawer.
        table: values of one task.
        where: name of the task.
    """
    _, labels = row_labels([name for name, _ in table.runs])
    rows = [(clean(label, 24), scores) for label, (_, scores) in zip(labels, table.runs, strict=True)]
    with_seeds = any(score.seeds > 1 for _, scores in rows for score in scores)
    bars = "standard deviation over seeds" if with_seeds else "95 % interval"
    drawn, column = [], 0
    for level, count in table.groups:
        parts = [(label, scores[column : column + count]) for label, scores in rows]
        title = f"Which is better at {clean(level, 28)}?"
        name, column = f"{where}-scores-{level}", column + count
        draw = _dots(parts, [clean(score.metric.partition("/")[0], 16) for score in parts[0][1]])
        drawn.append(
            figures.draw(name, title, draw, term="scores", note=f"Bars: {bars}.", size=(4.3, _height(parts, count)))
        )
    others = [(label, scores) for label, scores in rows if any(not math.isnan(score.difference) for score in scores)]
    if others and table.baseline:
        first = clean(dict(zip((name for name, _ in table.runs), labels, strict=True))[table.baseline], 24)
        draw = _dots(others, [clean(score.metric, 24) for score in others[0][1]], differences=True)
        title, note = f"Is the difference to {first} more than chance?", "Bars: 95 % interval of the difference."
        size = (4.3, _height(others, len(others[0][1])))
        drawn.append(figures.draw(f"{where}-differences", title, draw, term="differences", note=note, size=size))
    return drawn


def _height(rows: Sequence[object], metrics: int) -> float:
    return min(12.0, 1.0 + metrics * (0.2 + 0.12 * len(rows)))


def _dots(
    rows: Sequence[tuple[str, Sequence[Score]]], metrics: Sequence[str], *, differences: bool = False
) -> "Callable[[Axes], None]":
    """Return the drawing of a dot per run and metric with its bar, the first metric on top."""

    def draw(axes: "Axes") -> None:
        entries = []
        for number, (label, scores) in enumerate(rows):
            color = SERIES[(number + differences) % len(SERIES)]
            ends = [_ends(score, differences=differences) for score in scores]
            places = [-(i + _ROOM * ((number + 0.5) / len(rows) - 0.5)) for i in range(len(scores))]
            values = [value for value, _, _ in ends]
            apart = [[value - low for value, low, _ in ends], [high - value for value, _, high in ends]]
            dots = axes.errorbar(values, places, xerr=apart, fmt="o", color=color, markersize=3.5, linewidth=1.2)
            entries.append((dots, label))
        if differences:
            axes.axvline(0, color=GRID, linewidth=1.2, zorder=0)
        axes.set_yticks([-i for i in range(len(metrics))], metrics)
        axes.set(xlabel="difference in points" if differences else "per cent", ylim=(-len(metrics) + 0.4, 0.6))
        draw_legend(axes, entries, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=1)

    return draw


def _ends(score: Score, *, differences: bool) -> tuple[float, float, float]:
    """Return a value and the ends of its bar, in the unit of tables; without a bar the value thrice."""
    if differences:
        value, low, high = score.difference, score.difference_low, score.difference_high
    elif math.isnan(score.deviation):
        value, low, high = score.value, score.low, score.high
    else:
        value, low, high = score.value, score.value - score.deviation, score.value + score.deviation
    value, low, high = (score.scale * end for end in (value, low, high))
    return value, value if math.isnan(low) else low, value if math.isnan(high) else high
