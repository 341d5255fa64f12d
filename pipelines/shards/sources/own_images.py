"""The user's own images: in folders of classes (folders), or listed in a table (manifest).

A folder tree is ``top/middle/fine/image.jpg``, one level of folders per level of classes. Where all folders at the top
are named like splits (``train``, ``test``, ``query``, ``gallery``, ``val``), they are the splits, and the classes begin
below them.

A table is CSV (with any usual separator) or parquet, one row per image and one column per level. One column names the
files (``path``, ``file``, ``image`` or ``filename``), ``--levels`` names the columns of the labels, finest first
(``LEVEL=COLUMN`` where a level is to have another name than its column); an empty cell or ``nan`` is an unknown label.
Names of columns may be written in any case. A column ``split`` names the split of every image; without one,
``--test-classes`` draws a class-disjoint test split, or everything is train.

``--protocol`` makes a table a benchmark; its protocol says which further columns are read: ``list`` and ``template``
(names of lists that an image is in), and of a query ``easy``, ``hard``, ``junk`` or ``relevant`` (paths of gallery
images, with ``;`` between them).
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import polars as pl

from hgld.data.format import is_safe_name, short
from hgld.errors import ConfigError, InputError, StorageError, TableError, excerpt, quoted
from hgld.evaluation.protocols import protocol_of
from hgld.tables import POLARS_FAULTS, parquet_schema, read_parquet, read_text, table_rows

from ..catalog import DROPPED, Catalog, check_level_names, safe_key
from ..catalog_changes import draw_classes
from .release import relative_path

if TYPE_CHECKING:
    from ..config import SourceConfig

# Includes formats that shards do not hold: such an image is rejected by name, not passed over as some other file.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
SPLIT_FOLDERS = frozenset({"train", "test", "query", "gallery", "val"})
PATH_COLUMNS = ("path", "file", "image", "filename")
SPLIT = "split"
_VERDICTS = ("easy", "hard", "junk", "relevant")
_LISTS = {"list": "{}", "template": "template/{}"}  # names of the lists, by column
_LONGEST_TEXT = 10_000
_DEEPEST = 16


def _own_catalog(source: str, options: "SourceConfig", **facts: Any) -> Catalog:
    """Return the catalog of the user's own images, named as the options say or like its source."""
    if options.name and not is_safe_name(options.name):
        raise ConfigError(f"--name is {short(options.name)}; expected 1 to 200 printable letters without slashes.")
    for option in ("license", "description"):
        text = getattr(options, option)
        if not text.isprintable() or len(text) > _LONGEST_TEXT:
            raise ConfigError(
                f"--{option} is {short(text)}; expected one line of at most {_LONGEST_TEXT:,} printable letters."
            )
    disjoint = bool(options.test_classes)
    return Catalog(name=options.name or source, disjoint=disjoint, protocol=options.protocol, **facts)


def check_own_protocol(catalog: Catalog) -> None:
    """Refuse a catalog that lacks what its protocol needs.

    Raises:
        InputError: it lacks levels, splits, lists or judgements.
    """
    if catalog.protocol:
        where = ", ".join(map(str, catalog.sources)) or str(catalog.root)
        tables = [name for name in ("judgements", "lists") if getattr(catalog, name) is not None]
        splits = catalog.items["split"].unique().sort().to_list()
        protocol_of(catalog.protocol).check(catalog.protocol, where, splits, tables, catalog.levels)


def keys_of_paths(paths: Sequence[str]) -> list[str]:
    """Make a distinct key for every path: the path without its suffix, made safe.

    Paths that would have the same key (``a.jpg`` and ``a.png``, ``a b.jpg`` and ``a_b.jpg``) get a part of the SHA-256
    of the path behind it.
    """
    keys = [safe_key(_without_suffix(path)) for path in paths]
    uses = Counter(keys)
    return [
        key if uses[key] == 1 else f"{key}={hashlib.sha256(path.encode()).hexdigest()[:12]}"
        for key, path in zip(keys, paths, strict=True)
    ]


def _without_suffix(path: str) -> str:
    """Return the path without its suffix; not by pathlib, which is slow for the millions of rows of a table."""
    stem, _, suffix = path.rpartition(".")
    return path if "/" in suffix or not stem.rpartition("/")[2] else stem


def _split_by_class(classes: Sequence[str | None], options: "SourceConfig") -> list[str]:
    """Return the split of every image by its finest class; train where that is unknown or nothing is asked for."""
    if not options.test_classes:
        return ["train"] * len(classes)
    drawn = draw_classes([name for name in classes if name], options.test_classes, options.seed)
    return ["test" if name in drawn else "train" for name in classes]


