"""Comparison of two hierarchies, such as a regenerated one and a reference.

Items that both tables have are paired and their labels compared, level by level and over all levels. All measures that
have a direction take B for the reference: A's homogeneity is how far each group of A holds items of one group of B.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from hgld.errors import ConfigError, TableError, quoted

from ..review.agreement import cohens_kappa
from .label_tables import (
    FILE,
    IDS,
    LANDMARK,
    NAMES,
    ROW,
    SPLIT,
    TOP,
    UNLABELLED,
    LabelTable,
    split_of,
)
from .measures import (
    AncestorAgreement,
    Partitions,
    ancestor_agreement,
    dendrogram_purity,
    partitions,
)

KEY = "__key"
PairedBy = Literal["asked", "name", "name and order", "order"]


@dataclass(frozen=True)
class Coverage:
    """The items of one table, and how many of them the other table has too.

    Attributes:
        file: name of the file or folder.
        files: names of the files that were read.
        on: the columns that tell its items apart.
        levels: its columns that are compared, finest first.
        not_compared: its other levels.
        name: its column of names; None where there is none.
        landmarks: its items; ``repeats`` rows that repeat an earlier one exactly are not among them.
        labelled: those with a label at the finest level compared; the others take no part in its measures.
        in_other: labelled items that the other table has, labelled or not.
        shared: labelled items that the other table labels too.
        share: shared / labelled; 0 if none is labelled.
        groups: its distinct labels at that level.
        names: its distinct names; None where it has no column for them.
    """

    file: str
    files: tuple[str, ...]
    on: tuple[str, ...]
    levels: tuple[str, ...]
    not_compared: tuple[str, ...]
    name: str | None
    landmarks: int
    repeats: int
    labelled: int
    in_other: int
    shared: int
    share: float
    groups: int
    names: int | None


@dataclass(frozen=True)
class GroupMatch:
    """A group and the most similar group of the other table (by Jaccard, then by label), over shared items.

    ``precision`` = shared / landmarks, ``recall`` = shared / match_landmarks, ``f1`` their harmonic mean, ``jaccard`` =
    shared / (landmarks + match_landmarks - shared).
    """

    group: str
    match: str
    landmarks: int
    match_landmarks: int
    shared: int
    precision: float
    recall: float
    f1: float
    jaccard: float


@dataclass(frozen=True)
class Cell:
    """A cell of the confusion: the items, and distinct names, that A puts into ``a`` and B into ``b``."""

    a: str
    b: str
    landmarks: int
    names: int | None


@dataclass(frozen=True)
class Tops:
    """Agreement on natural / human-made over the landmarks of both tables for which both say it.

    ``undecided`` are landmarks of both tables of which one or both say nothing. ``cells`` count landmarks by A's and
    B's value. ``accuracy`` and ``kappa`` (Cohen's) are None if nothing is decided by both.
    """

    landmarks: int
    undecided: int
    accuracy: float | None
    kappa: float | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class LevelComparison:
    """The agreement at one level.

    Attributes:
        a, b: the columns.
        items: the partitions of the items that both label.
        names: the partitions of their distinct names, each in the group of most of its items (then the first by
            label); None where neither table has names, or they are the items.
        mixed_a, mixed_b: names whose items one table puts into several groups.
        same_labels: labels that both tables use.
        same: share of the items with the same label; None where the tables share no label.
        kappa: Cohen's kappa of the labels; None as ``same``.
        dendrogram_purity: of A's tree for B's labels; None where A has one level only.
        matches_a, matches_b: best match of each group of A, and of B, the largest first.
        confusion: all cells that are not empty, the largest first.
    """

    a: str
    b: str
    items: Partitions
    names: Partitions | None
    mixed_a: int
    mixed_b: int
    same_labels: int
    same: float | None
    kappa: float | None
    dendrogram_purity: float | None
    matches_a: tuple[GroupMatch, ...]
    matches_b: tuple[GroupMatch, ...]
    confusion: tuple[Cell, ...]


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`.

    Attributes:
        joined_on: the columns that identify an item, as A calls them.
        paired_by: how the levels were paired: as they were ``asked`` for, by equal ``name``, by ``name and order``
            where as many are left over on each side, or by ``order``.
        a, b: coverage of the two tables.
        names_from: ``A`` or ``B``, whose names the names are; A's where it has some.
        levels: the agreement at each pair of levels, finest first.
        ancestors: precision, recall and F1 over all pairs of levels together.
        tops: agreement on natural / human-made; None where a table has no such column.
    """

    joined_on: tuple[str, ...]
    paired_by: PairedBy
    a: Coverage
    b: Coverage
    names_from: str | None
    levels: tuple[LevelComparison, ...]
    ancestors: AncestorAgreement
    tops: Tops | None

    @property
    def finest(self) -> LevelComparison:
        """The agreement at the finest level compared."""
        return self.levels[0]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values; what holds at the finest level stands at the top too."""
        finest = asdict(self.finest)
        first = {"landmarks": finest["items"]}
        first |= {key: finest[key] for key in ("names", "mixed_a", "mixed_b", "matches_a", "matches_b", "confusion")}
        return asdict(self) | first


def compare(a: Path, b: Path, *, on: str = "", levels: Sequence[str] = ()) -> Comparison:
    """Compare two tables of labels.

    Items are joined on the first of ``landmark_id``, ``id``, ``key`` and ``path`` that both tables have, else on their
    names, then every name being one item in the group of most of its rows. Where both tables have a column ``split``,
    an item is (split, id). Where one or none has it, it is the id alone, which then must not occur in two splits.
    Levels are paired by equal names, those left over in their order if they are as many on either side; where no name
    is equal, all in their order, finest first, as many as both have.

    Args:
        a: the table to judge: whatever :meth:`hgld.pipelines.hierarchy.comparison.label_tables.LabelTable.read` takes.
        b: the reference.
        on: the column to join on, ``A=B`` where the tables call it differently; empty: see above.
        levels: the levels to compare, finest first, each ``A=B`` where they are called differently; empty: see above.

    Raises:
        TableError: a table cannot be read, contradicts itself or lacks a column, or the two have no labelled item in
            common.
        ConfigError: ``on`` or ``levels`` cannot be read.
        InputError: a ``hierarchy.parquet`` is damaged.
    """
    asked_on, asked_levels = _asked(on, "--on"), [_asked(level, "--levels") for level in levels]
    tables = [
        LabelTable.read(place, [pair[side] for pair in (*asked_levels, asked_on) if pair is not None])
        for side, place in enumerate((a, b))
    ]
    columns, by_name = _join_columns(tables, asked_on)
    pairs, paired_by = _paired(tables, [pair for pair in asked_levels if pair is not None])
    sides = [
        _Side.of(side, table, column, [pair[i] for pair in pairs], by_name=by_name)
        for i, (side, table, column) in enumerate(zip("ab", tables, columns, strict=True))
    ]
    return _compared(sides[0], sides[1], pairs, paired_by)


def _asked(spelled: str, flag: str) -> tuple[str, str] | None:
    """Read ``column`` or ``A=B``."""
    if not spelled:
        return None
    a, equals, b = (part.strip() for part in spelled.partition("="))
    if not a or (equals and not b):
        raise ConfigError(f"{flag} {quoted(spelled)}: expected a column, or A=B where the tables call it differently.")
    return a, b or a


def _join_columns(tables: Sequence[LabelTable], asked: tuple[str, str] | None) -> tuple[list[str], bool]:
    """Return the column that each table is joined on, and whether these are the items' names."""
    if asked is not None:
        columns = [table.column(column) for table, column in zip(tables, asked, strict=True)]
        return columns, all(table.name == column for table, column in zip(tables, columns, strict=True))
    for column in IDS:
        if all(column in table.columns for table in tables):
            return [column, column], False
    named = [table.name for table in tables]
    if None not in named:
        return [str(name) for name in named], True
    shown = " and ".join(f"{table.place} has {', '.join(map(quoted, table.found[:20]))}" for table in tables)
    raise TableError(
        f"no column that both tables have says which item a row is: {shown}; expected {', '.join(IDS)} or {NAMES[1]}. "
        "Say which with --on COLUMN, or --on A=B."
    )


