"""Comparison of two hierarchies, such as a regenerated hierarchy and a reference.

Items that both tables have are paired, and their labels are compared per level and over all levels. Directed measures
take B as the reference: homogeneity is 1 if every group of A holds items of a single group of B.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text
from sklearn.metrics import (
    adjusted_mutual_info_score,
    adjusted_rand_score,
    homogeneity_completeness_v_measure,
    normalized_mutual_info_score,
)

from hgld.errors import TableError, excerpt, quoted, some
from hgld.hierarchy import Hierarchy
from hgld.tables import POLARS_FAULTS, CsvText, parquet_schema, read_parquet
from hgld.terminal import printable

from .review.agreement import cohens_kappa

IDS = ("landmark_id", "id", "key", "path")
"""Columns that identify items; the first one that both tables have is used, else the name."""

LANDMARK, SPLIT, NAMES = IDS[0], "split", ("supercategory", "name")
GROUP, TOP = "hierarchical_label", "natural_or_human_made"  # GLDv2's levels
NO_LEVELS = frozenset(
    (*IDS, SPLIT, *NAMES, "category", "title", "description", "url", "image", "images", "count", "score", "confidence")
)
"""Columns that are never levels."""

UNLABELLED = "unclassified"
ROW, KEY = "__row", "__key"
CONFUSIONS = 10
_MOST_LEVELS = 16
_LABEL_SUFFIX = "_label_to_hierarchical.csv"
_LABELS, _TREE = "labels.csv", "hierarchy.parquet"
_TREE_COLUMNS = {"level", "label", "name", "parent"}
_LANDMARK_CLASS = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_-]*)/([0-9]{1,18})(?: .*)?", re.DOTALL)
_LONGEST, _COLUMNS = 44, 110


@dataclass(frozen=True)
class Coverage:
    """Numbers of items in one table, and of items that the other table also has.

    Attributes:
        file: name of the file or folder.
        files: names of the files that were read.
        levels: the compared levels of the file, finest first.
        not_compared: levels of the file that were not compared.
        items: number of items of the table.
        labelled: number of items with a label at the finest level compared; other items do not enter the measures.
        shared: number of labelled items that the other table labels too.
        groups: number of distinct labels at the finest level compared.
    """

    file: str
    files: tuple[str, ...]
    levels: tuple[str, ...]
    not_compared: tuple[str, ...]
    items: int
    labelled: int
    shared: int
    groups: int


@dataclass(frozen=True)
class Partitions:
    """The agreement of two partitions of the same items.

    Attributes:
        items: number of items or names.
        groups_a, groups_b: number of groups in each partition.
        ari: adjusted Rand index (Hubert and Arabie 1985): 1 for equal partitions, 0 by chance.
        nmi: mutual information divided by the arithmetic mean of the entropies, which is the V-measure.
        ami: mutual information adjusted for chance (Vinh, Epps and Bailey 2010).
        homogeneity, completeness: Rosenberg and Hirschberg 2007, with B as the reference.
    """

    items: int
    groups_a: int
    groups_b: int
    ari: float
    nmi: float
    ami: float
    homogeneity: float
    completeness: float


@dataclass(frozen=True)
class Cell:
    """A cell of the confusion: the number of items that A puts into group ``a`` and B into group ``b``."""

    a: str
    b: str
    items: int


@dataclass(frozen=True)
class LevelComparison:
    """The agreement at one level.

    Attributes:
        a, b: names of the compared columns in the two tables.
        items: the partitions of the items that both tables label.
        names: the partitions of the distinct names. A name is in the group of most of its items; if groups tie, in the
            first by label. None if neither table has names, or if names identify the items.
        same: share of the items with the same label; None if the tables have no label in common.
        kappa: Cohen's kappa of the labels; None if the tables have no label in common.
        confusion: all cells that are not empty, the largest first.
    """

    a: str
    b: str
    items: Partitions
    names: Partitions | None
    same: float | None
    kappa: float | None
    confusion: tuple[Cell, ...]


@dataclass(frozen=True)
class AncestorAgreement:
    """Hierarchical precision, recall and F1 over the items' labels at all compared levels.

    An item has the set P of labels in A and the set T in B. Precision is ``sum(len(P & T)) / sum(len(P))`` over all
    items, recall is ``sum(len(P & T)) / sum(len(T))``, and F1 is their harmonic mean (Kiritchenko, Matwin and Famili
    2005). A value is None if its denominator is 0.
    """

    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`.

    Attributes:
        joined_on: the columns that identify an item, as A calls them.
        paired_by: how the levels were paired: by equal ``name`` or by ``order``.
        a, b: coverage of the two tables.
        levels: the agreement at each pair of levels, finest first.
        ancestors: precision, recall and F1 over all pairs of levels together.
    """

    joined_on: tuple[str, ...]
    paired_by: str
    a: Coverage
    b: Coverage
    levels: tuple[LevelComparison, ...]
    ancestors: AncestorAgreement

    @property
    def finest(self) -> LevelComparison:
        """The agreement at the finest level compared."""
        return self.levels[0]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return asdict(self)


