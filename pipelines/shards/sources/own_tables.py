"""Tables of the user's own images, as people and programs write them.

A table is CSV with any usual separator (``, ; |`` or a tab) in UTF-8, UTF-16 or Windows-1252, a parquet file, or a
folder of parquet files. Parquet files as Hugging Face ``datasets`` writes them may hold the images themselves: in a
column of structs with ``bytes`` and ``path``, or of plain bytes; their ``ClassLabel`` numbers are read as names.
"""

import codecs
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from hgld.errors import InputError, TableError, excerpt, quoted
from hgld.files import parse_json
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

# Includes formats that shards do not hold: such an image is rejected by name, not passed over as some other file.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
MISSING = ("", "nan", "NaN", "NAN", "None", "none", "NONE", "null", "NULL", "NA", "N/A", "n/a", "#N/A", "<NA>", "-1")
"""Cells that mean an unknown label."""
SPLITS_OF_FILES = {name: name for name in ("train", "test", "val", "query", "gallery")} | {"validation": "val"}
TABLE = "\0table"  # column of the number of the parquet file; no level can be called so
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_MARKS = (  # byte order marks; UTF-32's begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_ROWS_AT_ONCE = 50_000
_MOST_PARQUET_FILES = 10_000
_SCALARS = (pl.String, pl.Categorical, pl.Enum, pl.Boolean)


def is_parquet(source: Path) -> bool:
    """Tell whether a table is a parquet file, or a folder of them."""
    return source.is_dir() or source.suffix.lower() in (".parquet", ".pq")


@dataclass(frozen=True)
class OwnTable:
    """A table whose header was read.

    Attributes:
        source: the file, or the folder of parquet files.
        header: names of the columns as they are written.
        form: how it is written, for people.
        files: the parquet files; none: it is CSV.
        image_column: column that holds the images themselves; empty: none.
        class_names: names of the classes by number, of columns that hold numbers.
    """

    source: Path
    header: tuple[str, ...]
    form: str
    files: tuple[Path, ...] = ()
    image_column: str = ""
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    text: str = field(default="", repr=False)
    separator: str = ","

    @classmethod
    def open(cls, source: Path) -> "OwnTable":
        """Open a table.

        Raises:
            InputError: the file is missing, or the folder holds no parquet files.
            TableError: it cannot be read, has no columns, or one of them twice.
        """
        return _open_parquet(source) if is_parquet(source) else _open_csv(source)

    def select(self, columns: Mapping[str, str]) -> pl.DataFrame:
        """Read columns as text without blanks around it; a null of parquet is empty.

        Args:
            columns: column of the table by the name that it is to have.

        Returns:
            ``row`` (line of a CSV, or number from 1 in its parquet file), :data:`TABLE` (number of the parquet file),
            then the columns.

        Raises:
            TableError: a row has another number of cells than the header, or a cell is no text or number.
        """
        parts = list(self._parquet_parts(columns) if self.files else self._csv_parts(columns))
        schema = {"row": pl.Int64, TABLE: pl.Int32, **dict.fromkeys(columns, pl.String)}
        table = pl.concat([pl.DataFrame(schema=schema), *parts])
        if table.is_empty():
            raise TableError(f"{self.source}: no rows below the header; expected one image a row.")
        return table.with_columns(pl.col(list(columns)).fill_null("").str.strip_chars())

    def _csv_parts(self, columns: Mapping[str, str], most: int | None = None) -> Iterator[pl.DataFrame]:
        places = [self.header.index(column) for column in columns.values()]
        end = None if most is None else most + 1
        rows = islice(table_rows(self.source, self.text, self.separator, len(self.header)), 1, end)
        schema = {"row": pl.Int64, TABLE: pl.Int32, **dict.fromkeys(columns, pl.String)}
        yield pl.DataFrame(schema=schema)
        while part := list(islice(rows, _ROWS_AT_ONCE)):
            cells = [(line, 0, *(row[place] for place in places)) for line, row in part]
            yield pl.DataFrame(cells, schema, orient="row")

    def _parquet_parts(self, columns: Mapping[str, str]) -> Iterator[pl.DataFrame]:
        for number, file in enumerate(self.files):
            texts = [self._text_of(column).alias(name) for name, column in columns.items()]
            try:
                table = read_parquet(file, list(dict.fromkeys(columns.values())))
                rows = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias("row")
                yield table.select(rows, pl.lit(number, pl.Int32).alias(TABLE), *texts)
            except POLARS_FAULTS as error:
                raise TableError(f"{file} cannot be read as a table of text and numbers ({excerpt(error)}).") from error

    def _text_of(self, column: str) -> pl.Expr:
        if column not in self.class_names:
            return pl.col(column).cast(pl.String)
        names = self.class_names[column]
        numbers = pl.Series([-1, *range(len(names))], dtype=pl.Int64)
        return pl.col(column).cast(pl.Int64).replace_strict(numbers, pl.Series(["", *names]), return_dtype=pl.String)

    def head(self, rows: int) -> pl.DataFrame:
        """Return the first rows of all columns as text."""
        columns = {name: name for name in self.header if name}
        if not self.files:
            return pl.concat(self._csv_parts(columns, rows))
        table = read_parquet(self.files[0], list(columns), rows=(0, rows))
        return table.select(pl.col(name).cast(pl.String, strict=False).fill_null("") for name in columns)

    def stored_images(self) -> pl.DataFrame:
        """Return row and table of every image that the table holds, and its ``file``: TABLE/ROW/NAME.

        NAME is the path that stands beside the bytes, where it is a plain one; empty cells have no ``file``.
        """
        parts = [pl.DataFrame(schema={"row": pl.Int64, TABLE: pl.Int32, "file": pl.String})]
        for number, file in enumerate(self.files):
            for start, cells in images_of(file, self.image_column):
                rows = range(start + 1, start + len(cells) + 1)
                files = [
                    None if data is None else f"{file.name}/{row:09d}/{_stored_name(path)}"
                    for row, (data, path) in zip(rows, cells, strict=True)
                ]
                parts.append(pl.DataFrame({"row": rows, TABLE: [number] * len(rows), "file": files}, parts[0].schema))
        return pl.concat(parts)

    def splits_of_files(self) -> list[str] | None:
        """Return the split that every parquet file's name states (``train-00000-of-00001``); None if one does not."""
        stated = [re.match(r"[a-z]+", file.stem.lower()) for file in self.files]
        found = [SPLITS_OF_FILES.get(match[0]) if match else None for match in stated]
        splits = [split for split in found if split is not None]
        return splits if len(splits) == len(found) and len(set(splits)) > 1 else None


def images_of(
    file: Path, column: str, wanted: Sequence[int] | None = None
) -> Iterator[tuple[int, list[tuple[bytes | None, str]]]]:
    """Yield the row groups of a parquet file: the first row (from 0), then bytes (None: empty) and path of every image.

    Args:
        file: the parquet file.
        column: that holds the images.
        wanted: rows in order; groups without any are not read. Default: all.
    """
    start = 0
    for count in row_groups(file):
        stop = start + count
        if wanted is None or bisect_left(wanted, start) < bisect_left(wanted, stop):
            cells = read_parquet(file, [column], rows=(start, count))[column]
            paths = pl.Series([""] * count, dtype=pl.String)
            if isinstance(cells.dtype, pl.Struct):
                named = any(one.name == "path" for one in cells.dtype.fields)
                paths = cells.struct.field("path").cast(pl.String).fill_null("") if named else paths
                cells = cells.struct.field("bytes")
            yield start, list(zip(cells, paths, strict=True))
        start = stop


def _stored_name(path: str) -> str:
    """Return a stated path as it can stand within another: whole if it is a plain relative one, else its last part."""
    text = "".join(letter for letter in path.replace("\\", "/") if letter.isprintable())
    try:
        return relative_path(text, "") or "image"
    except TableError:
        return PurePosixPath(text).name[-200:].replace("..", "_") or "image"


def _open_csv(source: Path) -> OwnTable:
    text, encoding = _decoded(source)
    if not text.strip():
        raise TableError(f"{source} is empty; expected a header and one image a row.")
    first = text.lstrip().partition("\n")[0]
    separator = max(",;\t|", key=first.count)  # a comma where there is no separator
    _, header = next(table_rows(source, text, separator), (0, []))
    names = tuple(name.strip() for name in header)
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        raise TableError(f"{source} has the column {quoted(twice[0])} twice. Rename one in the file's first line.")
    return OwnTable(source, names, f"{_NAMES[separator]} between cells, {encoding}", text=text, separator=separator)


def _decoded(source: Path) -> tuple[str, str]:
    """Return the text of a file and the name of its encoding."""
    data = read_bytes(source, MAX_CSV_BYTES)
    for mark, codec, name in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(codec), name
            except UnicodeDecodeError as error:
                raise TableError(f"{source}: not {name}, as which it begins ({error.reason}). Save it anew.") from error
    begin = data[:4096]
    if begin.startswith(b"PK\x03\x04"):
        raise TableError(f"{source} is a spreadsheet or an archive; expected a table as text. Save it as CSV.")
    if begin.count(0) > len(begin) // 4:  # UTF-16 of mostly Latin letters
        codec = "utf-16-le" if begin[1::2].count(0) > begin[::2].count(0) else "utf-16-be"
        return data.decode(codec, "replace"), "UTF-16"
    if 0 in begin:
        raise TableError(f"{source} is no text; expected a table as CSV or parquet.")
    try:
        return data.decode(), "UTF-8"
    except UnicodeDecodeError:
        try:
            return data.decode("cp1252"), "Windows-1252"
        except UnicodeDecodeError:
            return data.decode("latin-1"), "Latin-1"


def _open_parquet(source: Path) -> OwnTable:
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
            raise TableError(f"{file} has other columns than {first.name}; expected the same. Build them apart.")
    images = [name for name, kind in schema.items() if _holds_images(kind)]
    if len(images) > 1:
        raise TableError(f"{first}: several columns hold images: {excerpt(', '.join(images))}. Keep one of them.")
    plain = [name for name, kind in schema.items() if kind.base_type() in _SCALARS or kind.is_numeric()]
    rows = sum(sum(row_groups(file)) for file in files)
    count = f"{len(files):,} parquet files of " if len(files) > 1 else "parquet of "
    form = f"{count}{rows:,} rows{', which hold the images' * bool(images)}"
    header = tuple(plain)
    return OwnTable(source, header, form, files, images[0] if images else "", _class_names(first, header))


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