def _paired(tables: Sequence[LabelTable], asked: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], PairedBy]:
    a, b = tables
    if asked:
        return [(a.column(one), b.column(other)) for one, other in asked], "asked"
    only_a, only_b = ([x for x in one.levels if x not in other.levels] for one, other in ((a, b), (b, a)))
    if not only_a or not only_b or len(only_a) == len(only_b) < len(a.levels):
        renamed = dict(zip(only_a, only_b, strict=False))
        return [(level, renamed.get(level, level)) for level in a.levels if level in b.levels or level in renamed], (
            "name and order" if renamed else "name"
        )
    if len(only_a) < len(a.levels):
        return [(level, level) for level in a.levels if level in b.levels], "name"
    return list(zip(a.levels, b.levels, strict=False)), "order"


@dataclass(frozen=True)
class _Side:
    """A table's items, one a row.

    Attributes:
        side: ``a`` or ``b``.
        table: where they come from.
        on: the column of ``KEY``.
        items: ``split``, ``KEY``, ``a name``, and every level as ``a:its column``.
        levels: the columns that are compared, finest first.
        repeats: rows that repeat an earlier one exactly.
    """

    side: str
    table: LabelTable
    on: str
    items: pl.DataFrame
    levels: tuple[str, ...]
    repeats: int

    @classmethod
    def of(cls, side: str, table: LabelTable, on: str, levels: Sequence[str], *, by_name: bool) -> "_Side":
        none = pl.lit(None, dtype=pl.String)
        cells = table.rows.select(
            ROW,
            FILE,
            (pl.col(SPLIT) if SPLIT in table.columns and not by_name else none).alias("split"),
            (_folded(on) if by_name else pl.col(on)).alias(KEY),
            (_folded(table.name) if table.name else none).alias(f"{side} name"),
            *(_label(level).alias(f"{side}:{level}") for level in dict.fromkeys((*levels, *table.levels))),
        )
        if by_name:
            return cls(side, table, on, _majorities(side, cells), tuple(levels), 0)
        cells = cells.with_columns(_keys_of_items(table, cells, on))
        values = [column for column in cells.columns if column not in (ROW, FILE)]
        items = cells.unique(values, keep="first", maintain_order=True)
        _refuse_contradictions(side, table, on, items)
        return cls(side, table, on, items.drop(ROW, FILE), tuple(levels), len(cells) - len(items))

    def has(self, column: str) -> bool:
        """Tell whether any item has a value there."""
        return self.items[column].null_count() < len(self.items)

    @property
    def name(self) -> str:
        return f"{self.side} name"

    @property
    def columns(self) -> list[str]:
        """The columns of ``items`` that are compared."""
        return [f"{self.side}:{level}" for level in self.levels]

    @property
    def tree(self) -> list[str]:
        """The columns of ``items`` that are levels of its tree: those of the table, or else those that are compared."""
        return [f"{self.side}:{level}" for level in self.table.levels] or self.columns


