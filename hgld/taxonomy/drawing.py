"""Drawings of a hierarchy: a tree of text for terminals, and HTML for notebooks; both of bounded size."""

import itertools
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from hgld.hierarchy import Hierarchy
from hgld.terminal import printable

MOST_BELOW = 8
_MOST_HTML = 500
_LEAST_NAME = 8


@dataclass(frozen=True)
class Branch:
    """A class as it is drawn.

    Attributes:
        name: of the class.
        level: column of its level; -1: stands for the classes of a level whose parent is unknown.
        label: its class id.
        items: finest classes below it, or items where they were counted.
    """

    name: str
    level: int
    label: int
    items: int


class Branches:
    """The classes of a hierarchy from the top down, with the number of finest classes (or items) of each.

    Args:
        hierarchy: the classes.
        counts: items of each class by level; None: every finest class counts once.
    """

    def __init__(self, hierarchy: Hierarchy, counts: Mapping[str, np.ndarray] | None = None) -> None:
        self.hierarchy = hierarchy
        self._counts = hierarchy.counts() if counts is None else counts
        self._below = [_grouped(parents, len(hierarchy.names[c + 1])) for c, parents in enumerate(hierarchy.parents)]

    @property
    def counts_items(self) -> bool:
        """True where a finest class counts for other than one."""
        return bool((self._counts[self.hierarchy.levels[0]] != 1).any())

    def top(self) -> list[Branch]:
        """Return the classes of the coarsest level, and one branch for each level with classes of unknown parents."""
        coarsest = len(self.hierarchy.levels) - 1
        found = self._branches(coarsest, np.arange(len(self.hierarchy.names[coarsest])))
        for c in range(coarsest - 1, -1, -1):
            unknown = np.flatnonzero(self.hierarchy.parents[c] < 0)
            if unknown.size:
                name = f"({self.hierarchy.levels[c + 1]} unknown)"
                items = int(self._counts[self.hierarchy.levels[c]][unknown].sum())
                found.append(Branch(name, -1 - c, -1, items))
        return found

    def below(self, branch: Branch) -> list[Branch]:
        """Return the classes below one, the largest first; one that only repeats its name is passed over."""
        if branch.level < 0:
            c = -1 - branch.level
            return self._branches(c, np.flatnonzero(self.hierarchy.parents[c] < 0))
        if not branch.level:
            return []
        c = branch.level - 1
        found = self._branches(c, self._below[c][branch.label])
        return self.below(found[0]) if len(found) == 1 and found[0].name == branch.name else found

    def _branches(self, c: int, labels: np.ndarray) -> list[Branch]:
        names, items = self.hierarchy.names[c], self._counts[self.hierarchy.levels[c]]
        made = [Branch(names[label], c, label, int(items[label])) for label in labels.tolist()]
        return sorted(made, key=lambda branch: (-branch.items, branch.name))


def _grouped(parents: np.ndarray, size: int) -> list[np.ndarray]:
    """Return the positions of the classes below each of ``size`` parents."""
    order = np.argsort(parents, kind="stable")
    ends = np.searchsorted(parents[order], np.arange(size + 1))
    return [order[ends[label] : ends[label + 1]] for label in range(size)]


def summary(hierarchy: Hierarchy) -> str:
    """Return the levels with their numbers of classes, coarsest first."""
    pairs = zip(hierarchy.levels, hierarchy.num_classes, strict=True)
    return " > ".join(f"{level} {size:,}" for level, size in reversed(list(pairs)))


