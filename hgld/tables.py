"""Parquet and CSV tables: reading with limited memory, and atomic writing.

Every table that hgld reads goes through :func:`read_parquet`, :func:`read_csv` or :class:`CsvText`. Paths are literal:
``[``, ``]``, ``*`` and ``?`` in them have no special meaning. If a file would take too much memory, hgld raises an
error before it decodes the file.
"""

import csv
import io
import json
import os
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from hgld.errors import InputError, SchemaError, StorageError, TableError, excerpt, quoted
from hgld.files import open_regular, write_atomic
from hgld.memory import MEMORY, memory_limit

POLARS_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # polars panics on some damaged parquet files
NUMPY_FAULTS = (  # numpy raises these for malicious npy headers, which are Python literals of any depth
    *(ValueError, TypeError, KeyError, SyntaxError, EOFError, OverflowError, RecursionError, MemoryError),
    tokenize.TokenError,
)
MAX_CSV_BYTES = 1 << 30
_MAX_COLUMNS = 1 << 14
_MOST_GROWTH = 8  # if a table is larger, its size in memory may be at most this multiple of its file's size
# first bytes of gzip, zlib and zstd files
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x28\xb5\x2f\xfd")

Source = Path | str | bytes
Schema = Mapping[str, Any]


# -- parquet -----------------------------------------------------------------------------------------------------------


def read_parquet(
    source: Source,
    columns: Sequence[str] | None = None,
    *,
    schema: Schema | None = None,
    rows: tuple[int, int] | None = None,
    where: str | None = None,
    fix: str = "",
) -> pl.DataFrame:
    """Check the footer of a parquet file, then read the table.

    Args:
        source: the file, or its bytes.
        columns: columns to read; default: the columns of ``schema``, else all columns.
        schema: required column types; other columns are ignored.
        rows: first row and number of rows to read; default: all.
        where: name of the source in messages.
        fix: last sentence of error messages: how to fix an unusable file.

    Raises:
        TableError: the file is not readable parquet, or a column is missing or has a wrong type. Or the columns to read
            take more memory than the machine has, or than both the limit of :mod:`hgld.memory` and 8 times the file's
            size.
    """
    with _footer_of(source, where, fix) as footer:
        scan = _scan(source)
        found = scan.collect_schema()
        wrong = [name for name, dtype in (schema or {}).items() if found.get(name) != dtype]
        if schema is not None and wrong:
            told = ", ".join(f"{quoted(name)} ({found.get(name, 'missing')})" for name in wrong)
            expected = ", ".join(f"{name}: {dtype}" for name, dtype in schema.items())
            raise TableError(f"columns with a wrong type, or missing: {told}; expected {expected}.")
        wanted = list(columns if columns is not None else schema if schema is not None else found)
        _check_columns(wanted, found)
        budget = max(memory_limit(), _MOST_GROWTH * footer.size)
        size = footer.decoded_size({column: found[column] for column in wanted}, budget, rows)
        if size > budget:
            raise TableError(
                f"{footer.rows:,} rows that take {size >> 20:,} MiB or more in memory, in a file of {footer.size:,} "
                f"bytes; expected at most {budget >> 20:,} MiB."
            )
        with MEMORY.hold(size, f"{footer.rows:,} rows"):
            return (scan if rows is None else scan.slice(*rows)).select(wanted).collect()


def parquet_schema(source: Source, *, where: str | None = None, fix: str = "") -> pl.Schema:
    """Return the names and types of a parquet table's columns.

    Raises:
        TableError: the file is not readable parquet.
    """
    with _footer_of(source, where, fix):
        return _scan(source).collect_schema()


def parquet_metadata(source: Source, *, where: str | None = None) -> dict[str, str]:
    """Return the metadata that a parquet table's writer added, such as its schema version.

    Raises:
        TableError: the file is not readable parquet.
    """
    with _footer_of(source, where) as footer:
        return footer.metadata


def level_metadata(version: int, levels: Sequence[str]) -> dict[str, str]:
    """Return the metadata of hgld's own tables: schema version, and levels (finest first)."""
    return {"hgld.schema_version": str(version), "hgld.levels": json.dumps(list(levels))}