def _folded(column: str) -> pl.Expr:
    """Fold names for comparison: composed, single spaces, no case."""
    return pl.col(column).str.normalize("NFC").str.replace_all(r"\s+", " ").str.to_lowercase()


def _label(level: str) -> pl.Expr:
    column = pl.col(level).str.to_lowercase() if level == TOP else pl.col(level)
    return pl.when(pl.col(level).str.to_lowercase() != UNLABELLED).then(column)


def _keys_of_items(table: LabelTable, cells: pl.DataFrame, on: str) -> pl.Expr:
    """Return the keys; those of landmarks as numbers."""
    right = pl.col(KEY).str.contains(r"^[0-9]{1,18}$") if on == LANDMARK else pl.col(KEY).is_not_null()
    if not (odd := cells.filter(~right.fill_null(value=False))).is_empty():
        row = odd.row(0, named=True)
        expected = "a whole number" if on == LANDMARK else "the item that the row is about"
        file = table.place / row[FILE] if table.place.is_dir() else table.place
        raise TableError(
            f"{file}, line {row[ROW]}: {on} is {quoted((row[KEY] or '')[:80])}; expected {expected}. Correct the row."
        )
    return pl.col(KEY).cast(pl.Int64) if on == LANDMARK else pl.col(KEY)


def _majorities(side: str, cells: pl.DataFrame) -> pl.DataFrame:
    """Return one row a name: at each level the label of most of its rows, then the first of them in order."""
    named = cells.filter(pl.col(KEY).is_not_null())
    found = named.select("split", KEY, pl.col(KEY).alias(f"{side} name")).unique(KEY).sort(KEY)
    for level in [column for column in cells.columns if column.startswith(f"{side}:")]:
        counts = named.filter(pl.col(level).is_not_null()).group_by(KEY, level).len()
        first = counts.sort(KEY, "len", level, descending=[False, True, False]).unique(KEY, keep="first")
        found = found.join(first.select(KEY, level), on=KEY, how="left")
    return found


