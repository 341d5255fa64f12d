"""Figures of papers that show a sweep of one option, drawn from a user's runs beside the published values."""

import csv
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgld.published import OwnResults, published_values
from hgld.published.results import fold

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hgld.published.experiments import Experiment

_INCREASE = "mAP@R increase"  # relative increase of mAP@R in SupRank's Figure 6, which no report of hgld has
_MOST_METRICS = 2  # maximum number of metrics per sweep in a figure
_UNITS = {"%": "per cent", "1": "share"}  # units that figures show
_PRINTED = {"batch_size": "B", "images_per_class": "|P|"}  # symbols of options in the settings of published values
_WIDE = 30  # if the ratio of x values is larger, small values would coincide on a linear axis
_FILLS: dict[str, Any] = {"o": "full", "s": "none"}  # published values have hollow markers
_Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Sweep:
    """A sweep of an experiment: its recipe and the table that ``hgld train --sweep`` wrote.

    Attributes:
        recipe: name of the recipe.
        field: name of the swept option.
        rows: rows of ``sweep.csv``, by column.
    """

    recipe: str
    field: str
    rows: Sequence[Mapping[str, str]]

    def points(self, metric: str) -> _Points:
        """Return pairs of swept value and metric, without runs that did not finish."""
        return [(float(row[self.field]), float(row[metric])) for row in self.rows if row.get(metric)]


@dataclass(frozen=True)
class _Curve:
    label: str
    own: _Points
    published: _Points
    unit: str


def read_sweeps(one: "Experiment", folder: Path) -> list[Sweep]:
    """Read the tables of an experiment's sweeps of numbers, which its commands wrote in a folder."""
    found = []
    for words in map(shlex.split, one.commands.splitlines()):
        if "--sweep" in words:
            with (folder / words[words.index("--out") + 1] / "sweep.csv").open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            field = next(iter(rows[0]))
            if all(re.fullmatch(r"[\d.e+-]+", row[field]) for row in rows):  # else a choice of words, as in ``ties``
                found.append(Sweep(words[2], field, rows))
    return found


def increases(one: "Experiment", sweeps: Sequence[Sweep]) -> list[OwnResults]:
    """Return the user's relative increases of mAP@R, one per dataset and batch size, if the paper's figure shows them.

    The decomposability term causes the increase from Sup-AP's mAP@R to ROADMAP's mAP@R. The increase from a value of 0
    is undefined.
    """
    return [
        OwnResults(f"your batch {batch:g}, {data}", data, {} if value is None else {f"{_INCREASE}/{level}": value})
        for (data, level), points in _increase_points(one, sweeps).items()
        for batch, value in points
    ]


def _increase_points(
    one: "Experiment", sweeps: Sequence[Sweep]
) -> dict[tuple[str, str], list[tuple[float, float | None]]]:
    """Return pairs of batch size and relative increase by dataset and level; None for an undefined increase."""
    found = {}
    for data, level in {v.dataset: v.level for v in one.values if v.metric == _INCREASE}.items():
        by_recipe = {sweep.recipe: dict(sweep.points(f"mAP@R/{level}")) for sweep in sweeps}
        before, after = by_recipe[f"sup-ap-{data}"], by_recipe[f"roadmap-proxy-{data}"]
        found[data, level] = [
            (batch, after[batch] / value - 1 if value and batch in after else None) for batch, value in before.items()
        ]
    return found