def read_levels(source: Source, version: int, what: str, *, where: str, fix: str) -> list[str]:
    """Return the levels that one of hgld's own tables states, finest first.

    Args:
        source: the table.
        version: schema version that this hgld reads.
        what: name of the table's type in messages.
        where: name of the source in messages.
        fix: last sentence of the error message about the version.

    Raises:
        SchemaError: this hgld does not read the schema version, or the metadata have no levels.
        TableError: the file is not readable parquet.
    """
    metadata = parquet_metadata(source, where=where)
    if (found := metadata.get("hgld.schema_version")) != str(version):
        raise SchemaError(
            f"{where}: {what} schema version is {quoted(found)}; this hgld reads version {version}. {fix}"
        )
    levels = None
    with suppress(ValueError, RecursionError):
        levels = json.loads(metadata.get("hgld.levels", ""))
    if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
        raise SchemaError(f"{where}: metadata 'hgld.levels' is not a JSON list of level names.")
    return levels


def row_groups(source: Source) -> list[int]:
    """Return the number of rows of every row group of a parquet table, from its footer.

    Raises:
        TableError: the file is not readable parquet.
    """
    with _footer_of(source) as footer:
        return [group[3] for group in footer.groups]


def write_table(table: pl.DataFrame, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a table as parquet, completely or not at all.

    Raises:
        StorageError: the disk is full or not writable.
    """
    facts = dict(metadata) if metadata else None
    try:
        write_atomic(path, lambda aside: table.write_parquet(aside, metadata=facts))
    except POLARS_FAULTS as error:  # polars raises its own errors for a full disk
        raise StorageError(f"{path}: cannot be written ({error}). Free space, then run again.") from error


def _check_columns(wanted: Iterable[str], found: Iterable[str], prefix: str = "") -> None:
    if missing := [column for column in wanted if column not in found]:
        raise TableError(f"{prefix}no column {excerpt(', '.join(missing))}; found {excerpt(', '.join(found))}.")


def _scan(source: Source) -> pl.LazyFrame:
    if isinstance(source, bytes):
        return pl.scan_parquet(io.BytesIO(source))
    return pl.scan_parquet(Path(source).absolute(), glob=False, hive_partitioning=False)


@contextmanager
def _footer_of(source: Source, where: str | None = None, fix: str = "") -> Iterator["_Footer"]:
    """Yield the footer of a parquet file; turn errors in the ``with`` block into a TableError with file and fix."""
    name = where or ("parquet table" if isinstance(source, bytes) else str(source))
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open_regular(Path(source)) as file:
            yield _Footer(file)
    except InputError as error:
        raise TableError(f"{name}: {error} {fix}".rstrip()) from error
    except OSError as error:
        raise TableError(f"{name}: cannot be read ({error.strerror or error}). {fix}".rstrip()) from error
    except (*POLARS_FAULTS, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TableError(f"{name}: not a readable parquet file ({excerpt(error)}). {fix}".rstrip()) from error


class _Footer:
    """The parts of a parquet file's footer from which the memory of its table follows.

    Polars exposes neither the sizes of row groups nor the page headers. A small file can hold 150 million repeated
    values, and only its page headers state their number.
    """

    _MAGIC = b"PAR1"
    _MOST_BYTES = 1 << 23  # 10 s of parsing; a table of a billion rows has 5 MB
    _PAGE_BYTES = 1 << 10  # each page counts as at least this many bytes of memory
    _WIDTHS = (1, 4, 8, 12, 4, 8, 16)  # bytes of a value in memory per physical type, from boolean to byte array

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)
        file.seek(max(0, self.size - 8))
        length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
        if magic != self._MAGIC or length > self.size - 8:
            raise ValueError("no parquet signature at its end")
        if length > self._MOST_BYTES:
            raise ValueError(f"a footer of {length:,} bytes")
        file.seek(self.size - 8 - length)
        facts = _Thrift(file.read(length)).struct()
        self.groups: list[dict[int, Any]] = facts.get(4, [])
        if any(group[3] < 0 for group in self.groups):
            raise ValueError("a row group of negative size")
        self.rows: int = sum(group[3] for group in self.groups)
        self.metadata = {pair[1].decode(): pair.get(2, b"").decode() for pair in facts.get(5, [])}
        leaves = [element for element in facts[2] if not element.get(5)]
        self._leaf_widths = [self._WIDTHS[leaf[1]] if leaf[1] < 7 else leaf[2] for leaf in leaves if 1 in leaf]

    def decoded_size(self, wanted: Mapping[str, Any], budget: int, rows: tuple[int, int] | None = None) -> int:
        """Return the bytes that columns take in memory, computed from page headers; stop counting above a budget.

        ``rows`` (first row and number of rows) limits the count to the row groups that hold them.
        """
        total, stop = 0, 0
        for group in self.groups:
            start, stop = stop, stop + group[3]
            if rows is not None and (stop <= rows[0] or start >= rows[0] + rows[1]):
                continue
            for chunk, width in zip(group[1], self._leaf_widths, strict=True):
                facts = chunk[3]
                column = facts[3][0].decode()
                if column not in wanted:
                    continue
                cell = width + 8 * (len(facts[3]) > 1)  # a list also stores an offset per cell
                values, pages = self._pages(facts, budget)
                count = max(values, facts[5], group[3])
                total += pages + count * max(cell, 8 * _array_cells(wanted[column]))
                if total > budget:
                    return total
        return total

    def _pages(self, chunk: Mapping[int, Any], budget: int) -> tuple[int, int]:
        """Return the number of values in the pages of a column chunk, and their bytes after decompression."""
        at = min(offset for offset in (chunk[9], chunk.get(11)) if offset)
        end, values, total = at + chunk[7], 0, 0
        while at < end and total <= budget:
            header, length = self._page_header(at)
            if header[3] < 0 or header[2] < 0:
                raise ValueError("a page of negative size")
            at += length + header[3]
            values += max(header.get(kind, {}).get(1, 0) for kind in (5, 7, 8))
            total += max(header[2], self._PAGE_BYTES)
        return values, total

    def _page_header(self, at: int) -> tuple[dict[int, Any], int]:
        # read few bytes first: most page headers are short, but statistics can make them long
        for most in (1 << 12, 1 << 22):
            self._file.seek(at)
            reader = _Thrift(self._file.read(most))
            try:
                return reader.struct(), reader.at
            except IndexError:
                continue
        raise ValueError("a page without a header")


def _array_cells(dtype: Any) -> int:
    """Return the number of cells per row in fixed-size arrays, which take memory even in empty rows; else 0."""
    if isinstance(dtype, pl.Array):
        return dtype.size * max(1, _array_cells(dtype.inner))
    if isinstance(dtype, pl.Struct):
        return sum(_array_cells(field.dtype) for field in dtype.fields)
    return _array_cells(dtype.inner) if isinstance(dtype, pl.List) else 0


class _Thrift:
    """Reader of Thrift's compact protocol, in which parquet writes footers and page headers.

    Structs become dictionaries keyed by field number. If the bytes end early, IndexError is raised.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def struct(self) -> dict[int, Any]:
        fields, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15)
        return fields

    def _value(self, kind: int, *, is_element: bool = False) -> Any:
        if kind in (1, 2):  # the type of the field is also the value of a boolean
            return (self._byte() if is_element else kind) == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 7:
            return self._take(8)
        if kind == 8:
            return self._take(self._varint())
        if kind in (9, 10):
            head = self._byte()
            size = self._varint() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15, is_element=True) for _ in range(size)]
        if kind == 12:
            return self.struct()
        raise ValueError(f"unknown Thrift type {kind}")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _take(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self._data):
            raise IndexError("the bytes end early")
        return self._data[self.at - size : self.at]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("an integer of more than 64 bits")

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def read_csv(
    source: Source,
    columns: Sequence[str] | None = None,
    *,
    schema: Schema | None = None,
    infer: bool = False,
    where: str | None = None,
    max_bytes: int = MAX_CSV_BYTES,
) -> pl.DataFrame:
    """Read a CSV table as text; empty cells are null. :class:`CsvText` also gives the line of every row.

    Args:
        source: the file, or its bytes.
        columns: columns to read; default: the columns of ``schema``, else all columns.
        schema: types of some columns.
        infer: whether to read a column without a type in ``schema`` as numbers, if all its cells are numbers.
        where: name of the source in messages.
        max_bytes: maximum size of the file in bytes.

    Raises:
        TableError: the file cannot be read, is too large, is not CSV in UTF-8, or lacks a column.
    """
    name = where or ("CSV table" if isinstance(source, bytes) else str(source))
    data = source if isinstance(source, bytes) else _csv_bytes(Path(source), max_bytes)
    try:
        header = next(csv.reader(io.StringIO(data[: 1 << 22].decode("utf-8-sig", "replace"), newline="")), [])
        if data.startswith(_COMPRESSED):
            raise TableError(f"{name}: the file is compressed; expected plain CSV. Unpack it first.")
        if any("\ufffd" in cell for cell in header):  # polars would accept such a column name
            decode_table(name, data)
        cells = len(header) * data.count(b"\n")
        if len(header) > _MAX_COLUMNS or 16 * cells > max(memory_limit(), _MOST_GROWTH * len(data)):
            raise TableError(f"{name}: {len(header):,} columns; too many for its {len(data):,} bytes.")
        wanted = list(columns if columns is not None else schema or [])
        _check_columns(wanted, header, f"{name}: ")
        options = {"infer_schema": infer, "infer_schema_length": None, "schema_overrides": schema}
        with MEMORY.hold(16 * cells, name):
            return pl.read_csv(data, columns=wanted or None, **options)
    except (csv.Error, *POLARS_FAULTS) as error:
        decode_table(name, data)
        raise TableError(f"{name}: not a readable CSV table ({excerpt(error)}).") from error


