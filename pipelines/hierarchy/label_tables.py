"""Tables of labels, as a build, a release or a spreadsheet has them: items, how they are called, a column per level."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hgld.errors import TableError, excerpt
from hgld.hierarchy import Hierarchy
from hgld.tables import POLARS_FAULTS, CsvText, parquet_schema, read_parquet

IDS = ("landmark_id", "id", "key", "path")
"""Columns that tell items apart, the first of them that both tables have is taken; else it is the name."""

LANDMARK, SPLIT, NAMES = IDS[0], "split", ("supercategory", "name")
GROUP, TOP = "hierarchical_label", "natural_or_human_made"  # GLDv2's levels
NO_LEVELS = frozenset(
    (*IDS, SPLIT, *NAMES, "category", "title", "description", "url", "image", "images", "count", "score", "confidence")
)
"""Columns that are never taken for a level."""

UNLABELLED = "unclassified"
ROW, FILE = "__row", "__file"
_MOST_LEVELS = 16
_LABEL_SUFFIX = "_label_to_hierarchical.csv"
_LABELS, _TREE = "labels.csv", "hierarchy.parquet"
_TREE_COLUMNS = {"level", "label", "name", "parent"}
_LANDMARK_CLASS = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_-]*)/([0-9]{1,18})(?: .*)?", re.DOTALL)


@dataclass(frozen=True)
class LabelTable:
    """Items with what they are called and their labels, as text.

    Attributes:
        place: the file or the build's folder.
        files: names of the files that were read.
        rows: the cells of the columns that are used, null where empty, and ``__file`` and ``__row`` (line in a CSV,
            else row, from 1).
        found: all columns of the file.
        levels: columns that are levels, finest first.
        name: column of the items' names; None where there is none.
    """

    place: Path
    files: tuple[str, ...]
    rows: pl.DataFrame
    found: tuple[str, ...]
    levels: tuple[str, ...]
    name: str | None

    @classmethod
    def read(cls, place: Path) -> "LabelTable":
        """Read a CSV, a parquet table, a ``hierarchy.parquet``, or the folder of a build.

        Of a folder the label tables are read: ``{split}_label_to_hierarchical.csv`` of all its splits, else
        ``labels.csv``, else ``hierarchy.parquet``. A table with the column ``hierarchical_label`` is one of GLDv2's:
        its levels are that and ``natural_or_human_made``. In any other all columns are levels but those that say what
        an item is (``NO_LEVELS``); the more labels, the finer.

        Args:
            place: the file or folder.

        Raises:
            TableError: it cannot be read, has no rows or no column that could be a level.
            InputError: a ``hierarchy.parquet`` that is damaged.
        """
        files = _files(place)
        read = [_read(file, several=len(files) > 1) for file in files]
        parts = [part for part, _ in read]
        if any(part.columns != parts[0].columns for part in parts):
            raise TableError(f"{place}: its label tables have different columns; compare one file at a time.")
        rows = pl.concat(parts)
        if rows.is_empty():
            raise TableError(f"{files[0]}: no rows below the header; expected one item per row.")
        columns = tuple(column for column in rows.columns if column not in (ROW, FILE))
        name = next((column for column in NAMES if column in columns), None)
        names = tuple(file.name for file in files)
        return cls(place, names, rows, tuple(read[0][1]), _levels(rows, columns, name), name)


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    if labels := sorted(place.glob(f"*{_LABEL_SUFFIX}")):
        return labels
    for name in (_LABELS, _TREE):
        if (place / name).is_file():
            return [place / name]
    raise TableError(
        f"{place} is a folder without *{_LABEL_SUFFIX}, {_LABELS} or {_TREE}; expected that of a finished build. Name "
        "the file of the labels."
    )


def split_of(files: Sequence[str]) -> str | None:
    """Return the split that a label file's name states: ``train_label_to_hierarchical.csv`` is of train."""
    return files[0].removesuffix(_LABEL_SUFFIX) if len(files) == 1 and files[0].endswith(_LABEL_SUFFIX) else None