def tree_text(
    hierarchy: Hierarchy,
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
        lines: of the drawing at most; without a depth only as many levels are drawn as fit. None: any number.
        width: columns of a line; longer names are cut.
        counts: items of each class by level (:meth:`Hierarchy.counts`); None: finest classes are counted.

    Returns:
        a line for the levels, then one for each class with its number of finest classes or items.
    """
    drawn = [_cut(printable(_plain(summary(hierarchy))), width)]
    branches = Branches(hierarchy, counts)
    left = 0
    if lines is not None and depth is None:
        depth = _fitting_depth(branches, most, lines)
        left = len(hierarchy.levels) - depth
    for number, (stem, name, count) in enumerate(_lines(branches, depth, most)):
        if lines is not None and number >= lines:
            drawn.append("…")
            break
        tail = f"  {count}" if count else ""
        room = max(width - _columns(stem) - _columns(tail), _LEAST_NAME)
        drawn.append(f"{stem}{_cut(printable(_plain(name)), room)}{tail}".rstrip())
    if left:
        drawn.append(f"({left} finer level{'s' if left > 1 else ''} not drawn)")
    return "\n".join(drawn)


def _fitting_depth(branches: Branches, most: int | None, lines: int) -> int:
    """Return the largest number of levels whose drawing has no more lines; at least one."""
    for depth in range(len(branches.hierarchy.levels), 1, -1):
        if sum(1 for _ in itertools.islice(_lines(branches, depth, most), lines + 1)) <= lines:
            return depth
    return 1


def _lines(branches: Branches, depth: int | None, most: int | None) -> Iterator[tuple[str, str, str]]:
    """Yield stem, name and count of each line, from the top down."""
    levels = len(branches.hierarchy.levels)
    lowest = 0 if depth is None else max(levels - depth, 0)
    waiting: list[tuple[str, str, Branch | str]] = []

    def put(indent: str, found: list[Branch]) -> None:
        shown: list[Branch | str] = list(found if most is None else found[:most])
        if len(shown) < len(found):
            left = found[len(shown) :]
            items = f", {sum(b.items for b in left):,} below" if left[0].level > 0 else ""
            shown.append(f"… {len(left):,} more{items}")
        last = len(shown) - 1
        waiting.extend((indent, "└─ " if i == last else "├─ ", shown[i]) for i in range(last, -1, -1))

    put("", branches.top())
    while waiting:
        indent, elbow, branch = waiting.pop()
        if isinstance(branch, str):
            yield indent + elbow, branch, ""
            continue
        level = branch.level if branch.level >= 0 else -branch.level
        yield indent + elbow, branch.name, f"{branch.items:,}" if level > 0 or branches.counts_items else ""
        if level > lowest:
            put(indent + ("   " if elbow.startswith("└") else "│  "), branches.below(branch))


def tree_html(hierarchy: Hierarchy, most: int = MOST_BELOW) -> str:
    """Draw a hierarchy as HTML: nested lists that open and close, names escaped, at most some 500 classes."""
    branches = Branches(hierarchy)
    budget = [_MOST_HTML]
    body = _html_list(branches, branches.top(), most, budget)
    sizes = " &gt; ".join(
        f"{escape(level)} <b>{size:,}</b>"
        for level, size in reversed(list(zip(hierarchy.levels, hierarchy.num_classes, strict=True)))
    )
    return f"<div><p>{sizes}</p>{body}</div>"


def _html_list(branches: Branches, found: list[Branch], most: int, budget: list[int]) -> str:
    parts = []
    for branch in found[:most]:
        if not budget[0]:
            break
        budget[0] -= 1
        name = escape(branch.name)
        below = branches.below(branch)
        if below:
            inner = _html_list(branches, below, most, budget)
            parts.append(f"<li><details><summary>{name} ({branch.items:,})</summary>{inner}</details></li>")
        else:
            parts.append(f"<li>{name}</li>")
    if len(parts) < len(found):
        parts.append(f"<li>… {len(found) - len(parts):,} more</li>")
    return f"<ul>{''.join(parts)}</ul>"


def tree_data(
    hierarchy: Hierarchy,
    *,
    depth: int | None = None,
    most: int | None = None,
    counts: Mapping[str, np.ndarray] | None = None,
) -> list[dict[str, Any]]:
    """Return the tree as JSON-ready objects: name, level, items, and below it the classes of the next level."""
    branches = Branches(hierarchy, counts)
    lowest = 0 if depth is None else max(len(hierarchy.levels) - depth, 0)

    def data(branch: Branch) -> dict[str, Any]:
        known = branch.level >= 0
        made: dict[str, Any] = {
            "name": branch.name if known else None,
            "level": hierarchy.levels[branch.level if known else -branch.level],
            "items": branch.items,
        }
        if (branch.level if known else -branch.level) > lowest:
            below = branches.below(branch)
            made["below"] = [data(b) for b in below[:most]]
            if most is not None and len(below) > most:
                made["left_out"] = len(below) - most
        return made

    return [data(branch) for branch in branches.top()]


def _plain(text: str) -> str:
    return " ".join(text.split())


def _columns(text: str) -> int:
    """Return the columns of a terminal that a text takes: two for wide characters, none for combining ones."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _cut(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    while text and _columns(text) > width - 1:
        text = text[:-1]
    return f"{text}…"