def compare(a: Path, b: Path) -> Comparison:
    """Compare two tables of labels.

    Items are joined on the first of ``landmark_id``, ``id``, ``key`` and ``path`` that both tables have. Without such a
    column they are joined on their names; a name then is one item, in the group of most of its rows. If both tables
    have a column ``split``, an item is (split, id). Otherwise an id must not occur in two splits. Levels of equal names
    are paired. If no names are equal, levels are paired by their order, finest first.

    Args:
        a: the table to judge, in any form that :meth:`LabelTable.read` reads.
        b: the reference.

    Raises:
        TableError: a table cannot be read, contradicts itself or lacks a column, or the two tables have no labelled
            item in common.
        InputError: a ``hierarchy.parquet`` is damaged.
    """
    tables = [LabelTable.read(a), LabelTable.read(b)]
    columns = _join_columns(tables)
    pairs, paired_by = [(level, level) for level in tables[0].levels if level in tables[1].levels], "name"
    if not pairs:
        pairs, paired_by = list(zip(tables[0].levels, tables[1].levels, strict=False)), "order"
    sides = [_items(*each) for each in zip("ab", tables, columns, strict=True)]
    keys = _keys(tables, sides)
    both = sides[0].join(sides[1].drop([] if SPLIT in keys else SPLIT), on=keys, nulls_equal=True).sort(keys)
    levels = [(f"a:{one}", f"b:{other}") for one, other in pairs]
    labelled = len(both.drop_nulls(levels[0]))
    if not labelled:
        first = [", ".join(str(key)[:60] for key in side[KEY].sort().head(3)) for side in sides]
        raise TableError(
            f"{a} and {b} have {len(both)} items in common by {' and '.join(dict.fromkeys(columns))}, but no item has "
            f"a label in both ({pairs[0][0]} and {pairs[0][1]}), so nothing can be compared. The first ids are "
            f"{first[0]} and {first[1]}. Are these tables of the same split?"
        )
    by_name = columns == [table.name for table in tables]
    named = [f"{side} name" for side, table in zip("ab", tables, strict=True) if table.name and not by_name]
    both = both.with_columns(shown=pl.col(named[0]) if named else pl.lit(None, dtype=pl.String))
    coverage = [
        Coverage(
            file=table.place.name,
            files=table.files,
            levels=(own := tuple(pair[i] for pair in pairs)),
            not_compared=tuple(level for level in table.levels if level not in own),
            items=len(side),
            labelled=len(known := side[levels[0][i]].drop_nulls()),
            shared=labelled,
            groups=known.n_unique(),
        )
        for i, (table, side) in enumerate(zip(tables, sides, strict=True))
    ]
    compared = [_level(known, *pair) for pair in levels if not (known := both.drop_nulls(pair)).is_empty()]
    return Comparison(
        joined_on=(*([SPLIT] if SPLIT in keys else []), columns[0]),
        paired_by=paired_by,
        a=coverage[0],
        b=coverage[1],
        levels=tuple(compared),
        ancestors=ancestor_agreement([both[one] for one, _ in levels], [both[other] for _, other in levels]),
    )


