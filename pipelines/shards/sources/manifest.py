"""The user's own images listed in a table: one row an image, one column a level.

The table is CSV or parquet. One column names the files (``path``, ``file``, ``image`` or ``filename``), ``--levels``
names the columns of the labels, finest first (``LEVEL=COLUMN`` where a level is to have another name than its column);
an empty cell is an unknown label. A column ``split`` names the split of every image; without one, ``--test-classes``
draws a class-disjoint test split, or everything is train.

``--protocol`` makes the dataset a benchmark; its protocol says which further columns are read: ``list`` and
``template`` (names of lists that an image is in), and of a query ``easy``, ``hard``, ``junk`` or ``relevant`` (paths of
gallery images, with ``;`` between them).
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import ConfigError, TableError, excerpt, quoted
from hgld.tables import POLARS_FAULTS, CsvText, parquet_schema, read_parquet

from ..catalog import DROPPED, Catalog, check_level_names
from ..class_split import draw_classes
from .image_files import (
    OWN_OPTIONS,
    check_own_protocol,
    keys_of_paths,
    own_dataset_name,
    own_protocol,
)
from .release import keep_splits, refuse_options, relative_path

if TYPE_CHECKING:
    from hgld.evaluation.protocols import Protocol

    from ..config import SourceConfig

PATH_COLUMNS = ("path", "file", "image", "filename")
SPLIT = "split"
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]{1,40}\Z")


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of a manifest.

    Rows without a path, with a path that leads out of the folder, or that repeat an earlier row exactly are kept aside
    in ``dropped`` with their line.

    Args:
        source: the table, CSV or ``.parquet``.
        options: ``images`` (folder that the paths are relative to; the table's own if None), ``levels`` (required),
            ``test_classes`` and ``seed``, ``splits``, ``protocol``, ``name``, ``license``, ``description``.

    Raises:
        ConfigError: options that contradict each other or the table's columns.
        TableError: the table cannot be read, has no rows, or contradicts itself about an image.
        InputError: it has no split that the protocol needs.
        HierarchyError: the labels do not form a tree.
    """
    refuse_options(options, ("images", *OWN_OPTIONS), "manifest")
    columns = _columns(source)
    path_column = _path_column(source, columns)
    protocol = own_protocol(options)
    further = () if protocol is None else _further_columns(source, columns, protocol, options)
    column_of = _level_columns(source, columns, (path_column, *further), options.levels)
    levels = tuple(column_of)
    check_level_names(levels, str(source))
    own_split = SPLIT in columns
    if own_split and options.test_classes:
        raise ConfigError(f"{source} has a column {SPLIT!r} already; leave --test-classes out, or the column.")
    column_of |= {name: name for name in further}
    table = _read_rows(source, path_column, column_of, own_split)
    table, dropped = _usable(table, source, (*levels, *further))
    if not own_split:
        table = _split(table, levels[0], options)
    items = table.with_columns(key=pl.Series(keys_of_paths(table["file"].to_list()), dtype=pl.String))
    kept = keep_splits(items, options.splits, str(source))
    judgements, strange = _judgements(kept, [name for name in further if name in _VERDICTS])
    catalog = Catalog(
        name=own_dataset_name(options, "manifest"),
        levels=levels,
        items=kept.select("key", "split", "file", *levels),
        root=options.images or source.parent,
        lists=_lists(kept, [name for name in further if name in _LISTS]),
        judgements=judgements,
        dropped=pl.concat([dropped, strange]),
        sources=(source,),
        disjoint=bool(options.test_classes),
        protocol=options.protocol,
    )
    return check_own_protocol(catalog)


# -- the columns of a protocol ----------------------------------------------------------------------------------------

_VERDICTS = ("easy", "hard", "junk", "relevant")
_LISTS = {"list": "{}", "template": "template/{}"}  # names of the lists, by column


