"""Drawings of a hierarchy as a tree of text, and its data for JSON; of bounded size."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len, set_cell_size

from hgld.terminal import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hgld.hierarchy import Hierarchy

MOST_BELOW = 8
_LEAST_NAME = 8


@dataclass(frozen=True)
class Branch:
    """A class as it is drawn.

    Attributes:
        name: name of the class; None stands for the classes of a level whose parent is unknown.
        level: column of its level; without a name: of the level that is unknown.
        items: finest classes below it, or items if they were counted.
        below: labels of the classes below it.
    """

    name: str | None
    level: int
    items: int
    below: np.ndarray


class _Tree:
    """The classes of a hierarchy from the top down, with the number of finest classes (or items) of each."""

    def __init__(self, hierarchy: "Hierarchy", counts: Mapping[str, np.ndarray] | None) -> None:
        self.hierarchy = hierarchy
        counts = hierarchy.counts() if counts is None else counts
        self._counts = [counts[level] for level in hierarchy.levels]
        self.counts_items = bool((self._counts[0] != 1).any())
        self._order = [np.argsort(parents, kind="stable") for parents in hierarchy.parents]

    def top(self) -> list[Branch]:
        """Return the classes of the coarsest level, and one branch for each level with classes of unknown parents."""
        coarsest = len(self.hierarchy.levels) - 1
        found = self._branches(coarsest, np.arange(len(self.hierarchy.names[coarsest])))
        for c in range(coarsest - 1, -1, -1):
            unknown = np.flatnonzero(self.hierarchy.parents[c] < 0)
            if unknown.size:
                found.append(Branch(None, c + 1, int(self._counts[c][unknown].sum()), unknown))
        return found

    def below(self, branch: Branch) -> list[Branch]:
        """Return the classes below one, the largest first; one that only repeats its name is passed over."""
        if not branch.level:
            return []
        found = self._branches(branch.level - 1, branch.below)
        return self.below(found[0]) if len(found) == 1 and found[0].name == branch.name else found

    def _branches(self, c: int, labels: np.ndarray) -> list[Branch]:
        made, names, nothing = [], self.hierarchy.names[c], np.empty(0, np.int64)
        for label in labels.tolist():
            below = nothing
            if c:
                order, parents = self._order[c - 1], self.hierarchy.parents[c - 1]
                first, last = np.searchsorted(parents, (label, label + 1), sorter=order)
                below = order[first:last]
            made.append(Branch(names[label], c, int(self._counts[c][label]), below))
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
        depth: number of levels, from the coarsest; None: all.
        most: classes drawn below each class, the largest first; None: all.
        lines: most lines of the drawing; without a depth only as many levels are drawn as fit. None: any number.
        width: columns of a line; longer names are cut.
        counts: items of each class by level (:meth:`hgld.Hierarchy.counts`); None: finest classes are counted.

    Returns:
        a line for the levels, then one for each class with its number of finest classes or items.
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
    """Yield stem, name and count of each line, from the top down to a level."""

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
    """Return the tree as JSON-ready objects: name, level, items, and below it the classes of the next level."""
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


# -- a figure ----------------------------------------------------------------------------------------------------------

_LETTERS = 120  # that fit into the width of a figure


def plot_tree(hierarchy: "Hierarchy", ax: "Axes | None", sizes: np.ndarray) -> "Axes":
    """Draw a hierarchy as rows of bars, a row per level with the coarsest on top.

    Args:
        hierarchy: the classes.
        ax: axes to draw on; None: those of a new figure of pyplot.
        sizes: (C,) width of each finest class.
    """
    from matplotlib import colormaps, pyplot

    levels = hierarchy.levels
    if ax is None:
        _, ax = pyplot.subplots(figsize=(9, 0.6 * len(levels) + 0.8), layout="constrained")
    table = hierarchy.expand(np.arange(len(sizes)))
    order = np.lexsort(table.T)  # by the coarsest level first
    total = max(float(sizes.sum()), 1.0)
    colors = colormaps["Set3"](np.arange(12))  # light, so that names can be read on them
    for c, names in enumerate(hierarchy.names):
        left = 0.0
        for labels, members in itertools.groupby(order, lambda item, c=c: tuple(table[item, c:])):
            width = float(sizes[list(members)].sum())
            if labels[0] >= 0 and width:
                ax.barh(c, width, 0.94, left, color=colors[labels[-1] % len(colors)], edgecolor="white", linewidth=0.4)
            if labels[0] >= 0 and width >= 5 * total / _LETTERS:
                text = _cut(names[labels[0]], int(_LETTERS * width / total)).replace("$", r"\$")
                ax.text(left + width / 2, c, text, ha="center", va="center", fontsize=8)
            left += width
    ax.set_xlim(0, total)
    sized = zip(levels, hierarchy.num_classes, strict=True)
    ax.set_yticks(range(len(levels)), [f"{level}\n{size:,}" for level, size in sized])
    ax.set_xticks([])
    ax.spines[:].set_visible(False)
    return ax


def _cut(text: str, width: int) -> str:
    text = printable(" ".join(text.split()))
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"