# -- tables of labels ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelTable:
    """Items with their names and their labels, as text.

    Attributes:
        place: the file or the build's folder.
        files: names of the files that were read.
        rows: the cells of the columns that are used (null if empty), and ``__row``, the line in a CSV or the row (from
            1) in other files.
        levels: columns that are levels, finest first.
        name: column of the items' names; None if the table has no such column.
    """

    place: Path
    files: tuple[str, ...]
    rows: pl.DataFrame
    levels: tuple[str, ...]
    name: str | None

    @classmethod
    def read(cls, place: Path) -> "LabelTable":
        """Read a CSV, a parquet table, a ``hierarchy.parquet``, or the folder of a build.

        A folder's label tables are ``{split}_label_to_hierarchical.csv`` of all its splits, else ``labels.csv``, else
        ``hierarchy.parquet``. A table with the column ``hierarchical_label`` is a GLDv2 table, whose levels are this
        column and ``natural_or_human_made``. In other tables every column is a level, except the columns in
        ``NO_LEVELS``; a level with more labels is finer.

        Args:
            place: the file or folder.

        Raises:
            TableError: the file cannot be read, or has no rows or no column that could be a level.
            InputError: a ``hierarchy.parquet`` is damaged.
        """
        files = [place]
        if place.is_dir():
            known = [place / name for name in (_LABELS, _TREE) if (place / name).is_file()]
            files = sorted(place.glob(f"*{_LABEL_SUFFIX}")) or known[:1]
        if not files:
            raise TableError(
                f"{place} is a folder without *{_LABEL_SUFFIX}, {_LABELS} or {_TREE}; expected the folder of a "
                "finished build. Or pass the file with the labels."
            )
        parts = [_read(file) for file in files]
        if len(files) > 1:
            parts = [
                rows if SPLIT in rows.columns else rows.with_columns(pl.lit(split_of([file.name])).alias(SPLIT))
                for rows, file in zip(parts, files, strict=True)
            ]
        if any(part.columns != parts[0].columns for part in parts):
            raise TableError(f"{place}: its label tables have different columns; compare one file at a time.")
        rows = pl.concat(parts).with_columns(pl.exclude(ROW).str.strip_chars().replace("", None))
        if rows.is_empty():
            raise TableError(f"{files[0]}: no rows below the header; expected one item per row.")
        name = next((column for column in NAMES if column in rows.columns), None)
        levels = [column for column in rows.columns if column not in (*NO_LEVELS, ROW)]
        if GROUP not in levels:
            if name is not None and len(levels) > 1:  # the finest level may hold the items' own names
                levels = [level for level in levels if not rows[level].equals(rows[name])]
            # in a tree, a coarser level has at most as many labels
            levels.sort(key=lambda level: -rows[level].n_unique())
        return cls(place, tuple(file.name for file in files), rows, tuple(levels), name)


def split_of(files: Sequence[str]) -> str | None:
    """Return the split in the name of a single label file: ``train_label_to_hierarchical.csv`` has the split train."""
    return files[0].removesuffix(_LABEL_SUFFIX) if len(files) == 1 and files[0].endswith(_LABEL_SUFFIX) else None


def _read(file: Path) -> pl.DataFrame:
    """Return the useful columns of a file as text, with each row's line or number."""
    if file.suffix != ".parquet":
        text = CsvText.read(file)
        columns = _useful(file, text.columns)
        rows = [(line, *cells) for line, cells in text.select(columns)]
        return pl.DataFrame(rows, schema={ROW: pl.Int64, **dict.fromkeys(columns, pl.String)}, orient="row")
    try:
        found = list(parquet_schema(file))
        if set(found) == _TREE_COLUMNS:
            texts = _tree(Hierarchy.from_parquet(file))
        else:
            texts = read_parquet(file, columns=_useful(file, found)).select(pl.all().cast(pl.String))
    except (OSError, *POLARS_FAULTS) as error:
        raise TableError(f"{file}: not a readable parquet file of numbers and text ({excerpt(error)}).") from error
    return texts.with_row_index(ROW, offset=1).with_columns(pl.col(ROW).cast(pl.Int64))