def _further_columns(
    source: Path, columns: tuple[str, ...], protocol: "Protocol", options: "SourceConfig"
) -> tuple[str, ...]:
    """Return the columns beside ``split`` and the levels that the protocol reads, or refuse a table without them."""
    needed = dict(protocol.columns)
    if options.test_classes:
        needed.pop(SPLIT, None)
    lost = {name: text for name, text in needed.items() if name not in columns}
    if lost:
        raise ConfigError(
            f"{source}: the protocol {options.protocol} needs the column{'s' * (len(lost) > 1)} "
            f"{'; '.join(f'{name} ({text})' for name, text in lost.items())}. Add them (cells may be empty)."
        )
    read = (*needed, *(name for name in protocol.may_have if name in columns))
    return tuple(name for name in read if name != SPLIT)


def _entries(items: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return key, row and one entry of a column's cells a row, those between ``;``."""
    cells = items.select("key", "row", entry=pl.col(column).str.split(";")).explode("entry")
    return cells.with_columns(pl.col("entry").str.strip_chars()).filter(pl.col("entry").str.len_bytes() > 0)


def _lists(items: pl.DataFrame, columns: list[str]) -> pl.DataFrame | None:
    if not columns:
        return None
    parts = [
        _entries(items, column).select(list=pl.format(_LISTS[column], "entry"), key=pl.col("key")) for column in columns
    ]
    return pl.concat(parts).unique(maintain_order=True)


def _judgements(items: pl.DataFrame, verdicts: list[str]) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """Return the judged pairs, and the paths in cells of verdicts that the table does not list, as dropped."""
    none = pl.DataFrame(schema=DROPPED)
    if not verdicts:
        return None, none
    named = pl.concat([_entries(items, name).with_columns(verdict=pl.lit(name)) for name in verdicts])
    there = items.select(entry=pl.col("file"), item=pl.col("key"))
    pairs = named.join(there, on="entry", how="left", maintain_order="left")
    strange = pairs.filter(pl.col("item").is_null()).select(
        file=pl.col("entry"),
        split=pl.lit(""),
        reason=pl.lit("judged, but not in the table"),
        detail=pl.format("row {}, {}", "row", "verdict"),
    )
    known = pairs.filter(pl.col("item").is_not_null()).select("item", "verdict", query=pl.col("key"))
    judged = known.select("query", "item", "verdict").unique(maintain_order=True)
    return judged, strange.cast(DROPPED)  # pyright: ignore[reportArgumentType]  # polars' stubs miss dicts of names


# -- the table --------------------------------------------------------------------------------------------------------


def _columns(source: Path) -> tuple[str, ...]:
    if source.suffix == ".parquet":
        return tuple(parquet_schema(source))
    return CsvText.read(source).columns


def _path_column(source: Path, columns: tuple[str, ...]) -> str:
    found = [column for column in PATH_COLUMNS if column in columns]
    if len(found) != 1:
        fault = f"has the columns {excerpt(', '.join(found))}" if found else "has no column that names the image files"
        raise ConfigError(f"{source} {fault}; expected exactly one of {', '.join(PATH_COLUMNS)}. Rename the column.")
    return found[0]


def _level_columns(
    source: Path, columns: tuple[str, ...], taken: tuple[str, ...], levels: tuple[str, ...]
) -> dict[str, str]:
    """Return the column of every level, finest first; those that are taken are none."""
    others = [column for column in columns if column not in (*taken, SPLIT)]
    shown = excerpt(", ".join(others)) if others else "none"
    if not levels:
        raise ConfigError(
            f"name the columns of {source} that are levels, finest first: --levels A,B. There are {shown}."
        )
    pairs = [(level, "", level) if level in others else level.partition("=") for level in levels]
    column_of = {level: column or level for level, _, column in pairs}
    used = list(column_of.values())
    if not set(used) <= set(others) or not len(set(used)) == len(used) == len(levels):
        raise ConfigError(
            f"--levels {','.join(levels)}: expected different columns of {source}, finest first, LEVEL=COLUMN where a "
            f"level is to have another name. There are {shown}."
        )
    return column_of


def _read_rows(source: Path, path: str, column_of: dict[str, str], own_split: bool) -> pl.DataFrame:
    """Read the rows as text, null where a cell is empty: row (line of a CSV, or number from 1), file, split, levels."""
    given = {"file": path, **({SPLIT: SPLIT} if own_split else {}), **column_of}
    if source.suffix == ".parquet":
        try:
            wanted = [pl.col(column).cast(pl.String).alias(name) for name, column in given.items()]
            table = read_parquet(source, list(given.values())).select(wanted).with_row_index("row", offset=1)
        except (OSError, *POLARS_FAULTS) as error:
            raise TableError(f"{source} cannot be read as a table of text and numbers ({excerpt(error)}).") from error
    else:
        rows = [(line, *cells) for line, cells in CsvText.read(source).select(list(given.values()))]
        schema = {"row": pl.UInt32, **dict.fromkeys(given, pl.String)}
        table = pl.DataFrame(rows, schema=schema, orient="row")
    if table.is_empty():
        raise TableError(f"{source}: no rows below the header; expected one image a row.")
    text = pl.col(pl.String).str.strip_chars()
    return table.with_columns(pl.when(text.str.len_bytes() > 0).then(text).name.keep())


def _usable(table: pl.DataFrame, source: Path, levels: tuple[str, ...]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split the rows into those that name an image of the folder, once each, and the others with the reason."""
    if SPLIT in table.columns:
        _check_splits(table, source)
    checked = [_check_path(file, source, row) for row, file in table.select("row", "file").iter_rows()]
    table = table.with_columns(
        stated=pl.col("file").fill_null(""),
        file=pl.Series([file for file, _ in checked], dtype=pl.String),
        reason=pl.Series([reason for _, reason in checked], dtype=pl.String),
    )
    values = ["file", *(["split"] if SPLIT in table.columns else []), *levels]
    repeated = pl.struct(values).is_first_distinct().not_() & pl.col("reason").is_null()
    table = table.with_columns(
        pl.when(repeated).then(pl.lit("repeats an earlier row")).otherwise("reason").alias("reason")
    )
    good = table.filter(pl.col("reason").is_null())
    _refuse_contradictions(good, source, values)
    bad = table.filter(pl.col("reason").is_not_null())
    split = pl.col(SPLIT) if SPLIT in table.columns else pl.lit("train")
    dropped = bad.select(
        file=pl.col("stated"), split=split, reason=pl.col("reason"), detail=pl.format("row {}", pl.col("row"))
    ).cast(DROPPED)  # pyright: ignore[reportArgumentType]  # polars' stubs miss dicts of names
    if good.is_empty():
        raise TableError(f"{source}: none of its {len(table)} rows names an image; the first: {bad['reason'][0]}.")
    return good, dropped


def _check_path(file: str | None, source: Path, row: int) -> tuple[str | None, str | None]:
    if file is None:
        return None, "no path"
    try:
        return relative_path(file, f"{source}, row {row}"), None
    except TableError:
        return None, "unsafe-path"


def _check_splits(table: pl.DataFrame, source: Path) -> None:
    for row, split in table.select("row", SPLIT).unique(SPLIT, keep="first", maintain_order=True).iter_rows():
        if split is None or not _SPLIT_NAME.match(split):
            found = "empty" if split is None else repr(split[:80])
            raise TableError(
                f"{source}, row {row}: {SPLIT} is {found}; expected a name of letters, digits and underscores, for "
                "instance train, query, gallery or test."
            )


def _refuse_contradictions(table: pl.DataFrame, source: Path, values: list[str]) -> None:
    twice = table.filter(pl.col("file").is_duplicated()).sort("file", "row")
    if twice.is_empty():
        return
    first, second = twice.head(2).rows(named=True)
    column = next(value for value in values if first[value] != second[value])
    raise TableError(
        f"{source}: {quoted(first['file'])} has the {column} {quoted(first[column])} in row {first['row']} and "
        f"{quoted(second[column])} in row {second['row']}; expected one row an image. Delete the wrong row."
    )


def _split(table: pl.DataFrame, finest: str, options: "SourceConfig") -> pl.DataFrame:
    """Split by class into train and test; an image without a known finest class cannot be a test image and is train."""
    if not options.test_classes:
        return table.with_columns(split=pl.lit("train"))
    classes = table[finest].drop_nulls().to_list()
    drawn = draw_classes(classes, options.test_classes, options.seed)
    in_test = pl.col(finest).is_in(sorted(drawn)).fill_null(value=False)
    return table.with_columns(split=pl.when(in_test).then(pl.lit("test")).otherwise(pl.lit("train")))
