"""The report stage: a build's ``report.html`` and ``README.md``, and its pictures as files.

The page is one file without scripts and without external resources; scraped text stays text in it (autoescaped, under
a content security policy that runs nothing). Words that a reader may not know lead to their explanation at its end.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from markupsafe import Markup, escape

from hgld.files import read_json
from hgld.html_page import page_templates
from hgld.tables import read_parquet

from ...card import PUBLISHED_GROUPS, write_card
from ...stage import Progress, StageResult, StageRun, run_stage
from ..levels.levels import LANDMARK_LEVELS
from .pictures import (
    draw_map,
    draw_sizes,
    group_color,
    inline_svg,
    place_labels,
    save_png,
)

VERSION = 4  # 4: no curve of the number of groups
REPORT = "report.html"
CARD = "README.md"
TEMPLATE = "build_report.html"
TEMPLATES = Path(__file__).parent
WORDS = TEMPLATES / "words.yaml"
MOST_DOUBTFUL = 300
MAP_SIZE = (1000, 640)
_READ = {
    "names": ("review", "names.parquet"),
    "groups": ("review", "groups.parquet"),
    "decisions": ("review", "decisions.json"),
    "proposals": ("cluster", "groups.parquet"),
    "clustered": ("cluster", "names.parquet"),
    "map": ("cluster", "map.parquet"),
    "landmarks": ("assign", "landmarks.parquet"),
    "levels": ("levels", "groups.parquet"),
}
_FIXED_COLORS = {"natural": "#4f9a5f", "human-made": "#b98a3c"}


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
    between: Sequence[str]
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
    inputs |= {"template": TEMPLATES / TEMPLATE, "words": WORDS}
    unit = "items" if facts["config"]["build"]["source"] == "classes" else "landmarks"

    def work(directory: Path) -> StageResult:
        tables = {role: read_parquet(path) for role, path in inputs.items() if path.suffix == ".parquet"}
        tables["levels"] = tables["levels"].drop(_levels(facts)[1], strict=False)  # those above the groups
        decisions = read_json(inputs["decisions"])
        groups = _groups(tables)
        progress("draw pictures", 0, 2)
        drawn = _draw(directory / "pictures", tables, groups, unit, progress)
        page = _page(facts, tables, groups, decisions, drawn, unit)
        (directory / REPORT).write_text(page, encoding="utf-8")
        write_card(directory / CARD, facts, tables["groups"], tables["landmarks"], tables["levels"])
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
    above = {label: labels[:-1] for label, *labels in tables["levels"].iter_rows()}
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
            between=[label or "undecided" for label in above.get(row["label"], ())],
            top_evidence=row["evidence"],
            label_method=named.get(row["label"], {}).get("method"),
            label_evidence=named.get(row["label"], {}).get("evidence"),
            decided_by=row["decided_by"],
            members=members.get(row["label"], []),
        )
        for rank, row in enumerate(rows)
    ]


def _draw(
    folder: Path,
    tables: Mapping[str, pl.DataFrame],
    groups: Sequence[Group],
    unit: str,
    progress: Progress,
) -> dict[str, Any]:
    """Write the PNG files; return the pictures and figures that the page shows."""
    folder.mkdir()
    labels, counts = [g.label for g in groups], [g.landmarks for g in groups]
    colors = [g.color for g in groups]
    sizes = draw_sizes(labels, counts, colors, unit)
    save_png(sizes, folder / "group_sizes.png")
    drawn: dict[str, Any] = {"sizes": Markup(inline_svg(sizes, f"{unit.capitalize()} of the largest groups"))}  # noqa: S704
    progress("draw pictures", 1, 2)
    drawn["map"] = _map(folder / "map.png", tables, groups)
    progress("draw pictures", 2, 2)
    return drawn


def _map(file: Path, tables: Mapping[str, pl.DataFrame], groups: Sequence[Group]) -> dict[str, Any]:
    """Return the map's points by group and its labels, for a wide page and for a phone; write the map as a PNG file."""
    width, height = MAP_SIZE
    points = tables["map"].join(tables["names"], on="name").sort("name")
    places = _fit(points.select("x", "y").to_numpy(), width, height)
    scale = min(max(np.sqrt(250 / len(points)), 1), 2.5)  # few names have room for larger dots
    radii = np.round(scale * (2.4 + 0.9 * np.log2(np.maximum(points["landmarks"].to_numpy(), 1))), 1)
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
    unit: str,
) -> str:
    environment = page_templates(TEMPLATES)
    environment.filters["thousands"] = lambda value: f"{value:,}"
    environment.filters["readable"] = _readable
    clean = facts["stages"]["clean"]["details"]
    doubtful = _doubtful(tables)
    explained = Words()
    levels = _levels(facts)
    return environment.get_template(TEMPLATE).render(
        facts=facts,
        groups=groups,
        unit=unit,
        levels=list(map(_said, levels)),
        top_level=_said(levels[-1]) if len(levels) > 2 else None,
        classes=_classes(tables["levels"]),
        tops=_tops(groups),
        undecided=[g for g in groups if g.top is None] if len(levels) > 2 else [],
        clustering=facts["stages"]["cluster"]["details"],
        word=explained.link,
        mark=explained.mark,
        words=explained.used,
        doubtful=doubtful[:MOST_DOUBTFUL],
        doubtful_count=len(doubtful),
        still_wrong=facts["stages"].get("review", {}).get("details", {}).get("still_wrong"),
        landmarks=len(tables["landmarks"]),
        names=len(tables["names"]),
        own=clean["own"],
        # what was published is about GLDv2's lists, and says nothing beside other data
        published=clean["published"] if facts["config"]["build"]["source"] == "landmarks" else None,
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


def _levels(facts: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the build's levels, finest first."""
    return facts["stages"].get("export", {}).get("details", {}).get("levels", LANDMARK_LEVELS)


def _said(level: str) -> str:
    """Return a level's name as people say it."""
    return "natural or human-made" if level == LANDMARK_LEVELS[-1] else level.replace("_", " ")


def _classes(levels: pl.DataFrame) -> list[tuple[str, int]]:
    """Return how many classes every level above the groups has."""
    return [(_said(level), levels[level].drop_nulls().n_unique()) for level in levels.columns[1:]]


def _tops(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the classes of the coarsest level, the largest first, those without one last."""
    under: dict[str | None, list[Group]] = {}
    for group in groups:
        under.setdefault(group.top, []).append(group)
    sizes = {top: sum(group.landmarks for group in members) for top, members in under.items()}
    found = sorted(under, key=lambda top: (top is None, -sizes[top], top or ""))
    return [
        {
            "name": top or "undecided",
            "color": "var(--line)" if top is None else _FIXED_COLORS.get(top, group_color(rank)),
            "groups": len(under[top]),
            "landmarks": sizes[top],
        }
        for rank, top in enumerate(found)
    ]


def _doubtful(tables: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """Return the doubtful names, the most likely wrong first, with the group that is nearly as close."""
    proposed = tables["proposals"].select(next_group="group", next_label="label")
    following = tables["clustered"].join(proposed, on="next_group", how="left").select("name", "next_label")
    rows = tables["names"].filter("doubtful").join(following, on="name", how="left")
    ordered = rows.sort(["wrong", "name"], descending=[True, False])
    return ordered.select("name", "label", "wrong", "next_label", "landmarks").to_dicts()


# -- words that a reader may not know, linked where they are used and explained at the end of the page ----------------


class Words:
    """The explanations, and which of them a page has used.

    >>> words = Words()
    >>> str(words.link("medoid"))
    '<a class="word" href="#word-medoid">medoid</a>'
    >>> str(words.mark("margin <.1"))
    '<a class="word" href="#word-margin">margin</a> &lt;.1'
    >>> [word for word, _ in words.used()]
    ['medoid', 'margin']
    """

    def __init__(self) -> None:
        known = yaml.safe_load(WORDS.read_text(encoding="utf-8"))
        self._texts: dict[str, str] = {word: entry["text"] for word, entry in known.items()}
        self._spelled = {s: word for word, entry in known.items() for s in entry.get("find", ())}
        longest_first = sorted(self._spelled, key=len, reverse=True)
        self._pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b")
        self._used: set[str] = set()

    def link(self, word: str, shown: str | None = None) -> Markup:
        """Return the word as a link to its explanation, or as plain text where there is none.

        Args:
            word: the word; of ``error(timeout)`` the explanation is that of ``error``.
            shown: the text to show in its place.
        """
        text = escape(word if shown is None else shown)
        key = word if word in self._texts else word.partition("(")[0]
        if key not in self._texts:
            return text
        self._used.add(key)
        return Markup('<a class="word" href="#word-{}">{}</a>').format(key.replace(" ", "-"), text)

    def mark(self, text: str) -> Markup:
        """Return a text with the known words in it linked."""
        parts, end = [], 0
        for found in self._pattern.finditer(text):
            parts += [escape(text[end : found.start()]), self.link(self._spelled[found[0]], found[0])]
            end = found.end()
        return Markup("").join([*parts, escape(text[end:])])

    def used(self) -> Sequence[tuple[str, str]]:
        """Return the words that were linked so far and their explanations, in the order of the file."""
        return [(word, text) for word, text in self._texts.items() if word in self._used]