def _useful(file: Path, columns: Sequence[str]) -> list[str]:
    """Return the columns that identify an item, and its levels; raise an error for a table without levels."""
    levels = [column for column in columns if column and column not in NO_LEVELS]
    if GROUP in columns:
        levels = [column for column in (GROUP, TOP) if column in columns]
    if not 1 <= len(levels) <= _MOST_LEVELS:
        raise TableError(
            f"{file} has {len(levels)} columns of labels; found {some([repr(name[:60]) for name in columns], 20)}. "
            f"Expected one column that identifies the items ({', '.join((*IDS, NAMES[1]))}), and one to {_MOST_LEVELS} "
            f"columns of levels, such as {GROUP}. Remove other columns from the file."
        )
    return [*(column for column in columns if column in (*IDS, SPLIT, *NAMES)), *levels]


def _tree(tree: Hierarchy) -> pl.DataFrame:
    """Return the finest classes of a tree as items; landmarks are identified by split and id."""
    finest = tree.names[0]
    labels = tree.expand(range(len(finest)))
    columns: dict[str, list[Any]] = {NAMES[1]: list(finest)}
    if tree.levels[0] == "landmark" and all(found := [_LANDMARK_CLASS.fullmatch(name) for name in finest]):
        columns = {SPLIT: [match[1] for match in found if match], LANDMARK: [match[2] for match in found if match]}
    for place, level in list(enumerate(tree.levels))[1:]:
        columns[level] = [None if c < 0 else tree.names[place][c] for c in labels[:, place].tolist()]
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


# -- items of both tables ------------------------------------------------------------------------------------------


def _join_columns(tables: Sequence[LabelTable]) -> list[str]:
    """Return the column of each table that identifies items."""
    for column in IDS:
        if all(column in table.rows.columns for table in tables):
            return [column, column]
    names = [table.name for table in tables if table.name]
    if len(names) == len(tables):
        return names
    shown = " and ".join(f"{table.place} has {', '.join(map(quoted, table.rows.columns[1:]))}" for table in tables)
    raise TableError(
        f"the two tables have no common column that identifies the items: {shown}; expected {', '.join(IDS)} or "
        f"{NAMES[1]}. "
        "Rename the column."
    )


def _items(side: str, table: LabelTable, on: str) -> pl.DataFrame:
    """Return one row per item: ``split``, ``KEY``, ``{side} name``, and every level as ``{side}:{level}``."""
    none, by_name = pl.lit(None, dtype=pl.String), on == table.name
    levels = []
    for level in table.levels:
        lower = pl.col(level).str.to_lowercase()
        text = lower if level == TOP else pl.col(level)
        levels.append(pl.when(lower != UNLABELLED).then(text).alias(f"{side}:{level}"))
    folded = none
    if table.name:
        folded = pl.col(table.name).str.normalize("NFC").str.replace_all(r"\s+", " ").str.to_lowercase()
    cells = table.rows.select(
        ROW,
        (pl.col(SPLIT) if SPLIT in table.rows.columns and not by_name else none).alias(SPLIT),
        (folded if by_name else pl.col(on)).alias(KEY),
        folded.alias(f"{side} name"),
        *levels,
    )
    if not by_name:
        return _checked(table, cells, on)
    named = cells.drop_nulls(KEY)
    found = named.select(SPLIT, KEY, f"{side} name").unique(KEY)
    for level in cells.columns[4:]:
        found = found.join(_most(named.drop_nulls(level), KEY, level), on=KEY, how="left")
    return found


def _most(rows: pl.DataFrame, key: str, label: str) -> pl.DataFrame:
    """Return for every key the label of most of its rows; if labels tie, the first label in order."""
    counts = rows.group_by(key, label).len().sort(key, "len", label, descending=[False, True, False])
    return counts.unique(key, keep="first", maintain_order=True).select(key, label)