# -- folders ----------------------------------------------------------------------------------------------------------


def read_folders(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of a folder tree.

    Hidden files and folders, files that are not images, those whose path is not UTF-8, and links to folders (which are
    not followed) are kept aside in ``dropped``. A folder's name is its class's; where some name of a level stands under
    two parents, the classes of that level are named by their paths instead.

    Raises:
        ConfigError: options that contradict each other or the depth of the folders.
        InputError: no images, or images at different depths.
    """
    protocol = protocol_of(options.protocol) if options.protocol else None
    if protocol is not None and protocol.tables:
        raise ConfigError(
            f"the protocol {options.protocol} reads {' and '.join(protocol.tables)}, which folders cannot say. "
            f"List the images in a table with the columns {', '.join(protocol.columns)}: hgld build-shards manifest."
        )
    files, dropped = find_images(source)
    names = SPLIT_FOLDERS if protocol is None else SPLIT_FOLDERS | {*protocol.splits, *protocol.further}
    own_splits = {file.partition("/")[0] for file in files if "/" in file} <= names
    if own_splits and options.test_classes:
        raise ConfigError(f"{source} has folders of splits already; leave --test-classes out.")
    depths = {file.count("/"): file for file in reversed(files)}  # the first of each depth
    if len(depths) > 1:
        shown = "; ".join(f"{depth} folders: {depths[depth]}" for depth in sorted(depths)[:5])
        raise InputError(
            f"{source}: images lie at different depths ({shown}); expected one folder a level everywhere. Move them, "
            "or list them in a table: hgld build-shards manifest."
        )
    depth = next(iter(depths)) - own_splits
    if depth < 1:
        raise InputError(f"{source}: its images lie in no folder; expected at least one, for the class.")
    levels = options.levels or tuple(f"level_{level}" for level in range(depth))
    if len(levels) != depth:
        raise ConfigError(
            f"--levels names {len(levels)} levels; the images of {source} lie in {depth} folders each. Name {depth}, "
            "finest first."
        )
    folders = [file.split("/")[own_splits:-1] for file in files]
    columns = {}
    for number, level in enumerate(levels):
        paths = ["/".join(parts[: depth - number]) for parts in folders]
        names = [parts[depth - number - 1] for parts in folders]
        columns[level] = names if len(set(paths)) == len(set(names)) else paths
    found = [file.partition("/")[0] for file in files] if own_splits else _split_by_class(columns[levels[0]], options)
    items = pl.DataFrame({"key": keys_of_paths(files), "split": found, "file": files, **columns})
    table = pl.DataFrame(dropped, schema=DROPPED, orient="row")
    return _own_catalog("folders", options, levels=levels, items=items, root=source, dropped=table)


def find_images(source: Path) -> tuple[list[str], list[tuple[str, str, str, str]]]:
    """Return the images' paths, sorted, and (file, split, reason, detail) of every other file."""
    if not source.is_dir():
        raise InputError(f"{source} is no folder; expected one with top/middle/fine/image.jpg in it.")
    found = sorted(_walk(source, "", 0))
    dropped = [(name, "", reason, "") for name, reason in found if reason]
    if len(dropped) == len(found):
        raise InputError(f"{source}: no images in it ({len(dropped)} other files); expected top/middle/fine/image.jpg.")
    return [name for name, reason in found if not reason], dropped


def _walk(source: Path, inside: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield every file below a folder with the reason why it is no image; the reason of an image is empty."""
    if depth > _DEEPEST:
        raise InputError(f"{source / inside}: more than {_DEEPEST} folders deep; expected one folder a level.")
    try:
        entries = list(os.scandir(source / inside))
    except OSError as error:
        raise StorageError(f"{source / inside} cannot be read ({error.strerror}).") from error
    for entry in entries:
        path = f"{inside}{entry.name}"
        readable = os.fsencode(path).decode("utf-8", errors="replace")
        if entry.name.startswith("."):
            yield readable, "hidden"
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(source, f"{path}/", depth + 1)
        elif readable != path:  # its own name, or that of a folder above it
            yield readable, "name is not UTF-8"
        elif entry.is_dir():
            yield path, "link to a folder"
        else:
            yield path, "" if PurePosixPath(entry.name).suffix.lower() in IMAGE_SUFFIXES else "not an image"


# -- a table ----------------------------------------------------------------------------------------------------------


def read_manifest(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of a table of images.

    Rows without a path, with a path that leads out of the folder, or that repeat an earlier row exactly are kept aside
    in ``dropped`` with their line. Paths are relative to ``options.images``, or to the table's own folder.

    Raises:
        ConfigError: options that contradict each other or the table's columns.
        TableError: the table cannot be read, has no rows, or contradicts itself about an image.
    """
    header = _header(source)
    own = {name.lower(): name for name in reversed(header)} | {name: name for name in header}  # in any case
    paths = [own[column] for column in PATH_COLUMNS if column in own]
    if len(paths) != 1:
        fault = f"has the columns {excerpt(', '.join(paths))}" if paths else "has no column that names the image files"
        raise ConfigError(f"{source} {fault}; expected exactly one of {', '.join(PATH_COLUMNS)}. Rename the column.")
    further = _protocol_columns(source, own, options)
    if SPLIT in own and options.test_classes:
        raise ConfigError(f"{source} has a column {SPLIT!r} already; leave --test-classes out, or the column.")
    given = {"file": paths[0], **{name: own[name] for name in (SPLIT, *further) if name in own}}
    column_of = _level_columns(source, [name for name in header if name not in given.values()], options.levels)
    levels = tuple(column_of)
    check_level_names(levels, str(source))
    table = _read_rows(source, {**given, **column_of}, levels)
    good, dropped = _usable(table, source)
    if SPLIT not in own:
        good = good.with_columns(split=pl.Series(_split_by_class(good[levels[0]].to_list(), options)))
    good = good.with_columns(key=pl.Series(keys_of_paths(good["file"].to_list()), dtype=pl.String))
    lists = [
        _entries(good, column).select(list=pl.format(_LISTS[column], "entry"), key=pl.col("key"))
        for column in further
        if column in _LISTS
    ]
    judgements, strange = _judgements(good, [name for name in further if name in _VERDICTS])
    return _own_catalog(
        "manifest",
        options,
        levels=levels,
        items=good.select("key", "split", "file", *levels),
        root=options.images or source.parent,
        lists=pl.concat(lists).unique(maintain_order=True) if lists else None,
        judgements=judgements,
        dropped=pl.concat([dropped, strange]),
        sources=(source,),
    )


def _header(source: Path) -> tuple[str, ...]:
    if source.suffix == ".parquet":
        return tuple(parquet_schema(source))
    _, header = next(_csv_rows(source, None), (0, []))
    names = tuple(name.strip() for name in header)
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        raise TableError(f"{source} has the column {quoted(twice[0])} twice. Rename one in the file's first line.")
    return names


def _csv_rows(source: Path, width: int | None) -> Iterator[tuple[int, list[str]]]:
    text = read_text(source)
    first = text.lstrip().partition("\n")[0]
    return table_rows(source, text, max(",;\t|", key=first.count), width)  # a comma where there is no separator


def _protocol_columns(source: Path, own: Iterable[str], options: "SourceConfig") -> tuple[str, ...]:
    """Return the columns beside ``split`` and the levels that the protocol reads, or refuse a table without them."""
    if not options.protocol:
        return ()
    protocol = protocol_of(options.protocol)
    needed = {name: text for name, text in protocol.columns.items() if name != SPLIT or not options.test_classes}
    if lost := {name: text for name, text in needed.items() if name not in own}:
        raise ConfigError(
            f"{source}: the protocol {options.protocol} needs the column{'s' * (len(lost) > 1)} "
            f"{'; '.join(f'{name} ({text})' for name, text in lost.items())}. Add them (cells may be empty)."
        )
    return tuple(name for name in (*needed, *protocol.may_have) if name in own and name != SPLIT)


def _level_columns(source: Path, columns: Sequence[str], levels: tuple[str, ...]) -> dict[str, str]:
    """Return the column of every level, finest first."""
    shown = excerpt(", ".join(columns)) if columns else "none"
    if not levels:
        raise ConfigError(
            f"name the columns of {source} that are levels, finest first: --levels A,B. There are {shown}."
        )
    found = {name.lower(): name for name in reversed(columns)} | {name: name for name in columns}
    column_of = {}
    for stated in levels:
        level, _, column = (stated, "", stated) if stated in found else stated.partition("=")
        column = column or level
        column_of[level] = found.get(column) or found.get(column.lower())
    if None in column_of.values() or not len(set(column_of.values())) == len(column_of) == len(levels):
        raise ConfigError(
            f"--levels {','.join(levels)}: expected different columns of {source}, finest first, LEVEL=COLUMN where a "
            f"level is to have another name. There are {shown}."
        )
    return column_of


def _read_rows(source: Path, given: dict[str, str], levels: Sequence[str]) -> pl.DataFrame:
    """Read rows as text, null where a cell is empty: row (line of a CSV, or number from 1), and the given columns."""
    if source.suffix == ".parquet":
        try:
            wanted = [pl.col(column).cast(pl.String).alias(name) for name, column in given.items()]
            table = read_parquet(source, list(given.values())).select(wanted).with_row_index("row", offset=1)
        except POLARS_FAULTS as error:
            raise TableError(f"{source} cannot be read as a table of text and numbers ({excerpt(error)}).") from error
    else:
        header = _header(source)
        places = [header.index(column) for column in given.values()]
        rows = [(line, *(cells[place] for place in places)) for line, cells in _csv_rows(source, len(header))][1:]
        table = pl.DataFrame(rows, {"row": pl.UInt32, **dict.fromkeys(given, pl.String)}, orient="row")
    if table.is_empty():
        raise TableError(f"{source}: no rows below the header; expected one image a row.")
    table = table.with_columns(pl.col(pl.String).str.strip_chars().replace("", None))
    return table.with_columns(pl.col(levels).replace(["nan", "NaN"], None))


def _usable(table: pl.DataFrame, source: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split the rows into those that name an image of the folder, once each, and the others as dropped."""
    if SPLIT in table.columns:
        odd = table.filter(~pl.col(SPLIT).str.contains("^[A-Za-z0-9_]{1,40}$").fill_null(value=False))
        if len(odd):
            found = "empty" if odd[SPLIT][0] is None else quoted(odd[SPLIT][0])
            raise TableError(
                f"{source}, row {odd['row'][0]}: {SPLIT} is {found}; expected a name of letters, digits and "
                "underscores, for instance train, query, gallery or test."
            )
    values = [name for name in table.columns if name != "row"]
    files, reasons = [], []
    for file in table["file"]:
        try:
            files.append(None if file is None else relative_path(file, ""))
        except TableError:
            files.append(None)
        reasons.append(("no path" if file is None else "unsafe-path") if files[-1] is None else None)
    made = [pl.Series("file", files, dtype=pl.String), pl.Series("reason", reasons, dtype=pl.String)]
    table = table.with_columns(pl.col("file").fill_null("").alias("stated"), *made)
    repeated = pl.struct(values).is_first_distinct().not_() & pl.col("reason").is_null()
    table = table.with_columns(reason=pl.when(repeated).then(pl.lit("repeats an earlier row")).otherwise("reason"))
    bad, good = table.filter(pl.col("reason").is_not_null()), table.filter(pl.col("reason").is_null())
    if good.is_empty():
        raise TableError(f"{source}: none of its {len(table)} rows names an image; the first: {bad['reason'][0]}.")
    twice = good.filter(pl.col("file").is_duplicated()).sort("file", "row")
    if len(twice):
        first, second = twice.head(2).rows(named=True)
        column = next(value for value in values if first[value] != second[value])
        raise TableError(
            f"{source}: {quoted(first['file'])} has the {column} {quoted(first[column])} in row {first['row']} and "
            f"{quoted(second[column])} in row {second['row']}; expected one row an image. Delete the wrong row."
        )
    split = SPLIT if SPLIT in table.columns else pl.lit("train")
    return good, bad.select(file="stated", split=split, reason="reason", detail=pl.format("row {}", "row"))


def _entries(items: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return key, row and one entry of a column's cells a row, those between ``;``."""
    cells = items.select("key", "row", entry=pl.col(column).str.split(";")).explode("entry")
    return cells.with_columns(pl.col("entry").str.strip_chars()).filter(pl.col("entry").str.len_bytes() > 0)


def _judgements(items: pl.DataFrame, verdicts: Sequence[str]) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """Return the judged pairs, and the paths in cells of verdicts that the table does not list, as dropped."""
    if not verdicts:
        return None, pl.DataFrame(schema=DROPPED)
    named = pl.concat([_entries(items, name).with_columns(verdict=pl.lit(name)) for name in verdicts])
    there = items.select(entry=pl.col("file"), item=pl.col("key"))
    pairs = named.join(there, on="entry", how="left", maintain_order="left")
    known = pairs.filter(pl.col("item").is_not_null())
    strange = pairs.filter(pl.col("item").is_null()).select(
        file="entry",
        split=pl.lit(""),
        reason=pl.lit("judged, but not in the table"),
        detail=pl.format("row {}, {}", "row", "verdict"),
    )
    return known.select(query="key", item="item", verdict="verdict").unique(maintain_order=True), strange