def _refuse_contradictions(side: str, table: LabelTable, on: str, items: pl.DataFrame) -> None:
    twice = items.filter(pl.struct("split", KEY).is_duplicated()).sort("split", KEY, FILE, ROW)
    if twice.is_empty():
        return
    first, second = twice.head(2).rows(named=True)
    levels = {column: column.partition(":")[2] for column in items.columns if column.startswith(f"{side}:")}
    called = levels | {f"{side} name": table.name or ""}
    differs = next(column for column in called if first[column] != second[column])
    what = "landmark" if on == LANDMARK else on
    raise TableError(
        f"{table.place}: {what} {first[KEY]} has the {called[differs]} {quoted(first[differs])} in line {first[ROW]} "
        f"and {quoted(second[differs])} in line {second[ROW]}; expected one row an item. Delete the wrong row, or tell "
        f"the lists of different splits apart by a column {SPLIT!r}."
    )


# -- the comparison ------------------------------------------------------------------------------------------------


def _compared(a: _Side, b: _Side, pairs: Sequence[tuple[str, str]], paired_by: PairedBy) -> Comparison:
    a, b = _with_split_of_the_file(a, b), _with_split_of_the_file(b, a)
    keys = _keys(a, b)
    both = a.items.join(b.items.drop([] if "split" in keys else "split"), on=keys, nulls_equal=True).sort(keys)
    source = next((side for side in (a, b) if side.has(side.name)), None)
    both = both.with_columns(shown=pl.col(source.name) if source else pl.lit(None, dtype=pl.String))
    labelled = both.drop_nulls([a.columns[0], b.columns[0]])
    if labelled.is_empty():
        raise TableError(
            f"{a.table.place} and {b.table.place} have {len(both)} items in common by "
            f"{' and '.join(dict.fromkeys([a.on, b.on]))}, none of which both label ({a.levels[0]} and {b.levels[0]}); "
            f"nothing can be compared. They begin with {_first(a)} in the one and {_first(b)} in the other: are they "
            "lists of the same split? --on COLUMN joins on another column."
        )
    by_name = a.on == a.table.name and b.on == b.table.name
    named = source is not None and not by_name
    top = next((pair for pair in pairs if pair == (TOP, TOP)), None)
    return Comparison(
        joined_on=tuple(SPLIT if key == "split" else a.on for key in keys),
        paired_by=paired_by,
        a=_coverage(a, keys, both[a.columns[0]], labelled),
        b=_coverage(b, keys, both[b.columns[0]], labelled),
        names_from=source.side.upper() if source and named else None,
        levels=tuple(
            level
            for one, other in zip(a.columns, b.columns, strict=True)
            if (level := _level(both, one, other, a.tree, named=named)) is not None
        ),
        ancestors=ancestor_agreement([both[column] for column in a.columns], [both[column] for column in b.columns]),
        tops=None if top is None else _tops(both.select(top=f"a:{TOP}", top_b=f"b:{TOP}")),
    )


def _with_split_of_the_file(side: _Side, other: _Side) -> _Side:
    """Take the split from the file's name where the other table has it as a column."""
    split = split_of(side.table.files)
    if side.has("split") or split is None or split not in other.items["split"]:
        return side
    return replace(side, items=side.items.with_columns(split=pl.lit(split)))


def _keys(a: _Side, b: _Side) -> list[str]:
    if a.has("split") and b.has("split"):
        return ["split", KEY]
    for side, other in ((a, b), (b, a)):
        twice = side.items.filter(pl.col(KEY).is_duplicated()).sort(KEY, "split")
        if not twice.is_empty():
            number, splits = twice[KEY][0], twice["split"].head(2).to_list()
            what = "landmark" if side.on == LANDMARK else side.on
            raise TableError(
                f"{side.table.place}: {what} {number} occurs in the splits {splits[0]} and {splits[1]}, and "
                f"{other.table.place} has no column 'split' to tell them apart. Add the column there, or compare one "
                "split's file at a time."
            )
    return [KEY]


def _first(side: _Side) -> str:
    return ", ".join(str(key)[:60] for key in side.items[KEY].sort().head(3))


def _coverage(side: _Side, keys: Sequence[str], in_both: pl.Series, labelled: pl.DataFrame) -> Coverage:
    own = side.items.drop_nulls(side.columns[0])
    rest = tuple(level for level in side.table.levels if level not in side.levels)
    return Coverage(
        file=side.table.place.name,
        files=side.table.files,
        on=tuple(SPLIT if key == "split" else side.on for key in keys),
        levels=side.levels,
        not_compared=rest,
        name=side.table.name,
        landmarks=len(side.items),
        repeats=side.repeats,
        labelled=len(own),
        in_other=in_both.len() - in_both.null_count(),
        shared=len(labelled),
        share=len(labelled) / len(own) if len(own) else 0.0,
        groups=own[side.columns[0]].n_unique(),
        names=side.items[side.name].drop_nulls().n_unique() if side.table.name else None,
    )