def _checked(table: LabelTable, cells: pl.DataFrame, on: str) -> pl.DataFrame:
    """Return the distinct rows, with landmarks' keys as numbers; raise an error for bad keys and contradicting rows."""
    right = pl.col(KEY).str.contains(r"^[0-9]{1,18}$") if on == LANDMARK else pl.col(KEY).is_not_null()
    if not (odd := cells.filter(~right.fill_null(value=False))).is_empty():
        where, key = f"{table.place}, line {odd[ROW][0]}", odd[KEY][0]
        if on != LANDMARK:
            raise TableError(f"{where}: the column {on} is empty; expected the item's {on}. Fill in the cell.")
        raise TableError(f"{where}: {on} is {quoted((key or '')[:80])}; expected a whole number. Correct the row.")
    cells = cells.with_columns(pl.col(KEY).cast(pl.Int64)) if on == LANDMARK else cells
    items = cells.unique(cells.columns[1:], keep="first", maintain_order=True)
    twice = items.filter(pl.struct(SPLIT, KEY).is_duplicated()).sort(SPLIT, KEY, ROW)
    if not twice.is_empty():
        raise TableError(
            f"{table.place}: {on} {twice[KEY][0]} has different cells in line {twice[ROW][0]} and line "
            f"{twice[ROW][1]}; expected one row per item. Delete the wrong row, or add a column {SPLIT!r} if the rows "
            "belong to different splits."
        )
    return items.drop(ROW)


def _keys(tables: Sequence[LabelTable], sides: list[pl.DataFrame]) -> list[str]:
    """Return the columns to join on; if only the file name states the split, add a split column in place."""
    for i in (0, 1):
        split = split_of(tables[i].files)
        if sides[i][SPLIT].null_count() == len(sides[i]) and split in sides[1 - i][SPLIT].drop_nulls():
            sides[i] = sides[i].with_columns(pl.lit(split).alias(SPLIT))
    if all(side[SPLIT].null_count() < len(side) for side in sides):
        return [SPLIT, KEY]
    for side, table, other in zip(sides, tables, reversed(tables), strict=True):
        twice = side.filter(pl.col(KEY).is_duplicated()).sort(KEY, SPLIT)
        if not twice.is_empty():
            raise TableError(
                f"{table.place}: {twice[KEY][0]} occurs in the splits {' and '.join(twice[SPLIT].head(2))}, and "
                f"{other.place} has no column 'split' to tell them apart. Add the column there, or compare one split's "
                "file at a time."
            )
    return [KEY]


# -- measures ------------------------------------------------------------------------------------------------------


def _level(both: pl.DataFrame, a: str, b: str) -> LevelComparison:
    """Compare one pair of levels over the items with both labels."""
    labels = both.select(pl.col(a).alias("label"), pl.col(b).alias("label_b"), "shown")
    confusion = labels.group_by("label", "label_b").agg(items=pl.len().cast(pl.Int64))
    confusion = confusion.sort("items", "label", "label_b", descending=[True, False, False])
    has_common = not set(labels["label"]).isdisjoint(labels["label_b"])
    named = labels.drop_nulls("shown")
    columns = ("label", "label_b")
    return LevelComparison(
        a=a.partition(":")[2],
        b=b.partition(":")[2],
        items=partitions(labels["label"], labels["label_b"]),
        names=None if named.is_empty() else partitions(*(_most(named, "shown", c)[c] for c in columns)),
        same=int((labels["label"] == labels["label_b"]).sum()) / len(labels) if has_common else None,
        kappa=cohens_kappa(labels["label"].to_list(), labels["label_b"].to_list()) if has_common else None,
        confusion=tuple(Cell(*row) for row in confusion.iter_rows()),
    )


