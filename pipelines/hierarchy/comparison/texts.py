"""A comparison told to people: a summary for the terminal, or Markdown; short, or with all groups and cells."""

import re
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .compare import Cell, Comparison, GroupMatch, LevelComparison

CONFUSIONS = 10
_LONGEST = 44
_COLUMNS = 110
_MARKUP = re.compile(r"([\\`*_\[\]<>|&#~])")


@dataclass(frozen=True)
class _Table:
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    texts: int = 1  # leading columns that are text, the others are numbers


@dataclass(frozen=True)
class _Heading:
    text: str


_Part = str | _Heading | _Table


def summary(comparison: Comparison, *, everything: bool = False) -> str:
    """Return the comparison as plain text with columns that are aligned.

    Args:
        comparison: what is told.
        everything: with the best match of every group and all confusions at every level.
    """
    return _joined(map(_plain, _parts(comparison, everything)))


def markdown(comparison: Comparison, *, everything: bool = False) -> str:
    """Return the comparison as Markdown, labels with its markup and that of HTML escaped; see :func:`summary`."""
    return _joined(map(_marked, _parts(comparison, everything)))


def _joined(parts: Iterator[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _parts(comparison: Comparison, everything: bool) -> Iterator[_Part]:
    a, b = comparison.a, comparison.b
    yield _Heading(f"{_one_line(a.file)} (A) against {_one_line(b.file)} (B)")
    yield _taken(comparison)
    yield _Table(
        ["", "A", "B"],
        [
            ["items", a.landmarks, b.landmarks],
            ["rows that repeat another", a.repeats, b.repeats],
            [f"with a label ({_pair(a.levels[0], b.levels[0])})", a.labelled, b.labelled],
            ["of these also in the other", a.in_other, b.in_other],
            ["labelled in both", a.shared, b.shared],
            ["share of the labelled", _share(a.share), _share(b.share)],
            ["groups", a.groups, b.groups],
            ["distinct names", a.names, b.names],
        ],
    )
    yield _Heading("Agreement, level by level")
    yield from _agreement(comparison)
    yield _Heading("Over all levels")
    yield from _ancestors(comparison)
    for level in comparison.levels if everything else comparison.levels[:1]:
        yield from _confusions(level, everything)
    if everything:
        for level in comparison.levels:
            yield from _matches(level, "A", "B", level.matches_a)
            yield from _matches(level, "B", "A", level.matches_b)


def _taken(comparison: Comparison) -> str:
    """Tell which files and columns were taken."""
    a, b = comparison.a, comparison.b
    how = {
        "asked": "as asked",
        "name": "by equal names",
        "name and order": "by equal names, the others by their order",
        "order": "by their order",
    }[comparison.paired_by]
    on = _pair(", ".join(a.on), ", ".join(b.on))
    levels = "; ".join(_pair(one, other) for one, other in zip(a.levels, b.levels, strict=True))
    text = f"Items are joined on {_one_line(on)}. Levels compared: {_one_line(levels)} (paired {how}; finest first)."
    for side, coverage in (("A", a), ("B", b)):
        if coverage.not_compared:
            text += f" Not compared, only in {side}: {_one_line(', '.join(coverage.not_compared))}."
        if len(coverage.files) > 1 or coverage.files != (coverage.file,):
            text += f" {side} is read from {_one_line(', '.join(coverage.files))}."
    if comparison.names_from is not None:
        of = a if comparison.names_from == "A" else b
        text += f" Names are {comparison.names_from}'s {of.name}."
    return text


def _agreement(comparison: Comparison) -> Iterator[_Part]:
    head = ["level", "over", "items", "groups A", "groups B", "ARI", "NMI", "homogeneity", "completeness", "V-measure"]
    rows: list[list[object]] = []
    for level in comparison.levels:
        for what, found in (("items", level.items), ("names", level.names)):
            if found is not None:
                figures = (found.ari, found.nmi, found.homogeneity, found.completeness, found.v_measure)
                counts = (found.items, found.groups_a, found.groups_b)
                rows.append([_level(level), what, *counts, *map(_figure, figures)])
    yield _Table(head, rows, texts=2)
    yield (
        "ARI is 1 where both group alike and about 0 by chance; NMI, the same as V-measure, the harmonic mean of "
        "homogeneity (A's groups hold items of one group of B) and completeness (B's groups are whole in A). A name "
        "counts once, in the group of most of its items."
    )
    mixed = [level for level in comparison.levels if level.mixed_a or level.mixed_b]
    for level in mixed:
        yield f"{_level(level)}: names in several groups: {level.mixed_a} in A, {level.mixed_b} in B."
    labelled = [level for level in comparison.levels if level.same is not None]
    for level in labelled:
        yield (
            f"{_level(level)}: {_share(level.same)} have the same label (kappa {_figure(level.kappa)}); A and B share "
            f"{level.same_labels} labels."
        )
    compared = {(level.a, level.b) for level in comparison.levels}
    for pair in zip(comparison.a.levels, comparison.b.levels, strict=True):
        if pair not in compared:
            yield f"{_one_line(_pair(*pair))}: no item has a label in both."
    if comparison.tops is not None and comparison.tops.undecided:
        yield f"Natural or human-made: undecided in one or both for {comparison.tops.undecided} items."


def _ancestors(comparison: Comparison) -> Iterator[_Part]:
    found = comparison.ancestors
    rows = [
        ["labels as they are written", *map(_figure, (found.precision, found.recall, found.f1))],
        [
            "labels matched one to one",
            *map(_figure, (found.matched_precision, found.matched_recall, found.matched_f1)),
        ],
    ]
    yield _Table(["hierarchical", "precision", "recall", "F1"], rows)
    yield (
        f"Over the labels of {found.items} items at all levels compared: precision is the share of A's that B has "
        "too, recall of B's that A has. Matched: a label of A stands for at most one of B, chosen so that most agree."
    )
    purities = [level for level in comparison.levels if level.dendrogram_purity is not None]
    if purities:
        yield _Table(
            ["dendrogram purity of A's tree", "for B's groups"],
            [[_level(level), _figure(level.dendrogram_purity)] for level in purities],
        )
        yield (
            "Of two items of one group of B: the share of that group below the first node of A's tree that holds both, "
            "in the mean over all such pairs."
        )


def _confusions(level: LevelComparison, everything: bool) -> Iterator[_Part]:
    matched = {(m.group, m.match) for m in level.matches_a} | {(m.match, m.group) for m in level.matches_b}
    others: list[Cell] = [cell for cell in level.confusion if cell.a != cell.b and (cell.a, cell.b) not in matched]
    shown = others if everything else others[:CONFUSIONS]
    yield _Heading(f"{'All' if everything else 'Largest'} confusions: {_level(level)}")
    if not others:
        yield "None beside the best matches."
        return
    yield "Items that share a group of A and a group of B which are neither called alike nor each other's best match."
    names = any(cell.names is not None for cell in shown)
    rows = [[_Label(c.a), _Label(c.b), c.landmarks, *([c.names] if names else [])] for c in shown]
    yield _Table(["A", "B", "items", *(["names"] if names else [])], rows, texts=2)
    if len(others) > len(shown):
        yield f"{len(others) - len(shown)} more with {sum(c.landmarks for c in others[len(shown) :])} items: --all."


def _matches(level: LevelComparison, side: str, other: str, matches: Sequence[GroupMatch]) -> Iterator[_Part]:
    yield _Heading(f"Best match in {other} of each group of {side}: {_level(level)}")
    head = [side, other, f"in {side}", f"in {other}", "shared", "precision", "recall", "F1", "Jaccard"]
    rows = [
        [
            _Label(m.group),
            _Label(m.match),
            m.landmarks,
            m.match_landmarks,
            m.shared,
            *map(_figure, (m.precision, m.recall, m.f1, m.jaccard)),
        ]
        for m in matches
    ]
    yield _Table(head, rows, texts=2)


# -- how parts are written -----------------------------------------------------------------------------------------


class _Label(str):
    """A label as a cell: cut where a line of a terminal would be too long."""

    __slots__ = ()


def _level(level: LevelComparison) -> str:
    return _one_line(_pair(level.a, level.b))


def _pair(a: str, b: str) -> str:
    return a if a == b else f"{a} (A), {b} (B)"


def _plain(part: _Part) -> str:
    if isinstance(part, _Heading):
        return part.text
    if isinstance(part, str):
        return textwrap.fill(part, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    cells = [
        [*part.head],
        *([_cut(_cell(cell)) if isinstance(cell, _Label) else _cell(cell) for cell in row] for row in part.rows),
    ]
    widths = [max(_width(row[place]) for row in cells) for place in range(len(part.head))]
    lines = []
    for row in cells:
        padded = [
            cell + " " * (width - _width(cell)) if place < part.texts else " " * (width - _width(cell)) + cell
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _marked(part: _Part) -> str:
    if isinstance(part, _Heading):
        return f"## {_escaped(part.text)}"
    if isinstance(part, str):
        return _escaped(part)
    kinds = [":--" if place < part.texts else "--:" for place in range(len(part.head))]
    rows = [[*part.head], kinds, *([_escaped(_cell(cell)) for cell in row] for row in part.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: object) -> str:
    return "–" if value is None else _one_line(value) if isinstance(value, str) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _width(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _escaped(text: str) -> str:
    """Escape the markup of Markdown and HTML, but for _ inside a word, which is none."""
    escaped = _MARKUP.sub(r"\\\1", text).replace("\\<", "&lt;").replace("\\>", "&gt;")
    return re.sub(r"(?<=\w)\\_(?=\w)", "_", escaped)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