def draw_sweeps(one: "Experiment", sweeps: Sequence[Sweep], folder: Path, *, note: str = "") -> list[str]:
    """Draw a figure per swept option, and return the names of its PDF and PNG files.

    Solid lines are the user's runs. Dashed lines and single points of the same colour are published values.

    Args:
        one: the experiment.
        sweeps: results of :func:`read_sweeps`.
        folder: folder of the files.
        note: second line of the title.
    """
    from hgld.report_page.figures import SERIES, Figures, draw_legend

    figures, shows_increase = Figures(folder), any(value.metric == _INCREASE for value in one.values)
    for field in dict.fromkeys(sweep.field for sweep in sweeps):
        here = [sweep for sweep in sweeps if sweep.field == field]
        others = (curve for sweep in here for curve in _curves(one.paper, sweep))
        curves = list(_increase_curves(one, here) if shows_increase else others)
        curves = [curve for curve in curves if curve.unit == curves[0].unit]
        lines = [
            (f"{curve.label}, {whose}", sorted(points), style, SERIES[i % len(SERIES)])
            for i, curve in enumerate(curves)
            for points, whose, style in ((curve.own, "yours", "-o"), (curve.published, "published", "--s"))
            if points
        ]

        def draw(axes: "Axes", lines: Any = lines, field: str = field, unit: str = curves[0].unit) -> None:
            across = [x for _, points, _, _ in lines for x, _ in points]
            positive = [x for x in across if x > 0] or [1.0]
            scale = "log" if len(positive) == len(across) else "symlog"
            drawn = []
            for label, points, style, color in lines:
                look = {"color": color, "fillstyle": _FILLS[style[-1]], "markersize": 3.5}
                drawn.append((axes.plot(*zip(*points, strict=True), style, **look)[0], label))
            axes.set(
                xlabel=field.rstrip("_").replace("_", " "),
                ylabel=unit,
                xscale=scale if max(positive) > _WIDE * min(positive) else "linear",
            )
            axes.xaxis.set_major_formatter("{x:g}")  # the formatter of a log axis would write formulas
            axes.set_title("\n".join(filter(None, [one.title, note])), fontsize=6.2)
            draw_legend(axes, drawn, loc="upper center", bbox_to_anchor=(0.5, -0.25), handlelength=3.5)

        name = one.title if len(here) == len(sweeps) else f"{one.title} {field}"
        figures.draw(name, one.title, draw, height=2.2 + 0.11 * len(lines))
    return figures.files


def _increase_curves(one: "Experiment", sweeps: Sequence[Sweep]) -> Iterator[_Curve]:
    for (data, _), points in _increase_points(one, sweeps).items():
        own = [(batch, 100 * value) for batch, value in points if value is not None]
        rows = [value for value in one.values if value.dataset == data and value.number is not None]
        theirs = [(float(value.setting.removeprefix("batch ")), float(value.text)) for value in rows]
        yield _Curve(data, own, theirs, f"{_INCREASE}, per cent")


def _curves(paper: str, sweep: Sweep) -> Iterator[_Curve]:
    """Return the curves of a sweep: the recipe's metrics, its monitor first, with the values that the paper prints.

    A published value names the option in its setting, such as ``lambda=0.3``. The recipe's own published value is added
    unless the paper has an ablation of the option, in which other options differ from the recipe. Without a metric of
    the paper, the curve is the monitor of the user's runs.
    """
    from hgld.training.config import flat
    from hgld.training.recipes import RECIPES

    recipe = RECIPES[sweep.recipe]
    monitor, usual = recipe().run.monitor, float(flat(recipe())[sweep.field])
    option = _PRINTED.get(sweep.field, sweep.field.rstrip("_"))
    ablation = f"ablation of {option}:"
    stated = re.compile(rf"(?<!\w){re.escape(option)}=([\d.]+)")
    of_text = [
        value
        for value in published_values()
        if (value.paper, value.dataset) == (paper, recipe.dataset)
        and fold(value.method) in fold(recipe.name)
        and value.number is not None
        and ("ablation of" not in value.setting or ablation in value.setting)
    ]
    printed = [value for value in recipe.values if value.dataset == recipe.dataset and value.number is not None]
    names = {value.name: value for value in printed if value.unit in _UNITS and sweep.points(value.name)}
    chosen = sorted(names, key=lambda name: name.partition("/")[0] != monitor.partition("/")[0])[:_MOST_METRICS]
    for name in chosen:
        here = [value for value in of_text if value.name == name]
        theirs = [(float(found[1]), float(one.text)) for one in here if (found := stated.search(one.setting))]
        if not any(ablation in value.setting for value in here):
            theirs.append((usual, float(names[name].text)))
        own = [(x, names[name].in_unit(y)) for x, y in sweep.points(name)]
        yield _Curve(f"{recipe.name}, {name}", own, theirs, _UNITS[names[name].unit])
    if not chosen:
        name = next((name for name in sweep.rows[0] if name.partition("/")[0] == monitor.partition("/")[0]), "")
        yield _Curve(f"{recipe.name}, {name}", sweep.points(name), [], _UNITS["1"])
