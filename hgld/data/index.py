"""Write, read and check ``index.parquet`` and the tables next to it (docs/reference/dataset-files.md)."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from hgld.data.format import (
    BOX,
    INDEX,
    INDEX_VERSION,
    JUDGEMENTS,
    KEY_PATTERN,
    LISTS,
    LONGEST_KEY,
    REJECTED,
    SHARD_PATTERN,
    SPLIT_PATTERN,
    SplitFacts,
    check_levels,
    short,
)
from hgld.errors import InputError, excerpt, quoted
from hgld.tables import level_metadata, parquet_schema, read_levels, read_parquet

TABLES = {  # tables next to the index; all their columns are text
    REJECTED: pl.Schema(dict.fromkeys(("key", "split", "file", "reason", "detail"), pl.String)),
    LISTS: pl.Schema(dict.fromkeys(("list", "key"), pl.String)),
    JUDGEMENTS: pl.Schema(dict.fromkeys(("query", "item", "verdict"), pl.String)),
}

_BEFORE_LEVELS = {"key": pl.String, "shard": pl.String, "offset": pl.Int64, "size": pl.Int64}
_AFTER_LEVELS = {
    "split": pl.String,
    "suffix": pl.String,
    "width": pl.Int32,
    "height": pl.Int32,
    "orientation": pl.Int8,
    "sha256": pl.String,
    "duplicate_of": pl.String,
    "class_run": pl.Int32,
}
SOURCE = "source"  # column with the original path of each image, which the item's JSON states
_MAY_BE_NULL = {"duplicate_of", *BOX}
_LEAST = {"offset": 0, "size": 0, "width": 1, "height": 1, "class_run": 0}


def index_schema(levels: Sequence[str], boxes: bool = False, sources: bool = False) -> pl.Schema:
    """Return the columns of ``index.parquet`` and their types, in order.

    Args:
        levels: names of the levels, finest first.
        boxes: whether items have a box to crop to.
        sources: whether the images' original paths are known.
    """
    names = check_levels(levels, INDEX)
    crops = dict.fromkeys(BOX if boxes else (), pl.Int32) | dict.fromkeys([SOURCE] if sources else [], pl.String)
    return pl.Schema({**_BEFORE_LEVELS, **dict.fromkeys(names, pl.Int32), **_AFTER_LEVELS, **crops})


def write_index(frame: pl.DataFrame, path: Path, levels: Sequence[str]) -> None:
    """Write ``index.parquet``: the frame's rows, with the columns and types of :func:`index_schema`.

    Raises:
        InputError: a column is missing, or its values do not have the type.
    """
    schema = index_schema(levels, boxes=BOX[0] in frame.columns, sources=SOURCE in frame.columns)
    try:
        table = frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ColumnNotFoundError) as error:
        raise InputError(f"{path}: the columns or values do not fit an index ({excerpt(error)}).") from error
    table.write_parquet(path, metadata=level_metadata(INDEX_VERSION, levels))


def read_index(
    source: Path | bytes, where: str | None = None, *, leave_out: Sequence[str] = ()
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Read ``index.parquet``.

    Args:
        source: the file, or its bytes.
        where: name of the index in messages.
        leave_out: columns not to read; the column ``sha256`` takes half of the memory.

    Returns:
        the rows with the columns of :func:`index_schema`, and the levels, finest first.

    Raises:
        SchemaError: this hgld does not read the schema version of the index.
        InputError: the index is unreadable, or its columns, types or values are invalid (unsafe keys and shard names,
            repeated keys, negative offsets). The message names the first invalid row.
    """
    name = where or (INDEX if isinstance(source, bytes) else str(source))
    fix = "Write it again: hgld index DIR --force"
    levels = check_levels(read_levels(source, INDEX_VERSION, "index", where=name, fix=fix), name)
    there = parquet_schema(source, where=name)
    whole = index_schema(levels, boxes=BOX[0] in there, sources=SOURCE in there)
    schema = {column: dtype for column, dtype in whole.items() if column not in leave_out}
    frame = read_parquet(source, schema=schema, where=name)
    _check_rows(frame, levels, name)
    return frame, levels


