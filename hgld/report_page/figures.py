"""Figures by matplotlib: SVG in the colours of the page, and PDF and PNG files that fit a column of a paper."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

INK, GRID = "#1b2530", "#d9dee4"
OTHERS = "#a3acb8"
# Based on Okabe and Ito's palette, without yellow, which is invisible on paper, and black, which is invisible on dark
# pages; then further hues. The page replaces each colour by a CSS variable, so all colours must differ.
SERIES = ("#0072b2", "#e1690f", "#009e73", "#b8559a", "#4ba3d9", "#c29100", "#7a5bd0", "#d03c4a", "#5c8a2e", "#8a6244")
# Colours of grades: first nothing in common, then the levels from the coarsest to the finest. Grades that
# follow each other differ by at least 24 in CIELAB for the colour-blind too, and in grey, for any number of levels.
GRADES = ("#d1432f", "#f7d154", "#3f92b8", "#f6cce2", "#7f8f3a", "#c9dcf5", "#b0699f", "#123a6b")
_VARIABLES = {INK: "ink", GRID: "grid", OTHERS: "others", "#ffffff": "card"}
_VARIABLES |= {color: f"s{i}" for i, color in enumerate(SERIES)} | {color: f"g{i}" for i, color in enumerate(GRADES)}
_WIDTH, _HEIGHT = 3.3, 2.2  # inches: the width of a column in a two-column paper; text stays readable at 420 pixels
_STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "font.size": 7.0,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 6.2,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # class names may contain $\frac
    "text.usetex": False,  # the user's matplotlibrc may set it
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Figure:
    """A drawn figure.

    Attributes:
        name: file name without suffix.
        title: title of the figure.
        term: glossary entry that explains how to read the figure; empty if no page shows the figure.
        note: text on how the figure was made and what was left out.
        svg: markup for the page, coloured by CSS variables.
    """

    name: str
    title: str
    term: str
    note: str
    svg: Markup


@dataclass(frozen=True)
class Line:
    """A line of a plot.

    Attributes:
        label: text of the legend.
        across: x coordinates.
        up: y coordinates.
        series: position of its colour in :data:`SERIES`.
        style: line style of matplotlib, for instance ``--``.
    """

    label: str
    across: Sequence[float]
    up: Sequence[float]
    series: int
    style: str = "-"


class Figures:
    """Drawer of figures; if it has a folder, it also writes each figure as ``NAME.pdf`` and ``NAME.png``.

    Args:
        folder: folder into which the files are written; None: no files are written.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._names: set[str] = set()
        self.files: list[str] = []
        self.terms: dict[str, None] = {}  # glossary entries of the figures, in drawing order

    @property
    def keeps_files(self) -> bool:
        """True if figures are also written to files."""
        return self._folder is not None

    def draw(
        self,
        name: str,
        title: str,
        draw: "Callable[[Axes], None]",
        *,
        term: str = "",
        note: str = "",
        height: float = _HEIGHT,
    ) -> Figure:
        """Draw one figure on one pair of axes, ``height`` inches high."""
        from matplotlib import rc_context, rcdefaults, rcParams
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Drawing

        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "figure"
        numbered = (f"{plain}-{i}" for i in range(2, len(self._names) + 3))
        stem = next(s for s in (plain, *numbered) if s not in self._names)
        self._names.add(stem)
        style: Any = {**_STYLE, "svg.hashsalt": stem}
        with rc_context(), warnings.catch_warnings():
            rcdefaults()  # a user's matplotlibrc may ask for LaTeX or other fonts
            rcParams.update(style)
            # Fonts of matplotlib lack many scripts, but the page uses the fonts of the reader's browser.
            warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
            drawing = Drawing(figsize=(_WIDTH, height), layout="constrained")
            canvas = FigureCanvasSVG(drawing)
            draw(drawing.add_subplot())
            out = io.StringIO()
            canvas.print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                undated = {"CreationDate": None, "Creator": None, "Producer": None}
                drawing.savefig(self._folder / f"{stem}.pdf", metadata=undated)
                drawing.savefig(self._folder / f"{stem}.png", dpi=200, facecolor="white", metadata={"Software": None})
                self.files += [f"{stem}.pdf", f"{stem}.png"]
        self.terms[term] = None
        return Figure(stem, title, term, note, _inline(out.getvalue(), stem, title))

    def draw_lines(
        self,
        name: str,
        title: str,
        lines: Sequence[Line],
        *,
        term: str,
        note: str = "",
        marker: str = "",
        legend: str | None = None,
        **axes_properties: Any,
    ) -> Figure:
        """Draw a plot of lines; ``axes_properties`` are arguments of :meth:`matplotlib.axes.Axes.set`."""

        def draw(axes: "Axes") -> None:
            entries = []
            for line in lines:
                color = SERIES[line.series % len(SERIES)]
                drawn = axes.plot(line.across, line.up, line.style, color=color, marker=marker, markersize=2.7)
                entries.append((drawn[0], line.label))
            axes.set(**axes_properties)
            if axes_properties.get("xlabel") in ("step", "epoch"):
                axes.locator_params(axis="x", integer=True)
            draw_legend(axes, entries, title=legend, title_fontsize=6.2, loc="best")

        return self.draw(name, title, draw, term=term, note=note)


def _inline(svg: str, stem: str, title: str) -> Markup:
    """Return an SVG file as markup for a page: without size, with unique ids, and with CSS variables as colours."""
    named = re.compile("|".join(map(re.escape, _VARIABLES)))

    def adapt(match: re.Match[str]) -> str:  # only within tags, because a class may have a name such as #1b2530
        tag = re.sub(r'\bid="([^"]+)"', rf'id="{stem}-\1"', match[0])
        tag = re.sub(r'href="#([^"]+)"', rf'href="#{stem}-\1"', tag)
        tag = re.sub(r"url\(#([^)]+)\)", rf"url(#{stem}-\1)", tag)
        return named.sub(lambda color: f"var(--{_VARIABLES[color[0]]})", tag)

    opening, _, body = svg[svg.index("<svg") :].partition(">")
    opening = re.sub(r' (?:height|width)="[^"]*"', "", opening)
    opening = opening.replace("<svg ", f'<svg role="img" aria-label="{Markup.escape(title)}" ', 1)
    return Markup(f"{opening}>{re.sub(r'<[^>]*>', adapt, body)}")  # noqa: S704 - matplotlib escapes


def draw_legend(axes: "Axes", entries: "Sequence[tuple[Artist, str]]", **options: Any) -> None:
    """Draw a legend, including names that begin with an underscore, which matplotlib would leave out."""
    legend = axes.legend([drawn for drawn, _ in entries], ["name"] * len(entries), **options)
    for shown, (_, name) in zip(legend.get_texts(), entries, strict=True):
        shown.set_text(name)


def grade_index(grade: int, num_levels: int) -> int:
    """Return the index in :data:`GRADES` of a grade; with more than seven levels, middle levels share colours."""
    middle = len(GRADES) - 2
    return len(GRADES) - 1 if grade == num_levels else 1 + (grade - 1) % middle if grade else 0


def grade_color(grade: int, num_levels: int) -> str:
    """Return the colour of a grade."""
    return GRADES[grade_index(grade, num_levels)]


def clean(text: str, longest: int = 60) -> str:
    """Return text on one line, without control characters, cut to a length."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
