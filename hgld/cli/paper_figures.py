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


def read_sweeps(one: "Experiment", folder: Path) -> list[Sweep]:
    """Read the tables of an experiment's sweeps, which its commands wrote in a folder."""
    found = []
    for words in map(shlex.split, one.commands.splitlines()):
        if "--sweep" in words:
            with (folder / words[words.index("--out") + 1] / "sweep.csv").open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            found.append(Sweep(words[2], next(iter(rows[0])), rows))
    return found


def increases(one: "Experiment", sweeps: Sequence[Sweep]) -> list[OwnResults]:
    """Return the user's relative increases of mAP@R, one per dataset and batch size, if the paper's figure shows them.

    The decomposability term causes the increase from Sup-AP's mAP@R to ROADMAP's mAP@R. The increase from a value of 0
    is undefined.
    """
    found = []
    for data, level in {v.dataset: v.level for v in one.values if v.metric == _INCREASE}.items():
        by_recipe = {sweep.recipe: dict(sweep.points(f"mAP@R/{level}")) for sweep in sweeps}
        term = by_recipe[f"roadmap-proxy-{data}"]
        for batch, before in by_recipe[f"sup-ap-{data}"].items():
            values = {f"{_INCREASE}/{level}": term[batch] / before - 1} if before and batch in term else {}
            found.append(OwnResults(f"your batch {batch:g}, {data}", data, values))
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
        curves = (
            _increase_curves(one, here) if shows_increase else [c for sweep in here for c in _curves(one.paper, sweep)]
        )
        lines = [
            (f"{curve.label}, {whose}", sorted(points), style, SERIES[i % len(SERIES)])
            for i, curve in enumerate(curves)
            for points, whose, style in ((curve.own, "yours", "-o"), (curve.published, "published", "--s"))
            if points
        ]

        def draw(axes: "Axes", lines: Any = lines, field: str = field) -> None:
            across = [x for _, points, _, _ in lines for x, _ in points]
            positive = [x for x in across if x > 0] or [1.0]
            scale = "log" if len(positive) == len(across) else "symlog"
            drawn = [
                (
                    axes.plot(
                        *zip(*points, strict=True), style, color=color, fillstyle=_FILLS[style[-1]], markersize=3.5
                    )[0],
                    label,
                )
                for label, points, style, color in lines
            ]
            axes.set(
                xlabel=field.rstrip("_").replace("_", " "),
                ylabel=f"{_INCREASE}, per cent" if shows_increase else "per cent",
                xscale=scale if max(positive) > _WIDE * min(positive) else "linear",
            )
            axes.xaxis.set_major_formatter("{x:g}")  # the formatter of a log axis would write formulas
            axes.set_title("\n".join(filter(None, [one.title, note])), fontsize=6.2)
            draw_legend(axes, drawn, loc="upper center", bbox_to_anchor=(0.5, -0.25), handlelength=3.5)

        name = one.title if len(here) == len(sweeps) else f"{one.title} {field}"
        figures.draw(name, one.title, draw, height=2.2 + 0.11 * len(lines))
    return figures.files


def _increase_curves(one: "Experiment", sweeps: Sequence[Sweep]) -> Iterator[_Curve]:
    own = increases(one, sweeps)
    batches = re.compile(r"batch (\d+)")
    for data in dict.fromkeys(value.dataset for value in one.values):
        mine = [
            (float(batches.findall(result.name)[0]), 100 * value)
            for result in own
            if result.dataset == data
            for value in result.values.values()
        ]
        theirs = [
            (float(batches.findall(value.setting)[0]), value.number or 0.0)
            for value in one.values
            if value.dataset == data
        ]
        yield _Curve(data, mine, theirs)


def _curves(paper: str, sweep: Sweep) -> Iterator[_Curve]:
    """Return the curves of a sweep: the recipe's metrics, its monitor first, with the values that the paper prints.

    The paper's tables have one value, at the recipe's own value of the swept option. The text of the paper may have
    further values, whose setting names the option: ``lambda=0.3``.
    """
    from hgld.training.config import flat
    from hgld.training.recipes import RECIPES

    recipe = RECIPES[sweep.recipe]
    option = re.compile(rf"\b{sweep.field.rstrip('_')}=([\d.]+)")
    of_text = [
        value
        for value in published_values()
        if value.paper == paper and value.dataset == recipe.dataset and fold(value.method) in fold(recipe.name)
    ]
    names = {value.name: value for value in recipe.values if value.unit == "%" and sweep.points(value.name)}
    for name in sorted(names, key=lambda name: name != recipe().run.monitor)[:_MOST_METRICS]:
        theirs = [(float(flat(recipe())[sweep.field]), names[name].number or 0.0)]
        theirs += [
            (float(found[1]), value.number or 0.0)
            for value in of_text
            if value.name == name and (found := option.search(value.setting))
        ]
        yield _Curve(f"{recipe.name}, {name}", [(x, 100 * y) for x, y in sweep.points(name)], theirs)