def partitions(a: pl.Series, b: pl.Series) -> Partitions:
    """Return agreement scores of two partitions of the same items (ARI, NMI, AMI, homogeneity, completeness).

    No group may be null.
    """
    codes_a, codes_b = a.rank("dense").to_numpy(), b.rank("dense").to_numpy()
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(codes_b, codes_a)
    ari, nmi, ami = (
        score(codes_b, codes_a)
        for score in (adjusted_rand_score, normalized_mutual_info_score, adjusted_mutual_info_score)
    )
    return Partitions(len(a), a.n_unique(), b.n_unique(), ari, nmi, ami, homogeneity, completeness)


def ancestor_agreement(a: Sequence[pl.Series], b: Sequence[pl.Series]) -> AncestorAgreement:
    """Measure the labels of the same items over all levels.

    Args:
        a: the labels of A, one series per level, null if an item has no label.
        b: the labels of B at the same levels.
    """
    size_a, size_b = (sum(len(s) - s.null_count() for s in side) for side in (a, b))
    same = sum(int((one == other).sum() or 0) for one, other in zip(a, b, strict=True))
    precision, recall = (same / size if size else None for size in (size_a, size_b))
    return AncestorAgreement(precision, recall, 2 * same / (size_a + size_b) if size_a + size_b else None)


# -- the text output --------------------------------------------------------------------------------------------------


def summary(comparison: Comparison) -> Iterator[str | Table]:
    """Yield the comparison as printable texts and tables."""
    a, b = comparison.a, comparison.b
    yield f"{_cell(a.file)} (A) against {_cell(b.file)} (B)"
    levels = "; ".join(_pair(one, other) for one, other in zip(a.levels, b.levels, strict=True))
    how = {"name": "by equal names", "order": "by their order"}[comparison.paired_by]
    text = f"Items are joined on {', '.join(comparison.joined_on)}. "
    text += f"Levels compared: {levels} (paired {how}; finest first)."
    for side, coverage in (("A", a), ("B", b)):
        if coverage.not_compared:
            text += f" Not compared, only in {side}: {', '.join(coverage.not_compared)}."
    yield textwrap.fill(" ".join(text.split()), _COLUMNS, break_long_words=False, break_on_hyphens=False)
    rows = [(name, getattr(a, name), getattr(b, name)) for name in ("items", "labelled", "shared", "groups")]
    yield _table(["", "A", "B"], rows)
    measured = []
    for level in comparison.levels:
        for over, found in (("items", level.items), ("names", level.names)):
            if found is not None:
                figures = (found.ari, found.ami, found.nmi, found.homogeneity, found.completeness)
                counts = (found.items, found.groups_a, found.groups_b)
                measured.append((_pair(level.a, level.b), over, *counts, *figures))
    head = ["level", "over", "number", "groups A", "groups B", "ARI", "AMI", "NMI", "homogeneity", "completeness"]
    yield _table(head, measured)
    yield _table(["level", "same label", "kappa"], [(_pair(x.a, x.b), x.same, x.kappa) for x in comparison.levels])
    yield _table(["over all levels", "precision", "recall", "F1"], [("labels", *asdict(comparison.ancestors).values())])
    seen, others = set[tuple[str, str]](), []
    for cell in comparison.finest.confusion:  # cells are sorted by size, so the first cell of a group is its main match
        if cell.a != cell.b and seen.issuperset({("a", cell.a), ("b", cell.b)}):
            others.append(cell)
        seen |= {("a", cell.a), ("b", cell.b)}
    yield "Largest confusions: items in a group of A and a group of B, neither of which is the other's main match"
    yield _table(["A", "B", "items"], [(c.a, c.b, c.items) for c in others[:CONFUSIONS]]) if others else "None."
    if len(others) > CONFUSIONS:
        rest = sum(cell.items for cell in others[CONFUSIONS:])
        yield f"{len(others) - CONFUSIONS} more with {rest} items: --json."


def _pair(a: str, b: str) -> str:
    return a if a == b else f"{a} (A), {b} (B)"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for i, title in enumerate(head):
        is_text = all(isinstance(row[i], str) for row in rows)
        table.add_column(title, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: object) -> str:
    if not isinstance(value, str):
        return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
    text = printable(" ".join(value.split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
