"""Figures: drawn once by matplotlib, shown on the page in the colours of its theme, kept as PNG and SVG files."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

INK, GRID = "#1b2530", "#d9dee4"
OTHERS = "#a3acb8"
# Okabe and Ito's palette without its yellow and black, which no paper or no dark page shows, and further hues after it.
# The page replaces each by a CSS variable, so no colour may stand here twice.
SERIES = ("#0072b2", "#e1690f", "#009e73", "#b8559a", "#4ba3d9", "#c29100", "#7a5bd0", "#d03c4a", "#5c8a2e", "#8a6244")
GRADES = ("#cc3d3d", "#f0902a", "#f7cf58", "#8cc5e0", "#5fa8d3", "#3a86b8", "#25678f", "#2e9e5b")
DOTS = "dots"  # beginning of the ids of named dots, by which the page's script finds them
_SIZE = (4.3, 2.9)  # inches: type stays readable where the page is 420 pixels wide
_STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "font.size": 9.0,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.7,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a class may be called $\frac
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Figure:
    """A drawn figure.

    Attributes:
        name: of its files, without suffix.
        title: what it shows.
        term: of the glossary, which says how to read it; empty where no page shows the figure.
        note: its making, and anything left out.
        svg: for the page, coloured by CSS variables.
        dots: names of its dots in the order in which they were drawn, for those who point at them; most have none.
    """

    name: str
    title: str
    term: str
    note: str
    svg: Markup
    dots: tuple[str, ...] = ()


class Figures:
    """Drawer of figures; with a folder, each is kept as ``NAME.svg`` and ``NAME.png`` there as well.

    Args:
        folder: to keep them in; None keeps none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._names: set[str] = set()
        self.files: list[str] = []
        self.terms: dict[str, None] = {}  # of what was drawn, in its order

    def draw(
        self,
        name: str,
        title: str,
        draw: "Callable[[Axes], None]",
        *,
        term: str = "",
        note: str = "",
        size: tuple[float, float] = _SIZE,
        dots: Sequence[str] = (),
    ) -> Figure:
        """Draw one figure on one pair of axes; ``dots`` name those that it scatters under the id ``DOTS``."""
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Drawing

        stem = self._stem(name)
        style: Any = {**_STYLE, "svg.hashsalt": stem}
        with rc_context(style), _quiet_about_glyphs():
            drawing = Drawing(figsize=size, layout="constrained")
            canvas = FigureCanvasSVG(drawing)
            draw(drawing.add_subplot())
            plain = io.StringIO()
            canvas.print_svg(plain, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
            self._keep(stem, plain.getvalue(), drawing)
        self.terms[term] = None
        return Figure(stem, title, term, note, _for_page(plain.getvalue(), stem, title), tuple(dots))

    def _stem(self, name: str) -> str:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "figure"
        stem = next(
            s for s in [plain, *(f"{plain}-{i}" for i in range(2, len(self._names) + 3))] if s not in self._names
        )
        self._names.add(stem)
        return stem

    def _keep(self, stem: str, svg: str, drawing: "Drawing") -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{stem}.svg").write_text(svg, encoding="utf-8")
        drawing.savefig(self._folder / f"{stem}.png", dpi=200, facecolor="white", metadata={"Software": None})
        self.files += [f"{stem}.svg", f"{stem}.png"]


def _for_page(svg: str, stem: str, title: str) -> Markup:
    body = svg[svg.index("<svg") :]
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    # Files may name their ids freely; on one page ids are shared.
    body = re.sub(r'\bid="([^"]+)"', rf'id="{stem}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{stem}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{stem}-\1)", body)
    named = {INK: "ink", GRID: "grid", OTHERS: "others", "#ffffff": "card"}
    named |= {color: f"s{i}" for i, color in enumerate(SERIES)} | {color: f"g{i}" for i, color in enumerate(GRADES)}
    for color, variable in named.items():
        body = body.replace(color, f"var(--{variable})")
    label = Markup.escape(title)
    return Markup(body.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))  # noqa: S704 - matplotlib escapes


@contextmanager
def _quiet_about_glyphs() -> Iterator[None]:
    with warnings.catch_warnings():  # the page takes fonts of the reader's, not matplotlib's, which has few scripts
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def draw_legend(axes: "Axes", entries: "Sequence[tuple[Artist, str]]", **options: Any) -> None:
    """Draw a legend of artists and their names; matplotlib alone leaves out names that begin with an underscore."""
    legend = axes.legend([drawn for drawn, _ in entries], ["name"] * len(entries), **options)
    for shown, (_, name) in zip(legend.get_texts(), entries, strict=True):
        shown.set_text(name)


def grade_color(grade: int, num_levels: int) -> str:
    """Return the colour of a grade: red for 0, orange for the coarsest level, green for the finest, blues between."""
    if grade == 0:
        return GRADES[0]
    if grade == num_levels:
        return GRADES[-1]
    return GRADES[min(grade, len(GRADES) - 2)]


def clean(text: str, longest: int = 60) -> str:
    """Return text on one line, without control characters, cut where it is too long."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
