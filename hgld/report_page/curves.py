"""Curves: precision against recall at every level and over all of them, and training over its steps."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hgld.metrics import GainFunction
from hgld.report_page.figures import SERIES, Figure, Figures, clean, draw_legend
from hgld.report_page.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECALLS = (np.arange(100) + 0.5) / 100  # the middles of a hundred parts: their mean is the area under the curve
_MOST_POINTS = 600
_LOSS_PARTS = 6
_NOT_DRAWN = {"step", "epoch"}
_SHARE = "gradient_share_"


def precision_recall(grades: np.ndarray, gains: np.ndarray, recalls: np.ndarray = RECALLS) -> np.ndarray | None:
    """Compute the hierarchical precision of one ranking where it reaches given hierarchical recalls.

    At rank k, recall is the gain of the first k items over the gain of all, and precision at a relevant k is
    sum over j <= k of min(gain_k, gain_j), over k times gain_k (Ramzi et al., "Hierarchical Average Precision Training
    for Pertinent Image Retrieval", ECCV 2022, Eq. 4). The area under this curve is H-AP; with gains of 0 and 1
    it is the common precision-recall curve, and the area AP.

    Args:
        grades: (G,) grades in the order of the ranking.
        gains: (L + 1,) gain of each grade; ``gains[0]`` is 0.
        recalls: (R,) in (0, 1].

    Returns:
        (R,) precision at the first rank whose recall is at least so high; None where nothing is relevant.
    """
    places = np.flatnonzero((gains > 0)[grades])
    if not len(places):
        return None
    wanted = recalls * (1 - 1e-12)
    if len(np.unique(gains[gains > 0])) == 1:  # all items count alike: no sums over them are needed
        at = _first_reaching(wanted, len(places))
        return (at + 1) / (places[at] + 1)
    grades = grades[places]
    gain = gains[grades]
    recall = np.cumsum(gain)
    at = np.minimum(np.searchsorted(recall / recall[-1], wanted), len(places) - 1)
    shared = np.zeros(len(at))
    for grade in np.flatnonzero(gains):
        found = np.searchsorted(np.flatnonzero(grades == grade), at, side="right")
        shared += found * np.minimum(gain[at], gains[grade])
    return shared / ((places[at] + 1) * gain[at])


def _first_reaching(recalls: np.ndarray, relevant: int) -> np.ndarray:
    """Return for each recall below 1 the least i for which (i + 1) / relevant is not less."""
    at = np.clip(np.ceil(recalls * relevant).astype(np.int64) - 1, 0, relevant - 1)
    at -= (at > 0) & (at / relevant >= recalls)  # products round
    return at + ((at + 1) / relevant < recalls)


class MeanCurves:
    """Curves of every level and of the hierarchy: means over the queries that have one.

    Args:
        gain: of a grade to a query, for the hierarchy.
        num_levels: L.
    """

    def __init__(self, gain: GainFunction, num_levels: int) -> None:
        grade = np.arange(num_levels + 1)
        self._gain = gain
        self._levels = [(grade >= num_levels - level).astype(float) for level in range(num_levels)]
        self._sums, self._defined = np.zeros((num_levels + 1, len(RECALLS))), np.zeros(num_levels + 1, np.int64)

    def add(self, grades: np.ndarray) -> None:
        """Add a query, by the grades of its whole ranking, best first."""
        counts = np.bincount(grades, minlength=len(self._levels) + 1)
        for i, gains in enumerate([*self._levels, self._gain.gains(counts[None])[0]]):
            curve = precision_recall(grades, gains)
            if curve is not None:
                self._sums[i] += curve
                self._defined[i] += 1

    def means(self) -> list[np.ndarray | None]:
        """Return the curves of every level, finest first, and of the hierarchy at the end; None without any query."""
        return [total / number if number else None for total, number in zip(self._sums, self._defined, strict=True)]


def draw_precision_recall(
    figures: Figures, curves: Mapping[str, Sequence[np.ndarray | None]], levels: Sequence[str], note: str, split: str
) -> list[Figure]:
    """Draw a figure a level and one of the hierarchy, a line a run."""
    drawn = []
    for i, what in enumerate([*levels, ""]):
        title = f"Precision and recall, {clean(what)}" if what else "Hierarchical precision and recall"
        lines = {name: found[i] for name, found in curves.items()}

        def draw(axes: "Axes", lines: Mapping[str, np.ndarray | None] = lines, hierarchical: bool = not what) -> None:
            drawn_lines = []
            for series, (name, curve) in enumerate(lines.items()):
                if curve is not None:
                    line = axes.plot(RECALLS, curve, color=SERIES[series % len(SERIES)])[0]
                    drawn_lines.append((line, f"{clean(name, 28)}  ({curve.mean():.3f})"))
            axes.set(xlim=(0, 1), ylim=(0, 1.02))
            axes.set_xlabel("hierarchical recall" if hierarchical else "recall")
            axes.set_ylabel("hierarchical precision" if hierarchical else "precision")
            draw_legend(axes, drawn_lines, title="area under the curve", title_fontsize=8, loc="best")

        name, term = (
            f"{split}-precision-recall-{what or 'hierarchy'}",
            "precision and recall" if what else "H-precision",
        )
        drawn.append(figures.draw(name, title, draw, term=term, note=note))
    return drawn


def draw_training(figures: Figures, runs: Sequence[Run], metrics: Sequence[str]) -> list[Figure]:
    """Draw losses and rates over the steps, metrics over the epochs, of the runs that have a log."""
    drawn = []
    for column in _columns(runs):
        lines = {
            run.name: (run.log["step"], run.log[column]) for run in runs if "step" in run.log and column in run.log
        }
        drawn.append(_draw_lines(figures, f"training-{column}", clean(column), "step", lines))
    shares = {
        column if len(runs) == 1 else f"{run.name}: {column}": (run.log["step"], run.log[name])
        for run in runs
        for name in run.log
        if (column := name.removeprefix(_SHARE)) != name and "step" in run.log
    }
    if shares:
        drawn.append(_draw_lines(figures, "training-gradient-shares", "Share of the gradient", "step", shares))
    for split in sorted({split for run in runs for split in run.history}):
        for metric in metrics:
            tables = {run.name: run.history[split] for run in runs if split in run.history}
            lines = {n: (t["epoch"], t[metric]) for n, t in tables.items() if metric in t and "epoch" in t}
            if any(len(x) > 1 for x, _ in lines.values()):
                title = f"{clean(metric)} on {clean(split)}"
                drawn.append(_draw_lines(figures, f"training-{split}-{metric}", title, "epoch", lines, marker="o"))
    return drawn


def _columns(runs: Sequence[Run]) -> list[str]:
    """Choose the columns of the logs to draw: the loss, its parts, the rates."""
    known = list(dict.fromkeys(c for run in runs for c in run.log if c not in _NOT_DRAWN and not c.startswith(_SHARE)))
    finite = [c for c in known if any(math.isfinite(v) for run in runs for v in run.log.get(c, []))]
    losses = [c for c in finite if "loss" in c.lower()]
    rates = [c for c in finite if c.lower().startswith(("lr", "rate", "learning_rate"))]
    others = [c for c in finite if c not in losses and c not in rates]
    return [*losses, *rates[:1], *others][:_LOSS_PARTS]


def _draw_lines(
    figures: Figures,
    name: str,
    title: str,
    axis: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    marker: str = "",
) -> Figure:
    thinned = any(len(x) > _MOST_POINTS for x, _ in lines.values())

    def draw(axes: "Axes") -> None:
        drawn_lines = []
        for series, (run, (x, y)) in enumerate(lines.items()):
            across, up = _averaged(np.asarray(x, float), np.asarray(y, float))
            color = SERIES[series % len(SERIES)]
            line = axes.plot(across, up, color=color, marker=marker, markersize=3.5)[0]
            drawn_lines.append((line, clean(run, 28)))
        axes.set_xlabel(axis)
        draw_legend(axes, drawn_lines, loc="best")

    note = f"Means of neighbouring steps, at most {_MOST_POINTS} points a line." if thinned else ""
    return figures.draw(name, title, draw, term="training curve", note=note)


def _averaged(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    width = math.ceil(len(x) / _MOST_POINTS)
    if width <= 1:
        return x, y
    starts = np.arange(0, len(x), width)
    sizes = np.diff(starts, append=len(x))
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes
