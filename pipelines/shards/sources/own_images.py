"""The user's own images: in folders of classes (folders), or listed in a table (manifest).

A folder tree is ``top/middle/fine/image.jpg``, one level of folders per level of classes. If all folders at the top are
named like splits (``train``, ``test``, ``query``, ``gallery``, ``val``), these folders are the splits, and the folders
of classes begin below them. A folder without folders of images in it is a class of the finest level, however deep it
lies; levels without a folder in between are unknown. An image in the same folder as folders of images has no label at
the finest levels.

A table (:mod:`hgld.pipelines.shards.sources.own_tables`) has one row per image and one column per level. One column
names the files, or holds the images. ``--levels`` names the columns of the labels, finest first (``LEVEL=COLUMN`` gives
a level another name than its column). Without ``--levels``, the levels are the columns that form the longest tree of
classes. The names of columns may have any letter case. A column ``split`` names the split of every image. Without it,
``--test-classes`` draws a class-disjoint test split. Without the column and the option, all images are in the split
``train``.

``--protocol`` makes a table a benchmark. The protocol says which further columns are read. ``list`` names the list that
an image is in, and ``template`` names its template (a set of frames of one face). ``easy``, ``hard``, ``junk`` and
``relevant`` of a query hold paths of gallery images, with ``;`` between them.
"""

import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import polars as pl

from hgld.data.format import COLUMNS_BESIDE_LEVELS, is_safe_name, short
from hgld.data.image_folder import class_depth, folder_classes, outer_folders
from hgld.errors import ConfigError, InputError, StorageError, TableError, excerpt, quoted
from hgld.evaluation.protocols import protocol_of

from ..catalog import BESIDE_LEVELS, DROPPED, Catalog, check_level_names, safe_key
from ..catalog_changes import draw_classes
from .own_tables import (
    IMAGE_SUFFIXES,
    MISSING,
    ROW,
    SPLITS_OF_FILES,
    OwnTable,
    find_levels,
    folder_of,
    path_column,
    posix,
    read_own_table,
)
from .release import relative_path

if TYPE_CHECKING:
    from ..config import SourceConfig

SPLIT_FOLDERS = frozenset(SPLITS_OF_FILES) - {"validation"}
SPLIT = "split"
_VERDICTS = ("easy", "hard", "junk", "relevant")
_LISTS = {"list": "{}", "template": "template/{}"}  # column -> name of the list that an entry of its cells belongs to
_LONGEST_TEXT = 10_000
_DEEPEST = 16
_STATED, _REASON = "\0stated", "\0reason"  # names of columns that no level can have


@dataclass(frozen=True)
class OwnImages:
    """The user's own images and their labels, as folders or a table state them.

    Attributes:
        kind: ``folders`` or ``manifest``.
        source: the folder or table.
        form: description of the labels' format, for the printed summary.
        root: folder of the images.
        levels: names of the levels, finest first.
        columns: column of the table by level; empty: the images are in folders, without a table.
        items: table of images: key, file, split (only if splits are stated), the columns that the protocol reads, and
            the name of the class per level (null: unknown).
        dropped: images that cannot be used, with the reason.
        unused: columns that are not levels.
        missing: number of cells per text that means an unknown label.
        spellings: for each name with several spellings (case, Unicode form, characters between words): its level, and
            the number of images per spelling.
        image_column: column of the parquet files that holds the images; empty: the images are files.
    """

    kind: str
    source: Path
    form: str
    root: Path
    levels: tuple[str, ...]
    items: pl.DataFrame
    dropped: pl.DataFrame
    columns: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    missing: Mapping[str, int] = field(default_factory=dict)
    spellings: Sequence[tuple[str, Mapping[str, int]]] = ()
    judgements: pl.DataFrame | None = None
    lists: pl.DataFrame | None = None
    image_column: str = ""

    @property
    def has_splits(self) -> bool:
        """True if the folders or the table state splits."""
        return SPLIT in self.items.columns

    def catalog(self, options: "SourceConfig") -> Catalog:
        """Return the catalog, with the splits that are stated or drawn.

        Raises:
            ConfigError: options contradict each other.
            HierarchyError: a class has two parents.
        """
        if options.name and not is_safe_name(options.name):
            raise ConfigError(f"--name is {short(options.name)}; expected 1 to 200 printable characters, no slash.")
        for option in ("license", "description"):
            text = getattr(options, option)
            if not text.isprintable() or len(text) > _LONGEST_TEXT:
                raise ConfigError(
                    f"--{option} is {short(text)}; expected one line of at most {_LONGEST_TEXT:,} printable characters."
                )
        items = self.items
        if self.has_splits and options.test_classes:
            what = "folders of splits" if self.kind == "folders" else f"a column {SPLIT!r}"
            raise ConfigError(f"{self.source} already has {what}; omit --test-classes.")
        if not self.has_splits:
            is_test = pl.lit(value=False)
            if options.test_classes:
                finest = pl.col(self.levels[0])
                drawn = draw_classes(items[self.levels[0]].drop_nulls(), options.test_classes, options.seed)
                is_test = finest.is_in(sorted(drawn)).fill_null(value=False)
            items = items.with_columns(split=pl.when(is_test).then(pl.lit("test")).otherwise(pl.lit("train")))
        return Catalog(
            name=options.name or self.kind,
            levels=self.levels,
            items=items.select("key", "split", "file", *self.levels),
            root=self.root,
            lists=self.lists,
            judgements=self.judgements,
            dropped=self.dropped,
            sources=() if self.kind == "folders" else (self.source,) if self.source.is_file() else (),
            disjoint=bool(options.test_classes),
            protocol=options.protocol,
            image_column=self.image_column,
        )


