"""Answers of calibrated runs: the risk of answering against the share that is answered, level by level."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hgld.prediction.risk import LevelRisk
from hgld.report_page.figures import SERIES, Figure, Figures, clean, draw_legend
from hgld.report_page.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class AnswerRisks:
    """The section of a page on answers.

    Attributes:
        rows: run, split and risk of every level.
        figures: a risk-coverage curve a level.
        notes: a line a run: for which queries and gallery its confidences hold.
    """

    rows: tuple[tuple[str, str, LevelRisk], ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()


def answer_risks(figures: Figures, runs: Sequence[Run]) -> AnswerRisks:
    """Draw the risk-coverage curves of the runs that have a calibration (``hgld calibrate``)."""
    rows = [
        (run.name, split, risk)
        for run in runs
        if run.calibration is not None
        for split, risks in run.calibration.risks.items()
        for risk in risks
    ]
    levels = dict.fromkeys(risk.level for _, _, risk in rows)
    drawn = tuple(_draw(figures, level, [row for row in rows if row[2].level == level], runs) for level in levels)
    notes = [
        f"{run.name}: {made.neighbors} neighbours vote; {made.unknown:.0%} of the queries are of classes that the "
        "gallery lacks. The first split by cross-validation over its classes."
        for run in runs
        if (made := run.calibration) is not None
    ]
    notes += [f"{run.name}: answers are not shown: {run.uncalibrated}" for run in runs if run.uncalibrated]
    return AnswerRisks(tuple(rows), drawn, tuple(notes))


def _draw(figures: Figures, level: str, rows: list[tuple[str, str, LevelRisk]], runs: Sequence[Run]) -> Figure:
    order = [run.name for run in runs]
    styles: dict[str, list[str]] = {}  # the first split of a run is solid

    def draw(axes: "Axes") -> None:
        entries = []
        for name, split, risk in rows:
            seen = styles.setdefault(name, [])
            seen += [split] if split not in seen else []
            line = axes.plot(
                risk.coverage,
                risk.risk,
                color=SERIES[order.index(name) % len(SERIES)],
                linestyle=("-", "--", ":")[min(seen.index(split), 2)],
            )[0]
            entries.append((line, f"{clean(name, 20)}, {clean(split, 12)}  ({risk.area:.3f})"))
        axes.set(xlim=(0, 1), ylim=(0, None))
        axes.set(xlabel="coverage: share answered", ylabel="risk: share of wrong answers")
        draw_legend(axes, entries, title="mean risk", title_fontsize=8, loc="best")

    return figures.draw(f"answers-{level}", f"Risk and coverage, {clean(level)}", draw, term="risk and coverage")