def _csv_bytes(path: Path, max_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:  # pipes are allowed (process substitution of a shell)
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}); expected a table.") from error
    if len(data) > max_bytes:
        raise TableError(f"{path} has more than {max_bytes:,} bytes; expected a smaller table.")
    return data


def decode_table(path: Path | str, data: bytes) -> str:
    """Return the text of a table's bytes, without its byte order mark.

    Raises:
        TableError: the bytes are not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TableError(
            f"{path}, line {line:,}: not UTF-8 (byte {data[error.start]:#04x}). Save the table as UTF-8, for example "
            "with: iconv -f latin1 -t utf-8"
        ) from error


def read_text(path: Path) -> str:
    """Return the text of a table from outside, without its byte order mark.

    Raises:
        TableError: the file cannot be read, is too large, is empty, or is not UTF-8.
    """
    text = decode_table(path, _csv_bytes(path, MAX_CSV_BYTES))
    if not text.strip():
        raise TableError(f"{path} is empty; expected at least one row.")
    return text


def table_rows(
    path: Path, text: str, separator: str = ",", width: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line number (from 1) and its cells; skip blank lines.

    Comma-separated cells may be quoted. In tab-separated cells, quotes are plain characters.

    Args:
        path: path of the table, for errors.
        text: content of the file.
        separator: a comma or a tab.
        width: required number of cells of every row but the first; None: any number.

    Raises:
        TableError: a row is not valid, or has a wrong number of cells.
    """
    is_csv = separator != "\t"
    quoting = csv.QUOTE_MINIMAL if is_csv else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, strict=is_csv)
    line, is_first = 0, True
    try:
        for row in reader:
            begins, line = line + 1, reader.line_num
            if row and not is_first and width is not None and len(row) != width:
                raise TableError(
                    f"{path}, line {begins:,}: {len(row)} cells where the header has {width}; a cell with a comma in "
                    'it needs double quotes around it ("...").'
                )
            if row:
                is_first = False
                yield begins, row
    except csv.Error as error:
        form = "CSV" if is_csv else "TSV"
        cells = "comma-separated cells, in double quotes if they hold commas" if is_csv else "tab-separated cells"
        raise TableError(
            f"{path}, line {line + 1:,}: not valid {form} ({error}); expected {cells}, of at most 131,072 characters."
        ) from error