def _read(file: Path, *, several: bool) -> tuple[pl.DataFrame, Sequence[str]]:
    """Return the file's useful columns as text with the place of each row, and the names of all its columns."""
    table, found = _parquet(file) if file.suffix == ".parquet" else _csv(file)
    if several and SPLIT not in table.columns:
        table = table.with_columns(pl.lit(split_of([file.name])).alias(SPLIT))
    stripped = pl.exclude(ROW).str.strip_chars().replace("", None)
    return table.with_columns(stripped).with_columns(pl.lit(file.name).alias(FILE)), found


def _useful(file: Path, columns: Sequence[str]) -> list[str]:
    """Return the columns to read: who an item is, and its levels; refuse a table without levels."""
    who = [column for column in columns if column in (*IDS, SPLIT, *NAMES)]
    levels = [column for column in columns if column and column not in NO_LEVELS]
    if GROUP in columns:
        levels = [column for column in (GROUP, TOP) if column in columns]
    if not levels:
        raise TableError(
            f"{file} lacks a column of labels; found {_shown(columns)}. Expected one that says which item a row is "
            f"({', '.join((*IDS, NAMES[1]))}), and a column per level, such as {GROUP}."
        )
    if len(levels) > _MOST_LEVELS:
        raise TableError(
            f"{file} has {len(levels)} columns that could be levels ({_shown(levels)}); expected {_MOST_LEVELS} at "
            "most. Leave the others out of the file."
        )
    return [*who, *levels]


def _csv(file: Path) -> tuple[pl.DataFrame, Sequence[str]]:
    text = CsvText.read(file)
    columns = _useful(file, text.columns)
    rows = [(line, *cells) for line, cells in text.select(columns)]
    schema = {ROW: pl.Int64, **dict.fromkeys(columns, pl.String)}
    return pl.DataFrame(rows, schema=schema, orient="row"), text.columns


def _parquet(file: Path) -> tuple[pl.DataFrame, Sequence[str]]:
    try:
        found = parquet_schema(file)
        if set(found) == _TREE_COLUMNS:
            tree = _tree(Hierarchy.from_parquet(file))
            return tree, tree.columns[1:]
        columns = _useful(file, list(found))
        texts = read_parquet(file, columns=columns).select(pl.col(column).cast(pl.String) for column in columns)
    except (OSError, *POLARS_FAULTS) as error:
        raise TableError(f"{file}: not a readable parquet file of numbers and text ({excerpt(error)}).") from error
    return _numbered(texts), list(found)


def _tree(tree: Hierarchy) -> pl.DataFrame:
    """Return the finest classes of a tree as items; those of landmarks by split and id."""
    finest = tree.names[0]
    labels = tree.expand(range(len(finest)))
    coarser = {
        level: [None if c < 0 else tree.names[place][c] for c in labels[:, place].tolist()]
        for place, level in enumerate(tree.levels)
        if place
    }
    if tree.levels[0] == "landmark" and all(found := [_LANDMARK_CLASS.fullmatch(name) for name in finest]):
        who = {SPLIT: [match[1] for match in found if match], LANDMARK: [match[2] for match in found if match]}
    else:
        who = {NAMES[1]: list(finest)}
    return _numbered(pl.DataFrame(who | coarser, schema=dict.fromkeys(who | coarser, pl.String)))


def _numbered(texts: pl.DataFrame) -> pl.DataFrame:
    return texts.with_row_index(ROW, offset=1).with_columns(pl.col(ROW).cast(pl.Int64))


def _levels(rows: pl.DataFrame, columns: Sequence[str], name: str | None) -> tuple[str, ...]:
    levels = [column for column in columns if column not in NO_LEVELS]
    if GROUP in levels:
        return tuple(levels)
    if name is not None and len(levels) > 1:  # a level may hold the items themselves
        levels = [level for level in levels if not rows[level].equals(rows[name])]
    return tuple(sorted(levels, key=lambda level: -rows[level].n_unique()))  # in a tree the coarser has no more labels


def _shown(columns: Sequence[str]) -> str:
    return ", ".join(repr(name[:60]) for name in columns[:20])
