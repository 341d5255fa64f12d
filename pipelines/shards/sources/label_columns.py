"""Find the columns of a table that are levels of classes, finest first."""

from collections.abc import Mapping

import polars as pl

_MOST_COLUMNS = 40
_MOST_CLASSES = 0.6  # of the rows with a label: with more, a column names images, not classes
_LONGEST_NAME = 80  # letters on average: more are remarks
_AGREEMENT = 0.98  # of the classes have one parent: a typing error hides no level
_HINTS = (
    *(
        "class",
        "label",
        "species",
        "category",
        "product",
        "name",
        "fine",
        "item",
        "identity",
        "breed",
        "type",
        "variety",
    ),
)


def find_levels(columns: Mapping[str, pl.Series]) -> list[str]:
    """Return the columns that form the longest tree of classes, finest first.

    A column is a level above another if each class of the other has one class of it (spellings that differ in case or
    blanks count as one). Columns of nearly as many values as rows, of one value, of remarks, of fractions and of
    nothing are no levels; of two columns that divide the images alike the one with words is taken.

    Args:
        columns: text by name; null: unknown.
    """
    kept: dict[str, pl.Series] = {}
    for name, cells in list(columns.items())[:_MOST_COLUMNS]:
        plain = cells.str.to_lowercase().str.replace_all(r"[\s_-]+", " ").str.strip_chars()
        known = plain.drop_nulls()
        classes = known.n_unique()
        lengths = known.str.len_chars().mean()
        if not 2 <= classes <= max(2, _MOST_CLASSES * len(known)) or not isinstance(lengths, float):
            continue
        if lengths > _LONGEST_NAME or known.str.contains(r"^[+-]?\d*[.,]\d+(e[+-]?\d+)?$").mean() > 0.9:  # type: ignore[operator]
            continue
        kept[name] = plain
    counts = {name: cells.drop_nulls().n_unique() for name, cells in kept.items()}
    words = {name: not cells.drop_nulls().str.contains(r"^[+-]?\d+$").all() for name, cells in kept.items()}
    hinted = {name: any(hint in name.lower() for hint in _HINTS) for name in kept}
    ordered = sorted(kept, key=lambda name: (-counts[name], -words[name], -hinted[name]))
    best: dict[str, tuple[float, list[str]]] = {}
    for at in reversed(range(len(ordered))):  # the longest chain that begins at each column, coarsest columns first
        name = ordered[at]
        weight = 1.0 if words[name] else 0.5
        chains = [
            (best[other][0] + weight, [name, *best[other][1]])
            for other in ordered[at + 1 :]
            if counts[other] < counts[name] and _is_above(kept[name], kept[other])
        ]
        best[name] = max([(weight, [name]), *chains], key=lambda chain: chain[0])
    if not best:
        return []
    first = max(best, key=lambda name: (best[name][0], hinted[name], words[name], counts[name]))
    return best[first][1]


def _is_above(fine: pl.Series, coarse: pl.Series) -> bool:
    """Tell whether nearly each class of a column has one class of another."""
    pairs = pl.DataFrame({"fine": fine, "coarse": coarse}).drop_nulls().unique()
    parents = pairs.group_by("fine").len()["len"]
    return len(parents) > 0 and (parents == 1).sum() >= _AGREEMENT * len(parents)