def _level(both: pl.DataFrame, a: str, b: str, tree: Sequence[str], *, named: bool) -> LevelComparison | None:
    """Compare one pair of levels; None where no item has both labels."""
    labelled = both.drop_nulls([a, b]).with_columns(label=pl.col(a), label_b=pl.col(b))
    if labelled.is_empty():
        return None
    names, mixed_a, mixed_b = _names(labelled) if named else (None, 0, 0)
    confusion = labelled.group_by("label", "label_b").agg(
        landmarks=pl.len().cast(pl.Int64), names=pl.col("shown").drop_nulls().n_unique()
    )
    vocabulary = len(set(labelled["label"].unique()) & set(labelled["label_b"].unique()))
    return LevelComparison(
        a=a.partition(":")[2],
        b=b.partition(":")[2],
        items=partitions(labelled["label"], labelled["label_b"]),
        names=names,
        mixed_a=mixed_a,
        mixed_b=mixed_b,
        same_labels=vocabulary,
        same=int((labelled["label"] == labelled["label_b"]).sum()) / len(labelled) if vocabulary else None,
        kappa=cohens_kappa(labelled["label"].to_list(), labelled["label_b"].to_list()) if vocabulary else None,
        dendrogram_purity=dendrogram_purity([labelled[column] for column in tree], labelled["label_b"])
        if len(tree) > 1
        else None,
        matches_a=_matches(confusion, "label", "label_b"),
        matches_b=_matches(confusion, "label_b", "label"),
        confusion=_cells(confusion, named=named),
    )


def _names(labelled: pl.DataFrame) -> tuple[Partitions | None, int, int]:
    """Return the partitions of the distinct names, and how many names each table puts into several groups."""
    named = labelled.filter(pl.col("shown").is_not_null())
    if named.is_empty():
        return None, 0, 0
    sides, mixed = [], []
    for column in ("label", "label_b"):
        counts = named.group_by("shown", column).len().sort("shown", "len", column, descending=[False, True, False])
        majority = counts.unique("shown", keep="first", maintain_order=True)
        sides.append(majority[column])
        mixed.append(counts["shown"].filter(counts["shown"].is_duplicated()).n_unique())
    return partitions(*sides), mixed[0], mixed[1]


def _matches(confusion: pl.DataFrame, side: str, other: str) -> tuple[GroupMatch, ...]:
    sizes = confusion.with_columns(
        size=pl.col("landmarks").sum().over(side), match_size=pl.col("landmarks").sum().over(other)
    )
    union = pl.col("size") + pl.col("match_size") - pl.col("landmarks")
    best = (
        sizes.with_columns(
            precision=pl.col("landmarks") / pl.col("size"),
            recall=pl.col("landmarks") / pl.col("match_size"),
            f1=2 * pl.col("landmarks") / (pl.col("size") + pl.col("match_size")),
            jaccard=pl.col("landmarks") / union,
        )
        .sort(side, "jaccard", other, descending=[False, True, False])
        .unique(side, keep="first", maintain_order=True)
        .sort("size", side, descending=[True, False])
        .select(side, other, "size", "match_size", "landmarks", "precision", "recall", "f1", "jaccard")
    )
    return tuple(GroupMatch(*row) for row in best.iter_rows())


def _cells(confusion: pl.DataFrame, *, named: bool) -> tuple[Cell, ...]:
    ordered = confusion.sort("landmarks", "label", "label_b", descending=[True, False, False])
    return tuple(Cell(a, b, count, names if named else None) for a, b, count, names in ordered.iter_rows())


def _tops(both: pl.DataFrame) -> Tops:
    decided = both.filter(pl.col("top").is_not_null() & pl.col("top_b").is_not_null())
    counts = decided.group_by("top", "top_b").len().sort("top", "top_b")
    cells = tuple(Cell(a, b, count, None) for a, b, count in counts.iter_rows())
    if decided.is_empty():
        return Tops(0, len(both), None, None, cells)
    one, other = decided["top"].to_list(), decided["top_b"].to_list()
    return Tops(
        landmarks=len(decided),
        undecided=len(both) - len(decided),
        accuracy=sum(x == y for x, y in zip(one, other, strict=True)) / len(decided),
        kappa=cohens_kappa(one, other),
        cells=cells,
    )
