"""A comparison of two label files as Markdown."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.compare import Cell, Comparison, GroupMatch, Partitions, Tops

_MOST_GROUPS = 100
_MOST_CELLS = 30
_MARKUP = re.compile(r"([\\`*_\[\]<>|&#~])")


def markdown(comparison: "Comparison") -> str:
    """Coverage, measures, tops, best matches and the largest confusions, as tables; labels are escaped."""
    a, b = comparison.a, comparison.b
    parts = [
        f"# {_text(a.file)} (A) against {_text(b.file)} (B)",
        f"Joined on {', '.join(comparison.joined_on)}. Landmarks without a label, or `unclassified`, are not measured.",
        "## Coverage",
        _table(
            ["", "A", "B"],
            [
                ["landmarks", a.landmarks, b.landmarks],
                ["rows that repeat another", a.repeats, b.repeats],
                ["labelled", a.labelled, b.labelled],
                ["labelled, and in the other file", a.in_other, b.in_other],
                ["labelled in both", a.shared, b.shared],
                ["share of the labelled", _share(a.share), _share(b.share)],
                ["groups", a.groups, b.groups],
                ["distinct names", _number(a.names), _number(b.names)],
            ],
        ),
        "## Agreement of the groups",
        _partitions(comparison),
        *_tops(comparison.tops),
        *_matches("A", "B", comparison.matches_a),
        *_matches("B", "A", comparison.matches_b),
        *_confusion(comparison),
    ]
    return "\n\n".join(parts) + "\n"


def _partitions(comparison: "Comparison") -> str:
    def row(what: str, found: "Partitions") -> list[object]:
        figures = (found.ari, found.nmi, found.homogeneity, found.completeness, found.v_measure)
        return [what, found.items, found.groups_a, found.groups_b, *map(_figure, figures)]

    rows = [row("landmarks", comparison.landmarks)]
    note = "Neither file has names."
    if comparison.names is not None:
        rows.append(row("distinct names", comparison.names))
        note = (
            f"The names are {comparison.names_from}'s, each in the group of most of its landmarks; A puts the "
            f"landmarks of {comparison.mixed_a} names into several groups, B of {comparison.mixed_b}."
        )
    head = ["over", "items", "groups of A", "groups of B", "ARI", "NMI", "homogeneity", "completeness", "V-measure"]
    return f"{_table(head, rows)}\n\nHomogeneity and completeness take B for the reference. {note}"


def _tops(tops: "Tops | None") -> Iterable[str]:
    yield "## Natural or human-made"
    if tops is None:
        yield "One of the files does not say."
        return
    if tops.accuracy is None or tops.kappa is None:
        yield f"Undecided in one file or both for all {tops.undecided} landmarks in common."
        return
    yield (
        f"Accuracy {_share(tops.accuracy)}, Cohen's kappa {_figure(tops.kappa)} over {tops.landmarks} landmarks; "
        f"{tops.undecided} more are undecided in one file or both."
    )
    yield _table(["A", "B", "landmarks"], [[_text(c.a), _text(c.b), c.landmarks] for c in tops.cells])


def _matches(own: str, other: str, matches: Sequence["GroupMatch"]) -> Iterable[str]:
    yield f"## Best match in {other} of each group of {own}"
    head = [own, other, f"in {own}", f"in {other}", "shared", "precision", "recall", "F1", "Jaccard"]
    rows = [
        [
            _text(m.group),
            _text(m.match),
            m.landmarks,
            m.match_landmarks,
            m.shared,
            *map(_figure, (m.precision, m.recall, m.f1, m.jaccard)),
        ]
        for m in matches
    ]
    yield _table(head, rows, most=_MOST_GROUPS)


def _confusion(comparison: "Comparison") -> Iterable[str]:
    yield "## Largest confusions"
    matched = {(m.group, m.match) for m in comparison.matches_a} | {(m.match, m.group) for m in comparison.matches_b}
    others: list[Cell] = [cell for cell in comparison.confusion if (cell.a, cell.b) not in matched]
    if not others:
        yield "None beside the best matches."
        return
    yield "Landmarks that share a group of A and a group of B which are not each other's best match, either way."
    rows = [[_text(c.a), _text(c.b), c.landmarks, _number(c.names)] for c in others]
    yield _table(["A", "B", "landmarks", "names"], rows, most=_MOST_CELLS)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], most: int | None = None) -> str:
    kinds = ["--:" if str(cell)[:1].isdigit() else ":--" for cell in rows[0]]
    shown = [" | ".join(map(str, row)) for row in ([*head], kinds, *rows[:most])]
    more = f"\n\n{len(rows) - most} more rows are left out here." if most is not None and len(rows) > most else ""
    return "\n".join(f"| {line} |" for line in shown) + more


def _text(text: str) -> str:
    """The text with Markdown's and HTML's marks disarmed, on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace("\\>", "&gt;")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _figure(value: float) -> str:
    return f"{value:.3f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
