"""Read tables of the user's own images as text, and find out what each column means.

A table is CSV with any usual separator (``, ; |`` or a tab) in UTF-8, UTF-16 or Windows-1252, a parquet file, or a
folder of parquet files. Parquet files as Hugging Face ``datasets`` writes them may hold the images themselves: in a
column of structs with ``bytes`` and ``path``, or of plain bytes; their ``ClassLabel`` numbers are read as names.
"""

import codecs
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from hgld.errors import ConfigError, InputError, TableError, excerpt, quoted
from hgld.files import is_file, parse_json
from hgld.tables import (
    MAX_CSV_BYTES,
    POLARS_FAULTS,
    parquet_metadata,
    parquet_schema,
    read_parquet,
    row_groups,
    table_rows,
)

from .release import read_bytes, relative_path

# Includes formats that shards cannot hold, so that such an image is reported as rejected and not ignored.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
MISSING = ("", "nan", "NaN", "NAN", "None", "none", "NONE", "null", "NULL", "NA", "N/A", "n/a", "#N/A", "<NA>", "-1")
"""Cells that mean an unknown label."""
SPLITS_OF_FILES = {name: name for name in ("train", "test", "val", "query", "gallery")} | {"validation": "val"}
ROW = "\0row"  # name of a column; no user's table has a column of this name
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_MARKS = (  # byte order marks
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_WITHOUT_MARK = (("utf-8", "UTF-8"), ("cp1252", "Windows-1252"), ("latin-1", "Latin-1"))  # tried in this order
_ROWS_AT_ONCE = 50_000
_MOST_PARQUET_FILES = 10_000
_SCALARS = (pl.String, pl.Categorical, pl.Enum, pl.Boolean)


@dataclass(frozen=True)
class OwnTable:
    """A table, read as text.

    Attributes:
        source: the file, or the folder of parquet files.
        form: description of the table's format, for the printed summary.
        cells: :data:`ROW` (line of a CSV, or number from 1 in its parquet file), then the table's columns without
            blanks around their text; empty cells are empty texts.
        files: the parquet files; empty: the table is a CSV file.
        image_column: column that holds the images themselves; empty: the table holds no images.
        images: location of every image, TABLE/ROW/NAME; null if the cell of the image is empty.
        splits: split of each row, as its parquet file's name states it; None if the names state no splits.
    """

    source: Path
    form: str
    cells: pl.DataFrame
    files: tuple[Path, ...] = ()
    image_column: str = ""
    images: pl.Series | None = None
    splits: pl.Series | None = None

    @property
    def columns(self) -> list[str]:
        """Names of the table's columns as they are written."""
        return self.cells.columns[1:]


def read_own_table(source: Path) -> OwnTable:
    """Read a table.

    Raises:
        InputError: the file is missing, or the folder holds no parquet files.
        TableError: the table cannot be read, has no rows, has a column twice, a row with another number of cells than
            the header, or a cell that is neither text nor number.
    """
    is_parquet = source.is_dir() or source.suffix.lower() in (".parquet", ".pq")
    table = _read_parquet(source) if is_parquet else _read_csv(source)
    if table.cells.is_empty():
        raise TableError(f"{source}: no rows below the header; expected one image per row.")
    return replace(table, cells=table.cells.with_columns(pl.col(table.columns).fill_null("").str.strip_chars()))


# -- CSV --------------------------------------------------------------------------------------------------------------


def _read_csv(source: Path) -> OwnTable:
    text, encoding = _decoded(source)
    if not text.strip():
        raise TableError(f"{source} is empty; expected a header and one image per row.")
    separator = max(",;\t|", key=text.lstrip().partition("\n")[0].count)  # a comma if the table has no separator
    _, header = next(table_rows(source, text, separator), (0, []))
    names = [name.strip() for name in header]
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        raise TableError(f"{source} has the column {quoted(twice[0])} twice. Rename one in the file's first line.")
    named = [at for at, name in enumerate(names) if name]
    schema = {ROW: pl.Int64, **dict.fromkeys([names[at] for at in named], pl.String)}
    rows, parts = islice(table_rows(source, text, separator, len(names)), 1, None), [pl.DataFrame(schema=schema)]
    while part := list(islice(rows, _ROWS_AT_ONCE)):
        parts.append(pl.DataFrame([(line, *(row[at] for at in named)) for line, row in part], schema, orient="row"))
    return OwnTable(source, f"{_NAMES[separator]} between cells, {encoding}", pl.concat(parts))


def _decoded(source: Path) -> tuple[str, str]:
    """Return the text of a file and the name of its encoding."""
    data = read_bytes(source, MAX_CSV_BYTES)
    if data.startswith(b"PK\x03\x04"):
        raise TableError(f"{source} is a spreadsheet or an archive; expected a table as text. Save it as CSV.")
    # UTF-32's mark begins with UTF-16's mark
    marks = () if data.startswith(codecs.BOM_UTF32_LE) else _MARKS
    marked = [(codec, name) for mark, codec, name in marks if data.startswith(mark)]
    if not marked and 0 in data[:4096]:
        raise TableError(
            f"{source} is not text in UTF-8, Windows-1252, or UTF-16 with a byte order mark; expected a table "
            "as text (best CSV in UTF-8), or parquet."
        )
    for codec, name in marked or _WITHOUT_MARK:
        try:
            return data.decode(codec), name
        except UnicodeDecodeError:
            continue
    raise TableError(f"{source} begins like {marked[0][1]}, but cannot be decoded as such. Save it again as UTF-8.")


# -- parquet ----------------------------------------------------------------------------------------------------------


def _read_parquet(source: Path) -> OwnTable:
    files: tuple[Path, ...] = (source,)
    if source.is_dir():
        folder = next((place for place in (source, source / "data") if any(place.glob("*.parquet"))), source)
        files = tuple(islice(sorted(folder.glob("*.parquet")), _MOST_PARQUET_FILES))
    if not files:
        tables = [path.name for path in sorted(source.iterdir()) if path.suffix.lower() in (".csv", ".tsv", ".txt")]
        hint = (
            f"Name the table: {source / tables[0]}." if tables else "For folders of images: hgld build-shards folders."
        )
        raise InputError(f"{source} is a folder without parquet files; expected a table. {hint}")
    first, *others = files
    schema = parquet_schema(first)
    for file in others:
        if parquet_schema(file) != schema:
            raise TableError(
                f"{file} has different columns from {first.name}; expected the same columns. Build a separate dataset "
                "from each."
            )
    stored = [name for name, kind in schema.items() if _holds_images(kind)]
    if len(stored) > 1:
        raise TableError(f"{first}: several columns hold images: {excerpt(', '.join(stored))}. Keep one of them.")
    plain = [name for name, kind in schema.items() if kind.base_type() in _SCALARS or kind.is_numeric()]
    labels, parts = (
        _class_names(first, plain),
        [pl.DataFrame(schema={ROW: pl.Int64, **dict.fromkeys(plain, pl.String)})],
    )
    for file in files:
        try:
            table = read_parquet(file, plain)
            rows = pl.int_range(1, sum(row_groups(file)) + 1, dtype=pl.Int64, eager=True).alias(ROW)
            parts.append(table.select(_text_of(name, labels) for name in plain).insert_column(0, rows))
        except POLARS_FAULTS as error:
            raise TableError(f"{file} cannot be read as a table of text and numbers ({excerpt(error)}).") from error
    cells = pl.concat(parts)
    count = f"{len(files):,} parquet files of " if len(files) > 1 else "parquet of "
    form = f"{count}{len(cells):,} rows{', which hold the images' * bool(stored)}"
    if not stored:
        return OwnTable(source, form, cells, files)
    images = [
        None if data is None else f"{file.name}/{row + 1:09d}/{_stored_name(path)}"
        for file in files
        for row, data, path in images_of(file, stored[0])
    ]
    splits = [_split_of(file) for file in files]
    are_stated = None not in splits and len(set(splits)) > 1
    of_rows = pl.concat(pl.repeat(split, len(part), eager=True) for split, part in zip(splits, parts[1:], strict=True))
    return OwnTable(
        source, form, cells, files, stored[0], pl.Series(images, dtype=pl.String), of_rows if are_stated else None
    )


def _text_of(column: str, class_names: Mapping[str, Sequence[str]]) -> pl.Expr:
    if column not in class_names:
        return pl.col(column).cast(pl.String)
    names = class_names[column]
    numbers = pl.Series([-1, *range(len(names))], dtype=pl.Int64)
    return pl.col(column).cast(pl.Int64).replace_strict(numbers, pl.Series(["", *names]), return_dtype=pl.String)


def _holds_images(kind: Any) -> bool:
    if isinstance(kind, pl.Struct):
        return any(one.name == "bytes" and one.dtype == pl.Binary for one in kind.fields)
    return kind == pl.Binary


def _class_names(file: Path, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of ClassLabel columns by the metadata that Hugging Face ``datasets`` writes."""
    stated = parquet_metadata(file).get("huggingface")
    if stated is None:
        return {}
    found = parse_json(stated.encode(), f"{file}, metadata of Hugging Face")
    try:
        features = found["info"]["features"]
        named = {column: features[column].get("names") for column in columns if column in features}
    except (KeyError, TypeError, AttributeError):
        return {}
    return {
        column: names
        for column, names in named.items()
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    }


def images_of(file: Path, column: str, wanted: Sequence[int] | None = None) -> Iterator[tuple[int, bytes | None, str]]:
    """Yield the row (from 0), the bytes (None: the cell is empty) and the stated path of images in a parquet file.

    Args:
        file: the parquet file.
        column: column that holds the images.
        wanted: wanted rows in ascending order; row groups without wanted rows are not read. Default: all rows.
    """
    start = 0
    for count in row_groups(file):
        stop = start + count
        rows = range(start, stop)
        if wanted is not None:
            rows = wanted[bisect_left(wanted, start) : bisect_left(wanted, stop)]
        if rows:
            cells = read_parquet(file, [column], rows=(start, count))[column]
            paths = pl.repeat("", count, eager=True)
            if isinstance(cells.dtype, pl.Struct):
                if any(one.name == "path" for one in cells.dtype.fields):
                    paths = cells.struct.field("path").cast(pl.String).fill_null("")
                cells = cells.struct.field("bytes")
            yield from ((row, cells[row - start], paths[row - start]) for row in rows)
        start = stop


def _stored_name(path: str) -> str:
    """Return a stored path if it is relative and plain, else its last part, so that it can be appended to a folder."""
    text = "".join(letter for letter in path.replace("\\", "/") if letter.isprintable())
    try:
        return relative_path(text, "") or "image"
    except TableError:
        return PurePosixPath(text).name[-200:].replace("..", "_") or "image"


def _split_of(file: Path) -> str | None:
    """Return the split that a parquet file's name states, as ``train-00000-of-00001`` does."""
    stated = re.match(r"[a-z]+", file.stem.lower())
    return SPLITS_OF_FILES.get(stated[0]) if stated else None


# -- roles of the columns ---------------------------------------------------------------------------------------------

_PATH_COLUMNS = (  # normalised names: lower case, no characters between words
    *("path", "file", "image", "filename", "filepath", "imagepath", "imagefile", "imagefilename", "imagename"),
    *("img", "imgpath", "imgfile", "imgname", "photo", "picture"),
)
_SAMPLED_PATHS = 200
_MOST_SUBFOLDERS = 200
_MOST_COLUMNS = 40
# maximum number of distinct values per labelled row; if there are more, they name images, not classes
_MOST_CLASSES = 0.6
_LONGEST_NAME = 80  # maximum mean number of letters of class names; longer texts are remarks
# a column is a level if more than this share of its classes has one parent, so that a few typing errors do no harm
_AGREEMENT = 0.98
_FRACTION = r"^[+-]?\d*[.,]\d+(e[+-]?\d+)?$"
_HINTS = re.compile("class|label|species|category|product|name|fine|item|identity|breed|type|variety")


def path_column(table: OwnTable, root: Path) -> str:
    """Find the column of the files by its name, by its cells, and by which files exist below ``root``.

    Raises:
        ConfigError: there is no such column, or more than one.
    """
    begin = table.cells.head(_SAMPLED_PATHS)
    named = [name for name in table.columns if re.sub(r"[\W_]+", "", name.casefold()) in _PATH_COLUMNS]
    alike = [name for name in table.columns if _share(begin[name], _looks_like_an_image) > 0.5]
    candidates = alike or named
    if len(candidates) > 1:
        there = {name: _share(begin[name], lambda cell: is_file(root, posix(cell))) for name in candidates}
        best = [name for name in candidates if there[name] == max(there.values())]
        candidates = best if len(best) == 1 else candidates
    if len(candidates) != 1:
        fault = "has no column that names the image files"
        if candidates:
            fault = (
                f"has the columns {excerpt(', '.join(candidates))}, each of which could be the column of image files"
            )
        raise ConfigError(
            f"{table.source} {fault}; expected exactly one column of paths, called for instance "
            f"{', '.join(_PATH_COLUMNS[:4])}. Rename the column."
        )
    return candidates[0]


def folder_of(home: Path, paths: pl.Series) -> Path:
    """Return the folder of the images: the table's own folder ``home``, or the folder in it with most of the files."""

    def found(folder: Path) -> float:
        return _share(paths.head(_SAMPLED_PATHS), lambda cell: is_file(folder, posix(cell)))

    if found(home) >= 0.5:
        return home
    inside = (path for path in sorted(home.iterdir()) if path.is_dir() and not path.is_symlink())
    best = max([home, *islice(inside, _MOST_SUBFOLDERS)], key=found)
    return best if found(best) >= 0.5 else home


def _looks_like_an_image(cell: str) -> bool:
    return PurePosixPath(cell).suffix.lower() in IMAGE_SUFFIXES


def _share(cells: Iterable[str], is_one: Callable[[str], bool]) -> float:
    """Return the share of the filled cells for which a test is true."""
    filled = [cell for cell in cells if cell]
    return sum(map(is_one, filled)) / max(1, len(filled))


def posix(path: str) -> str:
    """Return a path with slashes in place of the backslashes of Windows."""
    return path.replace("\\", "/") if "/" not in path else path


def find_levels(columns: Mapping[str, pl.Series]) -> list[str]:
    """Return the columns that form the longest tree of classes, finest first.

    Column A is a level above column B if nearly every class of B occurs with only one class of A (spellings that differ
    in case or blanks count as one class). A column is not a level if it has one value, nearly as many values as rows,
    long texts or fractions. If two columns divide the images in the same way, the column with words is taken.

    Args:
        columns: cells of each column as text, by column name; null: the label is unknown.
    """
    kept: dict[str, pl.Series] = {}
    for name, cells in list(columns.items())[:_MOST_COLUMNS]:
        plain = cells.str.to_lowercase().str.replace_all(r"[\s_-]+", " ").str.strip_chars()
        known = plain.drop_nulls()
        if not 2 <= known.n_unique() <= max(2, _MOST_CLASSES * len(known)):
            continue
        letters, fractions = known.str.len_chars().to_numpy().mean(), known.str.contains(_FRACTION).to_numpy().mean()
        if letters <= _LONGEST_NAME and fractions <= 0.9:
            kept[name] = plain
    counts = {name: cells.drop_nulls().n_unique() for name, cells in kept.items()}
    words = {name: not cells.drop_nulls().str.contains(r"^[+-]?\d+$").all() for name, cells in kept.items()}
    hinted = {name: _HINTS.search(name.lower()) is not None for name in kept}
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
    """Tell whether nearly every class of the finer column has one class of the coarser column."""
    pairs = pl.DataFrame({"fine": fine, "coarse": coarse}).drop_nulls().unique()
    parents = pairs.group_by("fine").len()["len"]
    return len(parents) > 0 and (parents == 1).sum() >= _AGREEMENT * len(parents)
