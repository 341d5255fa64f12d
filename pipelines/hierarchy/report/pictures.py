"""Pictures of a build: the map of names, and the sizes of groups.

They are drawn with matplotlib and have the same bytes every time: as PNG files on white, and as SVG in the page's own
text colour, so that it is readable on a light and on a dark page. Names are drawn as text, never as formulas.
"""

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK = "#3b424c"
_MARK = "#b5562b"
_STYLE: Any = {  # Any: how matplotlib types these keys differs between its releases
    "svg.hashsalt": "hgld",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
}
_GOLDEN_ANGLE = 137.50776
_LARGEST_BARS = 30


@dataclass(frozen=True)
class Label:
    """A group's label on the map: its text and its place."""

    text: str
    x: float
    y: float


def group_color(rank: int) -> str:
    """Return the colour of the ``rank``-th largest group, ``#rrggbb``: hues a golden angle apart in OKLCH.

    OKLCH is by Ottosson (2020). Lightness stays between .54 and .68, which has a contrast of 3 : 1 on white and on
    near-black.
    """
    lightness = (0.60, 0.66, 0.54)[rank % 3]
    hue = math.radians(250 + rank * _GOLDEN_ANGLE)
    a, b = 0.125 * math.cos(hue), 0.125 * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _encode(channel)):02x}" for channel in linear)


def _encode(channel: float) -> float:
    """Convert linear light to sRGB, clipped to the gamut."""
    value = min(max(channel, 0.0), 1.0)
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055


def place_labels(
    names: Sequence[str], centres: np.ndarray, *, size: float, most: int, width: float, height: float
) -> list[Label]:
    """Return labels of groups that do not overlap, preferring the most important.

    Args:
        names: labels of the groups, the most important first.
        centres: (G, 2) places, x to the right and y downwards, inside ``width`` x ``height``.
        size: height of the letters, in the unit of the places.
        most: number of labels at most.
        width: of the drawing; labels are kept inside.
        height: of the drawing.
    """
    placed: list[Label] = []
    boxes: list[tuple[float, float, float, float]] = []
    for text, (x, y) in zip(names, centres, strict=True):
        half = 0.34 * size * len(text)
        if 2 * half > width:
            continue
        x = min(max(float(x), half), width - half)
        y = min(max(float(y), size), height - size / 2)
        box = (x - half, y - size, x + half, y + 0.35 * size)
        free = all(box[2] < b[0] or b[2] < box[0] or box[3] < b[1] or b[3] < box[1] for b in boxes)
        if free and len(placed) < most:
            placed.append(Label(text, round(x, 1), round(y, 1)))
            boxes.append(box)
    return placed


def draw_map(points: np.ndarray, radii: np.ndarray, colors: Sequence[str], labels: Sequence[Label]) -> Figure:
    """Draw the map of names: (N, 2) places with y downwards, N radii in the same unit, N colours, labels of groups."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 6.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axis_off()
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.scatter(points[:, 0], points[:, 1], s=(radii * 1.35) ** 2, c=list(colors), alpha=0.75, linewidths=0)
        for label in labels:
            box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
            axes.text(label.x, label.y, label.text, ha="center", va="center", fontsize=9, weight="bold", bbox=box)
    return figure


def draw_sizes(labels: Sequence[str], sizes: Sequence[int], colors: Sequence[str], unit: str = "landmarks") -> Figure:
    """Draw bars of the largest groups; a line of text states how many others are not drawn."""
    shown = min(len(labels), _LARGEST_BARS)
    rest = len(labels) - shown
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, 0.9 + 0.2 * shown), layout="constrained")
        axes = figure.add_subplot()
        axes.barh(range(shown), sizes[:shown], color=colors[:shown], height=0.72)
        axes.set_yticks(range(shown), [_short(label) for label in labels[:shown]])
        axes.set_ylim(shown - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
        _thousands(axes)
        more = f"; {rest} smaller groups with {sum(sizes[shown:]):,} more are not drawn" if rest else ""
        axes.set_xlabel(f"{unit}{more}")
        for row, count in enumerate(sizes[:shown]):
            axes.annotate(f" {count:,}", (count, row), va="center", fontsize=7.5)
        axes.margins(x=0.12)
    return figure


def save_png(figure: Figure, file: Path) -> None:
    """Write the picture as a PNG of the same bytes every time."""
    with mpl.rc_context(_STYLE), _quiet():
        figure.savefig(file, dpi=160, facecolor="white", metadata={"Software": None})


def inline_svg(figure: Figure, title: str) -> str:
    """Return the picture as an ``<svg>`` element for an HTML page: transparent, in the page's text colour."""
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE), _quiet():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    element = text[text.index("<svg") :].replace(INK, "currentColor")
    return element.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _quiet() -> warnings.catch_warnings:
    """Ignore warnings of letters that matplotlib's font lacks: boxes in a picture, but the name itself in tables."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def _short(label: str) -> str:
    return label if len(label) <= 34 else label[:33] + "…"


def _thousands(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
