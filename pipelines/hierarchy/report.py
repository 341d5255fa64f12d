"""The report stage: a build's ``report.html`` and ``README.md``, and its pictures as files.

The page is one file without scripts and without external resources; scraped text stays text in it (autoescaped, under
a content security policy that runs nothing). Its pictures are the map of names, the sizes of groups and the curve of k.
They are drawn with matplotlib and have the same bytes every time: as PNG files on white, and as SVG in the page's own
text colour, so that it is readable on a light and on a dark page. Names are drawn as text, never as formulas.
"""

import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
import polars as pl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hgld.pipelines.card import PUBLISHED_GROUPS, write_card
from hgld.pipelines.stage import Progress, StageResult, StageRun, run_stage

INK = "#3b424c"
_BAR = "#4c7d9d"
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


def draw_sizes(labels: Sequence[str], landmarks: Sequence[int], colors: Sequence[str]) -> Figure:
    """Draw bars of the largest groups; a line of text states how many others are not drawn."""
    shown = min(len(labels), _LARGEST_BARS)
    rest = len(labels) - shown
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, 0.9 + 0.2 * shown), layout="constrained")
        axes = figure.add_subplot()
        axes.barh(range(shown), landmarks[:shown], color=colors[:shown], height=0.72)
        axes.set_yticks(range(shown), [_short(label) for label in labels[:shown]])
        axes.set_ylim(shown - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        _thousands(axes)
        more = f"; {rest} smaller groups with {sum(landmarks[shown:]):,} more are not drawn" if rest else ""
        axes.set_xlabel(f"landmarks{more}")
        for row, count in enumerate(landmarks[:shown]):
            axes.annotate(f" {count:,}", (count, row), va="center", fontsize=7.5)
        axes.margins(x=0.12)
    return figure


def draw_curve(k: Sequence[int], score: Sequence[float], chosen: int | None, criterion: str) -> Figure:
    """Draw the score of every tried k, with the chosen one marked."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(k, score, color=_BAR, linewidth=1.6, marker="o", markersize=3.5)
        if chosen is not None and chosen in k:
            at = list(k).index(chosen)
            axes.plot([chosen], [score[at]], marker="o", markersize=8, color=_MARK)
            axes.annotate(f"k = {chosen}", (chosen, score[at]), xytext=(0, 9), textcoords="offset points", ha="center")
        axes.set_xlabel("k, number of k-means clusters")
        axes.set_ylabel(criterion)
        axes.margins(y=0.18)
        _thousands(axes)
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


# -- the stage -----------------------------------------------------------------------------------------------------

VERSION = 1
REPORT = "report.html"
CARD = "README.md"
TEMPLATE = "build_report.html"
TEMPLATES = Path(__file__).parent / "templates"
MOST_DOUBTFUL = 300
MAP_SIZE = (1000, 640)
_READ = {
    "names": ("review", "names.parquet"),
    "groups": ("review", "groups.parquet"),
    "decisions": ("review", "decisions.json"),
    "proposals": ("cluster", "groups.parquet"),
    "clustered": ("cluster", "names.parquet"),
    "curve": ("cluster", "k_curve.parquet"),
    "map": ("cluster", "map.parquet"),
    "landmarks": ("assign", "landmarks.parquet"),
}


@dataclass(frozen=True)
class Member:
    """A name in its group."""

    name: str
    landmarks: int
    doubtful: bool


@dataclass(frozen=True)
class Group:
    """A row of the table of groups."""

    label: str
    color: str
    landmarks: int
    share: float
    top: str | None
    top_evidence: str | None
    label_method: str | None
    label_evidence: str | None
    decided_by: str | None
    members: Sequence[Member]


def run(root: Path, stages: Mapping[str, StageRun], facts: Mapping[str, Any], progress: Progress) -> StageRun:
    """Draw the pictures and write the report and the card of a build into ``root/report``.

    Args:
        root: the build's directory of stages.
        stages: every stage up to the export, by name.
        facts: the build's provenance (:func:`hgld.pipelines.hierarchy.provenance.provenance`).
        progress: told about the pictures.
    """
    inputs = {role: stages[stage].path(file) for role, (stage, file) in _READ.items()}
    inputs["template"] = TEMPLATES / TEMPLATE

    def work(directory: Path) -> StageResult:
        tables = {role: pl.read_parquet(path) for role, path in inputs.items() if path.suffix == ".parquet"}
        decisions = json.loads(inputs["decisions"].read_text(encoding="utf-8"))
        groups = _groups(tables)
        progress("draw pictures", 0, 3)
        drawn = _draw(directory / "pictures", tables, groups, stages["cluster"], progress)
        page = _page(facts, tables, groups, decisions, drawn)
        (directory / REPORT).write_text(page, encoding="utf-8")
        write_card(directory / CARD, facts, tables["groups"], tables["landmarks"])
        return StageResult({"groups": len(groups), "bytes": len(page.encode())})

    return run_stage("report", root, version=VERSION, config=facts, inputs=inputs, work=work)


def _groups(tables: Mapping[str, pl.DataFrame]) -> list[Group]:
    """Return the groups, the largest first, with their members, the most common first."""
    labelled = dict(tables["landmarks"].group_by("hierarchical_label").len().iter_rows())
    members: dict[str, list[Member]] = {}
    ordered = tables["names"].sort(["landmarks", "name"], descending=[True, False])
    for name, landmarks, label, doubtful in ordered.select("name", "landmarks", "label", "doubtful").iter_rows():
        members.setdefault(label, []).append(Member(name, landmarks, doubtful))
    named = {row["label"]: row for row in tables["proposals"].iter_rows(named=True)}
    rows = sorted(
        tables["groups"].iter_rows(named=True), key=lambda row: (-labelled.get(row["label"], 0), row["label"])
    )
    largest = max(labelled.values(), default=1)
    return [
        Group(
            label=row["label"],
            color=group_color(rank),
            landmarks=labelled.get(row["label"], 0),
            share=labelled.get(row["label"], 0) / largest,
            top=row["top"],
            top_evidence=row["evidence"],
            label_method=named.get(row["label"], {}).get("method"),
            label_evidence=named.get(row["label"], {}).get("evidence"),
            decided_by=row["decided_by"],
            members=members.get(row["label"], []),
        )
        for rank, row in enumerate(rows)
    ]


def _draw(
    folder: Path, tables: Mapping[str, pl.DataFrame], groups: Sequence[Group], clustered: StageRun, progress: Progress
) -> dict[str, Any]:
    """Write the PNG files; return the pictures and figures that the page shows."""
    folder.mkdir()
    labels, counts = [g.label for g in groups], [g.landmarks for g in groups]
    colors = [g.color for g in groups]
    sizes = draw_sizes(labels, counts, colors)
    save_png(sizes, folder / "group_sizes.png")
    drawn: dict[str, Any] = {"sizes": Markup(inline_svg(sizes, "Landmarks of the largest groups"))}  # noqa: S704
    progress("draw pictures", 1, 3)
    curve = tables["curve"].sort("k")
    drawn["curve"] = None
    if len(curve) > 1:
        details = clustered.result.details
        figure = draw_curve(
            curve["k"].to_list(), curve["score"].to_list(), details.get("k"), str(details.get("criterion", "score"))
        )
        save_png(figure, folder / "k_curve.png")
        drawn["curve"] = Markup(inline_svg(figure, "Score of every number of clusters tried"))  # noqa: S704
    progress("draw pictures", 2, 3)
    drawn["map"] = _map(folder / "map.png", tables, groups)
    progress("draw pictures", 3, 3)
    return drawn


def _map(file: Path, tables: Mapping[str, pl.DataFrame], groups: Sequence[Group]) -> dict[str, Any]:
    """Return the map's points by group and its labels, for a wide page and for a phone; write the map as a PNG file."""
    width, height = MAP_SIZE
    points = tables["map"].join(tables["names"], on="name").sort("name")
    places = _fit(points.select("x", "y").to_numpy(), width, height)
    radii = np.round(2.4 + 0.9 * np.log2(np.maximum(points["landmarks"].to_numpy(), 1)), 1)
    rank = {g.label: i for i, g in enumerate(groups)}
    of_group = np.array([rank[label] for label in points["label"].to_list()], dtype=np.int64)
    layers = [
        {
            "color": group.color,
            "label": group.label,
            "points": [
                {"x": places[i, 0], "y": places[i, 1], "r": radii[i], "name": points["name"][int(i)]}
                for i in np.flatnonzero(of_group == g)
            ],
        }
        for g, group in enumerate(groups)
        if (of_group == g).any()
    ]
    centres = np.array([_label_place(places[of_group == rank[str(layer["label"])]]) for layer in layers])
    names = [str(layer["label"]) for layer in layers]
    area = {"width": width, "height": height}
    wide = place_labels(names, centres.reshape(-1, 2), size=17, most=26, **area)
    phone = place_labels(names, centres.reshape(-1, 2), size=34, most=9, **area)
    colors = [groups[g].color for g in of_group]
    save_png(draw_map(places, radii, colors, wide), file)
    return {"width": width, "height": height, "layers": layers, "wide": wide, "phone": phone}


def _label_place(places: np.ndarray) -> np.ndarray:
    """Return the place of a group's label: a little above its middle, so that it does not hide a small group."""
    x, y = np.median(places, axis=0)
    return np.array([x, y - 10 - min(24.0, (y - places[:, 1].min()))])


def _fit(points: np.ndarray, width: int, height: int, edge: int = 16) -> np.ndarray:
    """Return (N, 2) places spread over the drawing, y downwards.

    A coordinate is the mean of its share of the extent and its share of the ranks, so that a few names far from all
    others do not press those into a corner; a side without extent is centred.
    """
    low, span = points.min(axis=0), np.ptp(points, axis=0)
    linear = np.where(span > 0, (points - low) / np.where(span > 0, span, 1), 0.5)
    share = (linear + np.stack([_rank_share(column) for column in points.T], axis=1)) / 2
    share[:, 1] = 1 - share[:, 1]
    return np.round(edge + share * (np.array([width, height]) - 2 * edge), 1)


def _rank_share(values: np.ndarray) -> np.ndarray:
    """Return for each value the share of values below it, with half of the equal ones counted: 0..1."""
    ordered = np.sort(values)
    both = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return both / (2 * max(len(values), 1))


def _page(
    facts: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
    groups: Sequence[Group],
    decisions: Mapping[str, Any],
    drawn: Mapping[str, Any],
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = lambda value: f"{value:,}"
    environment.filters["readable"] = _readable
    clean = facts["stages"]["clean"]["details"]
    doubtful = _doubtful(tables)
    return environment.get_template(TEMPLATE).render(
        facts=facts,
        groups=groups,
        tops=[_top(name, groups) for name in ("natural", "human-made", "undecided")],
        undecided=[g for g in groups if g.top is None],
        doubtful=doubtful[:MOST_DOUBTFUL],
        doubtful_count=len(doubtful),
        landmarks=len(tables["landmarks"]),
        assigned=tables["landmarks"]["assigned"].count(),
        names=len(tables["names"]),
        own=clean["own"],
        published=clean["published"],
        published_groups=PUBLISHED_GROUPS,
        decisions=decisions,
        drawn=drawn,
    )


def _readable(value: Any) -> str:
    """Return a JSON value as one line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_readable(v)}" for key, v in value.items() if v is not None)
    if isinstance(value, list):
        return ("; " if any(isinstance(v, Mapping) for v in value) else ", ").join(map(_readable, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _top(name: str, groups: Sequence[Group]) -> dict[str, Any]:
    under = [group for group in groups if (group.top or "undecided") == name]
    return {"name": name, "groups": len(under), "landmarks": sum(group.landmarks for group in under)}


def _doubtful(tables: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """Return the doubtful names, the least certain first, with the group that is nearly as close."""
    proposed = tables["proposals"].select(next_group="group", next_label="label")
    following = tables["clustered"].join(proposed, on="next_group", how="left").select("name", "next_label")
    rows = tables["names"].filter("doubtful").join(following, on="name", how="left")
    return rows.sort(["confidence", "name"]).select("name", "label", "confidence", "next_label", "landmarks").to_dicts()