@dataclass(frozen=True)
class CsvText:
    """The text of a CSV file and the columns of its header; rows are read with their first line number.

    Raises:
        TableError: the file cannot be read, is too large, is empty or not UTF-8, or its header is not CSV.
    """

    path: Path
    text: str
    columns: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "CsvText":
        """Read a file up to its header."""
        text = read_text(path)
        _, header = next(table_rows(path, text), (0, []))
        return cls(path, text, tuple(cell.strip() for cell in header))

    def select(self, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield each row's first line number (from 1) and its cells in these columns; skip blank lines.

        Raises:
            TableError: a column is missing or repeated, or a row is not CSV or has too many or too few cells for
                the header.
        """
        for column in columns:
            if (times := self.columns.count(column)) != 1:
                what = f"has the column {quoted(column)} twice" if times else f"lacks the column {quoted(column)}"
                raise TableError(
                    f"{self.path} {what}; found {excerpt(', '.join(map(repr, self.columns)))}, expected "
                    f"{excerpt(', '.join(map(repr, columns)))} (others are ignored). Rename the column in "
                    "the file's first line."
                )
        places = [self.columns.index(column) for column in columns]
        for line, row in islice(table_rows(self.path, self.text, width=len(self.columns)), 1, None):
            yield line, [row[place] for place in places]


def as_plain_text(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table for spreadsheets, which would run a text that begins with ``=``, ``+``, ``-`` or ``@``.

    Such texts get an apostrophe in front. Files that hgld reads again hold the texts as they are.
    """
    return table.with_columns(pl.col(pl.String).str.replace(r"^([=+\-@\t\r])", "'${1}"))


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows of cells as CSV, quoted if necessary; every row ends with a newline."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