def read_own_images(kind: str, source: Path, options: "SourceConfig") -> OwnImages:
    """Read the user's own images and their labels; no image is opened.

    Raises:
        ConfigError: options contradict each other, the folders or the table's columns.
        InputError: there are no images, or the table cannot be read or contradicts itself about an image.
    """
    found = _read_folders(source, options) if kind == "folders" else _read_table(source, options)
    found = replace(found, spellings=[one for level in found.levels for one in _spellings(found.items[level], level)])
    return merge_spellings(found) if options.merge_spellings else found


def merge_spellings(found: OwnImages) -> OwnImages:
    """Replace every spelling of a name by its most frequent spelling."""
    items = found.items
    for level, counts in found.spellings:
        items = items.with_columns(pl.col(level).replace(list(counts), next(iter(counts))))
    return replace(found, items=items)


def read_own(kind: str, source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of a folder tree (``folders``) or a table of images (``manifest``)."""
    return read_own_images(kind, source, options).catalog(options)


def check_own_protocol(catalog: Catalog) -> None:
    """Raise an error if a catalog lacks what its protocol needs.

    Raises:
        InputError: the dataset lacks levels, splits, lists or judgements.
    """
    if catalog.protocol:
        where = ", ".join(map(str, catalog.sources)) or str(catalog.root)
        tables = [name for name in ("judgements", "lists") if getattr(catalog, name) is not None]
        splits = catalog.items["split"].unique().sort().to_list()
        protocol_of(catalog.protocol).check(catalog.protocol, where, splits, tables, catalog.levels)


def keys_of_paths(paths: Sequence[str]) -> list[str]:
    """Make a distinct key for every path: the path without its suffix, made safe.

    Paths that would have the same key (``a.jpg`` and ``a.png``, ``a b.jpg`` and ``a_b.jpg``) get a part of the
    path's SHA-256 appended.
    """
    keys = [safe_key(_without_suffix(path)) for path in paths]
    uses = Counter(keys)
    return [
        key if uses[key] == 1 else f"{key}={hashlib.sha256(path.encode()).hexdigest()[:12]}"
        for key, path in zip(keys, paths, strict=True)
    ]


def _without_suffix(path: str) -> str:
    """Return the path without its suffix, without pathlib, which is slow for a table of millions of rows."""
    stem, _, suffix = path.rpartition(".")
    return path if "/" in suffix or not stem.rpartition("/")[2] else stem


def _spellings(names: pl.Series, level: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the level and the spellings, most frequent first, of every name that has several spellings."""
    counts = names.drop_nulls().value_counts().sort(pl.col("count"), names.name, descending=[True, False])
    ways: dict[str, dict[str, int]] = {}
    for name, count in counts.iter_rows():
        ways.setdefault(plain_name(name), {})[name] = count
    yield from ((level, way) for way in ways.values() if len(way) > 1)


def plain_name(name: str) -> str:
    """Return a name in lower case with one space between words: equal for all spellings of the name.

    >>> plain_name("Granny_Smith") == plain_name("granny  smith")
    True
    """
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip() or name


# -- folders ----------------------------------------------------------------------------------------------------------


def _read_folders(source: Path, options: "SourceConfig") -> OwnImages:
    """Read a folder tree.

    Hidden files and folders, files that are not images, paths that are not UTF-8, and links to folders become rows of
    ``dropped``. A class has the name of its folder; if a name of a level has two parents, the classes of that level are
    named by their paths instead.
    """
    protocol = protocol_of(options.protocol) if options.protocol else None
    if protocol is not None and protocol.tables:
        raise ConfigError(
            f"the protocol {options.protocol} needs {' and '.join(protocol.tables)}, which a folder tree cannot "
            "express. "
            f"List the images in a table with the columns {', '.join(protocol.columns)}: hgld build-shards manifest."
        )
    files, dropped = find_images(source)
    names = SPLIT_FOLDERS if protocol is None else SPLIT_FOLDERS | {*protocol.splits, *protocol.further}
    own_splits = {file.partition("/")[0] for file in files} <= names
    depths = Counter(file.count("/") - own_splits for file in files)
    depth = class_depth(depths)
    levels = options.levels
    if levels and not depth <= len(levels) <= max(depths):
        raise ConfigError(
            f"--levels names {len(levels)} levels, but the images of {source} are in {depth} nested folders. Pass "
            f"{depth} names, finest first."
        )
    depth = len(levels) or depth
    if depth < 1:
        raise InputError(
            f"{source}: its images are in no subfolder; expected one folder per class. Move them, or list them in a "
            "table: hgld build-shards manifest."
        )
    levels = levels or tuple(f"level{number}" for number in range(depth))
    check_level_names(levels, str(source))
    folders = [tuple(file.split("/")[own_splits:-1][:depth]) for file in files]
    columns = folder_classes(folders, levels)
    items = pl.DataFrame({"key": keys_of_paths(files), "file": files})
    if own_splits:
        items = items.with_columns(split=pl.col("file").str.split("/").list.first())
    return OwnImages(
        kind="folders",
        source=source,
        form=_form_of_folders(folders, depth, sum(n for found, n in depths.items() if found > depth)),
        root=source,
        levels=levels,
        items=items.with_columns(pl.Series(level, names, dtype=pl.String) for level, names in columns.items()),
        dropped=pl.DataFrame(dropped, schema=DROPPED, orient="row"),
    )


def _form_of_folders(folders: Sequence[tuple[str, ...]], depth: int, deeper: int) -> str:
    """Return a line for users: how many folders deep the images are, and how many are in fewer or more folders."""
    parts = [f"{depth} folder{'s' * (depth != 1)} deep"]
    outer = outer_folders(folders)
    fewer = Counter(found in outer for found in folders if len(found) < depth)
    if shallow := fewer[False]:
        parts.append(f"{shallow:,} images in fewer folders, without labels at the levels in between")
    if beside := fewer[True]:
        parts.append(f"{beside:,} images beside folders of images, without labels at the finest levels")
    if deeper:
        parts.append(f"{deeper:,} images in more folders, of which the inner ones are not levels")
    return "; ".join(parts)


def find_images(source: Path) -> tuple[list[str], list[tuple[str, str, str, str]]]:
    """Return the images' paths, sorted, and (file, split, reason, detail) of every other file."""
    if not source.is_dir():
        raise InputError(f"{source} is not a folder; expected one with top/middle/fine/image.jpg in it.")
    found = sorted(_walk(source, "", 0))
    dropped = [(name, "", reason, "") for name, reason in found if reason]
    if len(dropped) == len(found):
        raise InputError(f"{source}: no images in it ({len(dropped)} other files); expected top/middle/fine/image.jpg.")
    return [name for name, reason in found if not reason], dropped


def _walk(source: Path, inside: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield every file below a folder, and the reason why it is not an image (empty if it is an image)."""
    if depth > _DEEPEST:
        raise InputError(f"{source / inside}: more than {_DEEPEST} folders deep; expected one folder per level.")
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
        elif readable != path:  # a name on the path has bytes that are not UTF-8
            yield readable, "name is not UTF-8"
        elif entry.is_dir():
            yield path, "link to a folder"
        else:
            yield path, "" if PurePosixPath(entry.name).suffix.lower() in IMAGE_SUFFIXES else "not an image"


# -- a table ----------------------------------------------------------------------------------------------------------


def _read_table(source: Path, options: "SourceConfig") -> OwnImages:
    """Read a table of images.

    Rows without a path, with a path that leads out of the folder, or that repeat an earlier row exactly go to
    ``dropped`` with their line. Paths are relative to ``options.images``, else to the table's folder or to a folder
    in it, whichever holds the files. Absolute paths below that folder are accepted.
    """
    table = read_own_table(source)
    own = {name.lower(): name for name in reversed(table.columns)} | {name: name for name in table.columns}
    further = _protocol_columns(source, own, options)
    given = {name: own[name] for name in (SPLIT, *further) if name in own}
    if table.images is None:
        stated = path_column(table, options.images or source.parent)
        files, form = table.cells[stated], f"{table.form}, paths in {quoted(stated)}"
        root = options.images or folder_of(source.parent, files)
    else:
        stated, files, form, root = "", table.images, table.form, table.files[0].parent
    free = [name for name in table.columns if name not in (stated, *given.values())]
    columns = _level_columns(table, free, given, options.levels)
    levels = tuple(columns)
    check_level_names(levels, str(source))
    rows = table.cells.select(
        ROW,
        files.fill_null("").alias("file"),
        *(pl.col(column).replace("", None).alias(name) for name, column in given.items()),
        *(_known(table.cells[column]).alias(level) for level, column in columns.items()),
    )
    if SPLIT not in given and table.splits is not None:
        rows = rows.with_columns(table.splits.alias(SPLIT))
    cells = pl.concat([table.cells[column].alias("cell") for column in columns.values()])
    missing = cells.filter(cells.is_in(MISSING)).value_counts().sort("count", "cell", descending=[True, False])
    good, dropped = _split_usable(rows, source, None if table.image_column else root)
    paths = good["file"]
    if table.image_column:
        names = paths.str.split_exact("/", 2).struct.field("field_2")
        paths = paths if names.is_duplicated().any() else names
    good = good.with_columns(key=pl.Series(keys_of_paths(paths.to_list()), dtype=pl.String))
    judgements, strange = _judgements(good, [name for name in further if name in _VERDICTS])
    lists = [
        _entries(good, column).select(list=pl.format(_LISTS[column], "entry"), key=pl.col("key"))
        for column in further
        if column in _LISTS
    ]
    return OwnImages(
        kind="manifest",
        source=source,
        form=form,
        root=root,
        levels=levels,
        columns=columns,
        items=good,
        dropped=pl.concat([dropped, strange]),
        unused=tuple(name for name in free if name not in columns.values()),
        missing=dict(missing.iter_rows()),
        lists=pl.concat(lists).unique(maintain_order=True) if lists else None,
        judgements=judgements,
        image_column=table.image_column,
    )


def _known(cells: pl.Series) -> pl.Series:
    """Replace cells that mean an unknown label by null."""
    return cells.replace(list(MISSING), None)


def _protocol_columns(source: Path, own: Iterable[str], options: "SourceConfig") -> tuple[str, ...]:
    """Return the columns that the protocol reads besides ``split`` and levels; raise an error if they are missing."""
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


def _level_columns(
    table: OwnTable, columns: Sequence[str], given: Iterable[str], levels: tuple[str, ...]
) -> dict[str, str]:
    """Return the column of every level, finest first.

    Args:
        table: the whole table.
        columns: columns that may be levels.
        given: names of the columns that are read for other purposes.
        levels: content of ``--levels``; empty: the levels are found from the columns.
    """
    there = excerpt(", ".join(columns)) if columns else "none"
    if not levels:
        taken = {*COLUMNS_BESIDE_LEVELS, *BESIDE_LEVELS, *given}
        printable = {
            name: " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())[:90]
            for name in find_levels({name: _known(table.cells[name]) for name in columns})
        }
        if not printable:
            raise ConfigError(
                f"no column of {table.source} looks like classes of images. Columns: {there}. Name the "
                "levels' columns, finest first: --levels A,B."
            )
        return {f"{level}_level" if level in taken else level: name for name, level in printable.items()}
    found = {name.lower(): name for name in reversed(columns)} | {name: name for name in columns}
    column_of = {}
    for stated in levels:
        level, _, column = (stated, "", stated) if stated in found else stated.partition("=")
        column = column or level
        column_of[level] = found.get(column) or found.get(column.lower())
    if None in column_of.values() or not len(set(column_of.values())) == len(column_of) == len(levels):
        raise ConfigError(
            f"--levels {','.join(levels)}: expected different columns of {table.source}, finest first, LEVEL=COLUMN "
            f"if the level has a different name. Columns: {there}."
        )
    return column_of


def _split_usable(table: pl.DataFrame, source: Path, root: Path | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the usable rows, one per image, and the other rows as dropped files.

    Args:
        table: the rows.
        source: path of the table, for messages.
        root: folder of the images; None: the table itself holds them.
    """
    if SPLIT in table.columns:
        odd = table.filter(~pl.col(SPLIT).str.contains("^[A-Za-z0-9_]{1,40}$").fill_null(value=False))
        if len(odd):
            found = "empty" if odd[SPLIT][0] is None else quoted(odd[SPLIT][0])
            raise TableError(
                f"{source}, row {odd[ROW][0]}: {SPLIT} is {found}; expected a name of letters, digits and "
                "underscores, for instance train, query, gallery or test."
            )
    homes = [] if root is None else [f"{home}/" for home in (root.absolute(), root.resolve())]
    nothing = "no image in the cell" if root is None else "no path"
    cleaned = [_inside(stated, homes) if stated else ("", nothing) for stated in table["file"]]
    files, reasons = zip(*cleaned, strict=True)
    table = table.with_columns(
        pl.col("file").alias(_STATED), pl.Series("file", files), pl.Series(_REASON, reasons, dtype=pl.String)
    )
    values = [name for name in table.columns if name not in (ROW, _STATED, _REASON)]
    is_repeated = pl.struct(values).is_first_distinct().not_() & pl.col(_REASON).is_null()
    table = table.with_columns(
        pl.when(is_repeated).then(pl.lit("repeats an earlier row")).otherwise(_REASON).alias(_REASON)
    )
    bad, good = table.filter(pl.col(_REASON).is_not_null()), table.filter(pl.col(_REASON).is_null())
    if good.is_empty():
        absolute = [path for path in bad[_STATED] if path.startswith("/")]
        hint = (
            f" {len(absolute)} paths are outside of {root}: --images {os.path.commonpath(absolute)}" if absolute else ""
        )
        raise TableError(f"{source}: none of its {len(table)} rows names an image; the first: {bad[_REASON][0]}.{hint}")
    twice = good.filter(pl.col("file").is_duplicated()).sort("file", ROW)
    if len(twice):
        first, second = twice.head(2).rows(named=True)
        column = next(value for value in values if first[value] != second[value])
        raise TableError(
            f"{source}: {quoted(first['file'])} has the {column} {quoted(first[column])} in row {first[ROW]} and "
            f"{quoted(second[column])} in row {second[ROW]}; expected one row per image. Delete the wrong row."
        )
    split = SPLIT if SPLIT in table.columns else pl.lit("train")
    dropped = bad.select(file=_STATED, split=split, reason=_REASON, detail=pl.format("row {}", ROW))
    return good.drop(_STATED, _REASON), dropped


def _inside(stated: str, homes: Sequence[str]) -> tuple[str, str | None]:
    """Return a path relative to the image folder (``homes``: its absolute paths), or the reason why it is unusable."""
    path = posix(stated)
    home = next((home for home in homes if path.startswith(home)), "")
    try:
        return relative_path(path[len(home) :], ""), None
    except TableError:
        return "", "unsafe-path"


def _entries(items: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return key, row and entry of every entry in a column's cells; ``;`` separates the entries of a cell."""
    cells = items.select("key", ROW, entry=pl.col(column).str.split(";")).explode("entry")
    return cells.with_columns(pl.col("entry").str.strip_chars()).filter(pl.col("entry").str.len_bytes() > 0)


def _judgements(items: pl.DataFrame, verdicts: Sequence[str]) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """Return the judged pairs, and judged paths that the table does not list, as dropped files."""
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
        detail=pl.format("row {}, {}", ROW, "verdict"),
    )
    return known.select(query="key", item="item", verdict="verdict").unique(maintain_order=True), strange