def read_table(name: str, source: Path | bytes, where: str | None = None) -> pl.DataFrame:
    """Read one of the tables next to the index (:data:`TABLES`): rejected items, lists, judgements.

    Raises:
        InputError: the file is not readable parquet, or has wrong columns or types.
    """
    label = where or (name if isinstance(source, bytes) else str(source))
    return read_parquet(source, schema=TABLES[name], where=label)


def _check_rows(frame: pl.DataFrame, levels: Sequence[str], where: str) -> None:
    nulls = [name for name in frame.columns if frame[name].null_count() and name not in _MAY_BE_NULL]
    if nulls:
        raise InputError(f"{where}: columns {', '.join(nulls)} have empty cells.")
    key, shard, split = (pl.col(name).str for name in ("key", "shard", "split"))
    is_key = key.contains(f"^{KEY_PATTERN}$") & (key.len_bytes() <= LONGEST_KEY)
    sound = {
        "key": (is_key, "letters, digits and _ - = between single /"),
        "shard": (shard.contains(f"^{SHARD_PATTERN}$"), "the name of a shard"),
        "split": (split.contains(f"^{SPLIT_PATTERN}$"), "letters, digits and _"),
        "orientation": (pl.col("orientation").is_between(1, 8), "EXIF's 1 to 8"),
        **{name: (pl.col(name) >= least, f"at least {least}") for name, least in _LEAST.items()},
        **{level: (pl.col(level) >= -1, "at least -1") for level in levels},
    }
    sound = {name: test for name, test in sound.items() if name in frame.columns}
    passed = frame.lazy().select(test.all().alias(name) for name, (test, _) in sound.items()).collect()
    for name, (test, expected) in sound.items():
        if not passed[name][0]:
            row = frame.with_row_index("row").filter(~test).row(0, named=True)
            raise InputError(f"{where}: row {row['row']}: {quoted(name)} is {short(row[name])}; expected {expected}.")
    if "key" in frame.columns and frame["key"].hash().n_unique() < len(frame):  # hashes take less memory than keys
        for repeated in frame.filter(pl.col("key").is_duplicated())["key"]:
            raise InputError(f"{where}: key {quoted(repeated)} is listed more than once; expected every key once.")


def with_runs(index: pl.DataFrame, finest: str) -> pl.DataFrame:
    """Add the columns ``class_run`` and ``duplicate_of``, computed from the other columns, to an index.

    Args:
        index: rows in the order of the shards, with at least shard, key, sha256 and the level ``finest``.
        finest: the finest level; adjacent rows of a shard with equal labels, even unknown ones, are one class run.
    """
    starts = (pl.col(finest) != pl.col(finest).shift(1)).fill_null(value=False)
    first = pl.col("key").first().over("sha256")
    return index.with_columns(
        class_run=starts.cum_sum().over("shard").cast(pl.Int32),
        duplicate_of=pl.when(pl.int_range(pl.len()).over("sha256") > 0).then(first),
    )


def split_facts(index: pl.DataFrame, levels: Sequence[str]) -> dict[str, SplitFacts]:
    """Count the items, shards and classes of every split of an index; the keys are the splits."""
    counts = (
        index.lazy()
        .group_by("split")
        .agg(
            pl.len().alias("items"),
            pl.col("shard").n_unique().alias("shards"),
            (pl.col(levels[0]) < 0).sum().alias("unlabelled"),
            *(pl.col(level).filter(pl.col(level) >= 0).n_unique().alias(f"classes/{level}") for level in levels),
        )
        .sort("split")
        .collect()
    )
    return {
        row["split"]: SplitFacts(
            items=row["items"],
            shards=row["shards"],
            classes={level: row[f"classes/{level}"] for level in levels},
            unlabelled=row["unlabelled"],
        )
        for row in counts.iter_rows(named=True)
    }
