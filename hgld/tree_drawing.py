"""Drawings of a hierarchy: a tree of text, the same tree for JSON, an icicle for pages, and a figure."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from rich.cells import cell_len, set_cell_size

from hgld.terminal import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hgld.hierarchy import Hierarchy

MOST_BELOW = 8
_LEAST_NAME = 8


@dataclass(frozen=True)
class Branch:
    """A class in a drawing.

    Attributes:
        name: name of the class; None for the group of classes whose parent at this level is unknown.
        level: column of the level.
        items: number of finest classes, or items, below the class.
        below: (n,) labels of the class's children.
    """

    name: str | None
    level: int
    items: int
    below: np.ndarray


class _Tree:
    """The classes of a hierarchy from the top down, each with its number of finest classes or items."""

    def __init__(self, hierarchy: "Hierarchy", counts: Mapping[str, np.ndarray] | None) -> None:
        self.hierarchy = hierarchy
        counts = hierarchy.counts() if counts is None else counts
        self._counts = [counts[level] for level in hierarchy.levels]
        self.counts_items = bool((self._counts[0] != 1).any())
        # The first list is for classes without a known parent.
        self._children = [[np.empty(0, np.int64)] * (hierarchy.num_classes[0] + 1)]
        for parents, above in zip(hierarchy.parents, hierarchy.num_classes[1:], strict=True):
            order = np.argsort(parents, kind="stable")
            starts = np.searchsorted(parents, np.arange(above), sorter=order)
            self._children.append(np.split(order, starts))

    def top(self) -> list[Branch]:
        """Return the classes of the coarsest level, and one branch per level that has classes with unknown parents."""
        coarsest = len(self.hierarchy.levels) - 1
        found = self._branches(coarsest, np.arange(self.hierarchy.num_classes[coarsest]))
        for c in range(coarsest, 0, -1):
            unknown = self._children[c][0]
            if unknown.size:
                found.append(Branch(None, c, int(self._counts[c - 1][unknown].sum()), unknown))
        return found

    def below(self, branch: Branch) -> list[Branch]:
        """Return the children of a class, the largest first; an only child of the same name is skipped."""
        if not branch.level:
            return []
        found = self._branches(branch.level - 1, branch.below)
        return self.below(found[0]) if len(found) == 1 and found[0].name == branch.name else found

    def _branches(self, c: int, labels: np.ndarray) -> list[Branch]:
        names, counts, children = self.hierarchy.names[c], self._counts[c], self._children[c]
        made = [Branch(names[label], c, int(counts[label]), children[label + 1]) for label in labels.tolist()]
        return sorted(made, key=lambda branch: (-branch.items, branch.name))


def tree_text(
    hierarchy: "Hierarchy",
    *,
    depth: int | None = None,
    most: int | None = MOST_BELOW,
    lines: int | None = None,
    width: int = 80,
    counts: Mapping[str, np.ndarray] | None = None,
) -> str:
    """Draw a hierarchy as a tree of text.

    Args:
        hierarchy: the classes.
        depth: number of levels, from the coarsest; None: all levels.
        most: maximum number of children to draw per class, the largest first; None: all children.
        lines: maximum number of lines; without ``depth``, only the levels that fit are drawn. None: no limit.
        width: maximum number of characters per line; longer names are cut.
        counts: number of items per class and level (:meth:`hgld.Hierarchy.counts`). Default: count finest classes.

    Returns:
        one line for the levels, then one line per class with its number of finest classes or items.
    """
    tree, levels = _Tree(hierarchy, counts), len(hierarchy.levels)
    sizes = [f"{level} {size:,}" for level, size in zip(hierarchy.levels, hierarchy.num_classes, strict=True)]
    drawn = [_cut(" > ".join(reversed(sizes)), width)]
    shown, found = depth or levels + 1, None
    while found is None or (depth is None and lines is not None and len(found) > lines and shown > 1):
        shown -= depth is None
        found = list(itertools.islice(_lines(tree, max(levels - shown, 0), most), None if lines is None else lines + 1))
    for stem, name, count in found[:lines]:
        tail = f"  {count}" if count else ""
        drawn.append(f"{stem}{_cut(name, max(width - len(stem) - len(tail), _LEAST_NAME))}{tail}".rstrip())
    if lines is not None and len(found) > lines:
        drawn.append("…")
    if depth is None and shown < levels:
        drawn.append(f"({levels - shown} finer level{'s' if levels - shown > 1 else ''} not drawn)")
    return "\n".join(drawn)


def _lines(tree: _Tree, lowest: int, most: int | None) -> Iterator[tuple[str, str, str]]:
    """Yield the branch characters, name and count of each line, from the top down to level ``lowest``."""

    def under(indent: str, found: list[Branch]) -> Iterator[tuple[str, str, str]]:
        shown = found[:most]
        for i, branch in enumerate(shown):
            is_last = i == len(found) - 1
            name = f"({tree.hierarchy.levels[branch.level]} unknown)" if branch.name is None else branch.name
            count = f"{branch.items:,}" if branch.level or tree.counts_items else ""
            yield indent + ("└─ " if is_last else "├─ "), name, count
            if branch.level > lowest:
                yield from under(indent + ("   " if is_last else "│  "), tree.below(branch))
        if left := found[len(shown) :]:
            items = f", {sum(branch.items for branch in left):,} below" if left[0].level else ""
            yield f"{indent}└─ ", f"… {len(left):,} more{items}", ""

    return under("", tree.top())


def tree_data(
    hierarchy: "Hierarchy",
    *,
    depth: int | None = None,
    most: int | None = None,
    counts: Mapping[str, np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """Return the tree as JSON-ready data: per class its name, level, number of items, and children (``below``)."""
    tree = _Tree(hierarchy, counts)
    lowest = 0 if depth is None else max(len(hierarchy.levels) - depth, 0)

    def data(branch: Branch) -> dict[str, Any]:
        made = {"name": branch.name, "level": hierarchy.levels[branch.level], "items": branch.items}
        if branch.level > lowest:
            below = tree.below(branch)
            made["below"] = [data(b) for b in below[:most]]
            if most is not None and len(below) > most:
                made["left_out"] = len(below) - most
        return made

    return [data(branch) for branch in tree.top()]


# -- a page ------------------------------------------------------------------------------------------------------------


def icicle(
    levels: Sequence[str],
    name_of: Callable[[int, int], str],
    labels: np.ndarray,
    unit: str,
    measures: Mapping[str, np.ndarray] | None = None,
    notes: Sequence[Mapping[int, str]] | None = None,
    shown: Sequence[int] | np.ndarray = (),
) -> dict[str, Any]:
    """Return the data of an icicle, which ``icicle.html`` shows and ``icicle.js`` draws.

    Args:
        levels: names of the L levels, finest first.
        name_of: function that returns the name of a class, given its level and label.
        labels: (N, L) labels of the items, -1 if unknown. The width of a class is its number of items.
        unit: plural noun for the items.
        measures: (N,) shares of the items, by title; NaN if undefined. A class has the mean of its items.
        notes: sentences about classes by label, per level.
        shown: positions of items that the page shows below the drawing if one of their classes is chosen. The entry
            ``paths`` of the result has each item's classes as positions for ``data-path``; -1 if unknown.
    """
    rows = pl.DataFrame(measures or {"none": np.zeros(len(labels))}).fill_nan(None)
    data: dict[str, Any] = {
        "unit": unit,
        "levels": [],
        "measures": {title: [] for title in measures or ()},
        "notes": [],
    }
    paths = np.full((len(shown), len(levels)), -1)
    above = np.empty(0, np.int64)
    for c in reversed(range(len(levels))):
        parents = labels[:, c + 1] if c + 1 < len(levels) else np.full(len(labels), -1)
        parents = np.where(parents < 0, -1, np.searchsorted(above, parents))
        classes = rows.with_columns(label=labels[:, c], parent=parents).filter(pl.col("label") >= 0).group_by("label")
        found = classes.agg(pl.first("parent"), pl.len().alias("items"), pl.mean(*rows.columns).round(4)).sort("label")
        above, known = found["label"].to_numpy(), found["label"].to_list()
        own = labels[np.asarray(shown, np.int64), c]
        paths[:, c] = np.where(own < 0, -1, np.searchsorted(above, own))
        level = {"name": levels[c], "names": [name_of(c, label) for label in known]}
        data["levels"].insert(0, level | {"parents": found["parent"].to_list(), "items": found["items"].to_list()})
        data["notes"].insert(0, [notes[c].get(label, "") for label in known] if notes else [])
        for title, shares in data["measures"].items():
            shares.insert(0, found[title].to_list())
    return data | {"paths": [" ".join(map(str, path)) for path in paths.tolist()]}


# -- a figure ----------------------------------------------------------------------------------------------------------

_LETTERS = 120  # number of characters that fit into the width of a figure


def plot_tree(
    levels: Sequence[str],
    name_of: Callable[[int, int], str],
    table: np.ndarray,
    sizes: np.ndarray,
    ax: "Axes | None" = None,
    shares: np.ndarray | None = None,
) -> "Axes":
    """Draw a hierarchy as rows of bars, one row per level, the coarsest on top.

    Args:
        levels: names of the L levels, finest first.
        name_of: returns the name of a class, given its level and label.
        table: (C, L) labels of each finest class, -1 if unknown.
        sizes: (C,) width of each finest class.
        ax: axes to draw on. Default: new axes of pyplot.
        shares: (C,) shares that colour the classes; a class has the mean of its items. None: colours tell neighbours
            apart.
    """
    from matplotlib import colormaps, pyplot

    if ax is None:
        _, ax = pyplot.subplots(figsize=(9, 0.6 * len(levels) + 0.8), layout="constrained")
    order = np.lexsort(table.T)  # sort by the coarsest level first, so that each class is one block of rows
    total = max(float(sizes.sum()), 1.0)
    colors = colormaps["Set3"](np.arange(12))  # light colors, so that names are readable on them
    for c in range(len(levels)):
        left = 0.0
        for labels, members in itertools.groupby(order, lambda item, c=c: tuple(table[item, c:])):
            of = list(members)
            width, color, ink = float(sizes[of].sum()), colors[labels[-1] % len(colors)], "black"
            if shares is not None and width:
                share = float(shares[of] @ sizes[of]) / width
                color, ink = colormaps["YlOrBr"](share), "white" if share > 0.6 else "black"
            if labels[0] >= 0 and width:
                ax.barh(c, width, 0.94, left, color=color, edgecolor="white", linewidth=0.4)
            if labels[0] >= 0 and width >= 5 * total / _LETTERS:
                text = _cut(name_of(c, labels[0]), int(_LETTERS * width / total))
                ax.text(left + width / 2, c, text, ha="center", va="center", fontsize=8, color=ink, parse_math=False)
            left += width
    ax.set_xlim(0, total)
    counts = [len(np.unique(column[column >= 0])) for column in table.T]
    sized = [f"{level}\n{count:,}" for level, count in zip(levels, counts, strict=True)]
    ax.set_yticks(range(len(levels)), sized, parse_math=False)
    ax.set_xticks([])
    ax.spines[:].set_visible(False)
    return ax


def _cut(text: str, width: int) -> str:
    text = printable(" ".join(text.split()))
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"
